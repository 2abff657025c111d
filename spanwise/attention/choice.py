"""Which tiles to cut a rule into, and whether blocks pay at all: a small measured model of cost.

The model's unit is one operation of a 1024-cubed float32 product on one thread, so it carries over
between machines as far as ratios to that product do. It was fitted to torch 2.13's fused CPU
kernel, forward and backward, over blocks of 16 to 512 queries and 16 to 1,024 keys with head_dim
32, 64 and 128: 10% and 12% root mean square error.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

import torch

from spanwise.attention.expression import Expression, Rule, Unsupported
from spanwise.attention.group import Gathered, Group, Strided
from spanwise.attention.groups import groups
from spanwise.attention.plan import Plan, plan_by_pairs, plan_expression, trace_rule

TILES = (128, 256, 64, 32)
_SHORT = 512  # up to this length the whole sequence may be one tile
_CALL = (5e6, 1.2e7)  # one fused call and what surrounds it, forward and backward
_BLOCKS = (1.3e7, 1.5e7)  # what blocks cost beyond torch's own entry: 150 us each way
_CHOICES = 256


@dataclass(frozen=True)
class Choice:
    """The plans to use, forward and backward. single: both are one tile with a plain mask."""

    forward: Plan
    backward: Plan
    single: bool


_chosen: OrderedDict[tuple, Choice] = OrderedDict()
_lock = Lock()


def choose(sees: Rule | None, length: int, causal: bool, entries: int, dim: int) -> Choice:
    """Return the plans that the model finds fastest.

    entries: batch entries times heads. The choice is cached by the rule's arithmetic, the length,
    head_dim, threads and the order of magnitude of entries; the cache is bounded.
    """
    try:
        rule = trace_rule(sees, causal)
    except Unsupported as reason:
        made = plan_by_pairs(sees, length, causal, min(128, length), reason)
        return Choice(made, made, False)
    threads = torch.get_num_threads()
    key = (rule.key, length, causal, dim, threads, entries.bit_length())
    with _lock:
        if key in _chosen:
            _chosen.move_to_end(key)
            return _chosen[key]
    made_choice = _search(rule, length, causal, entries, dim, threads)
    with _lock:
        _chosen[key] = made_choice
        if len(_chosen) > _CHOICES:
            _chosen.popitem(last=False)
    return made_choice


def _search(
    rule: Expression, length: int, causal: bool, entries: int, dim: int, threads: int
) -> Choice:
    tiles = [tile for tile in TILES if tile < length]
    if length <= _SHORT:
        tiles.append(length)
    plans: list[Plan] = []
    for tile in tiles:
        plans.append(plan_expression(rule, length, causal, tile))
        # Where coarse tiles leave nothing out, finer ones find little and cost much to plan.
        if tile == TILES[0] and plans[0].blocks > 32 and plans[0].tiles_computed > length:
            possible = plans[0].blocks ** 2 / (2 if causal else 1)
            if plans[0].tiles_computed > possible / 2:
                break
    costs = [
        [estimate(made, entries, dim, threads, backward) for made in plans]
        for backward in (False, True)
    ]
    best = [plans[cost.index(min(cost))] for cost in costs]
    return Choice(best[0], best[1], single=best[0].blocks == best[1].blocks == 1)


def estimate(plan: Plan, entries: int, dim: int, threads: int, backward: bool) -> float:
    """Return the modelled cost of one pass over the plan, in product operations on one thread."""
    total = 0.0 if plan.blocks == 1 else _BLOCKS[backward]
    for group in groups(plan):
        tasks = group.n * entries
        size = group.q_size
        if not backward:  # the forward kernel also shares out a block's queries
            pieces = math.ceil(size / 64)
            tasks, size = tasks * pieces, math.ceil(size / pieces)
        total += _CALL[backward] + math.ceil(tasks / threads) * _block(group, size, dim, backward)
    return total


def _block(group: Group, q_size: int, dim: int, backward: bool) -> float:
    """Return the modelled cost of ``q_size`` queries of one block of one head."""
    keys: float = group.k_size
    if isinstance(group, Strided) and group.causal_form:
        keys = min(keys, (keys + 64) / 2)
    q, area = q_size, q_size * keys
    strips = math.ceil(q / 64)
    if not backward:
        cost = 7.7e4 + 2.2 * area * dim + 110 * keys * dim * strips + 107 * q * dim + 55 * area
        cost += 850 * q + 60 * q * dim + (0 if group.first else 300 * q * dim)
    else:
        cost = 3.4e5 + 6.3 * area * dim + 310 * keys * dim * strips + 170 * q * dim + 33 * area
        cost += 60 * q * dim + 46 * keys * dim
    if isinstance(group, Gathered):
        cost += (60 + 120 * backward) * keys * dim
    if len(group.patterns) > 1:
        cost += 60 * area  # its mask is built for every call
    return cost
