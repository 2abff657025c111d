"""Which tiles to cut a rule into, and whether blocks pay at all: a small measured model of cost.

The model's unit is one operation of a 1024-cubed float32 product on the threads in use, so it
carries over between machines as far as ratios to that product do. It was fitted to torch 2.13 on
one and two threads, forward and backward, over four rules with 64 to 8,192 tokens, blocks of 32 to
256 queries, head_dim 32, 64 and 128, batch 1 and 8: 12% root mean square error either way.
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
from spanwise.attention.slices import slice_bytes, slice_of_fused, slice_of_products

TILES = (128, 256, 64, 32)
_SHORT = 1024  # up to this length the whole sequence may be one tile
_BLOCKS = (2.8e7, 3.7e7)  # what blocks cost beyond torch's own entry: some 200 us each way
_MARGIN = 1.12  # blocks are taken where the model has them faster by more than its own error
_CHOICES = 256


@dataclass(frozen=True)
class Choice:
    """The plans to use, forward and backward, and whether torch's own entry beats them.

    whole_forward: with one dense mask over the whole sequence, a forward pass alone is faster;
    whole_train: a forward and a backward pass together.
    """

    forward: Plan
    backward: Plan
    whole_forward: bool = False
    whole_train: bool = False


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
        return Choice(made, made)
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
    best = [min(each) + extra for each, extra in zip(costs, _BLOCKS, strict=True)]
    chosen = [plans[each.index(min(each))] for each in costs]
    # One tile is one fused call with a mask, which torch's own entry makes with less ado.
    whole = [each[-1] if plans[-1].blocks == 1 else math.inf for each in costs]
    forward, train = (x < _MARGIN * y for x, y in ((whole[0], best[0]), (sum(whole), sum(best))))
    return Choice(chosen[0], chosen[1], forward, train)


def estimate(plan: Plan, entries: int, dim: int, threads: int, backward: bool) -> float:
    """Return the modelled cost of one pass's calls over the plan, in operations of the product."""
    total = 0.0
    room = slice_bytes(4 * entries * plan.length * dim)
    for group in groups(plan):
        if isinstance(group, Strided) and group.by_products:
            total += _products(group, entries, dim, threads, backward, room)
        else:
            total += _fused(group, entries, dim, threads, backward, room)
        if len(group.patterns) > 1:  # its mask is built for every call
            total += (1700 if backward else 2200) * group.pairs
    return total


def _products(
    group: Strided, entries: int, dim: int, threads: int, backward: bool, room: float
) -> float:
    """Return the modelled cost of a group that batched products serve."""
    blocks, area = group.n * entries, group.q_size * group.k_size
    most = max(1, room // slice_of_products(group, dim, 4, backward))
    if group.even:
        calls = math.ceil(blocks / most)
    else:
        lanes = sorted((group.n, entries))
        calls = lanes[0] * math.ceil(lanes[1] / most)
    apart = group.k_step >= group.k_size  # no block finds its neighbour's keys in the caches
    if backward:
        each = 10.8 * area * dim + (98 + 145 * apart) * group.k_size * dim + 165 * area
        return 3.3e7 * calls * threads / 2 + blocks * (each if group.alone else each + 82 * area)
    each = 4.2 * area * dim + (16 + 116 * apart) * group.k_size * dim + 127 * area
    return 9.6e6 * calls * threads / 2 + blocks * each


def _fused(
    group: Group, entries: int, dim: int, threads: int, backward: bool, room: float
) -> float:
    """Return the modelled cost of a group that the fused kernel serves."""
    queries, keys = group.q_size, float(group.k_size)
    split = 32 if queries < 192 else 64 if queries < 768 else 256  # queries of one product
    strips = math.ceil(queries / split)
    calls = math.ceil(group.n / max(1, room // slice_of_fused(group, entries, dim, 4, backward)))
    if group.causal_form:
        keys = min(keys, (keys + split) / 2)
    area = queries * keys
    tasks = group.n * entries * (1 if backward else strips)  # what the threads share out
    uneven = math.ceil(tasks / threads) * threads / tasks
    if backward:
        each = 7.9 * area * dim + 1560 * queries * dim + 162 * area
        call = 7.3e7
    else:
        each = 1.1e6 + 3.25 * area * dim + 554 * queries * dim + 71 * area
        call = 2.4e7
    if isinstance(group, Gathered):
        each += (60 + 120 * backward) * keys * dim
    return call * calls * threads / 2 + uneven * group.n * entries * each
