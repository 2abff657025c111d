"""The block plan of a rule: which tiles of the L x L map need work, and which need a mask.

Planning goes from coarse tiles to fine ones and refines only what may be partly seen, so its cost
grows with what is seen, not with L squared. Only tiles that intervals cannot decide are evaluated
pair by pair, in bounded chunks, and tiles proved to hold the same pattern share one mask.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spanwise.attention.defined import check_defined
from spanwise.attention.expression import (
    CAUSAL,
    Expression,
    Rule,
    Unsupported,
    freeze,
    trace,
)
from spanwise.attention.given import check_rule, whole
from spanwise.attention.pairwise import name_of, on_tensors
from spanwise.attention.tiles import (
    PAIRS_AT_ONCE,
    evaluate_tiles,
    tiles_by_interval,
    tiles_by_pairs,
)

Array = NDArray[Any]
_STORED_MASK_BYTES = 64 << 20


class PairwiseWarning(UserWarning):
    """A rule was evaluated pair by pair because intervals do not understand it."""


@dataclass
class Plan:
    """The tiles of one rule at one length, sorted by row (query block), then column (key block).

    rows, cols: (T,) int64, tile coordinates in blocks of ``tile`` positions. pattern: (T,) int64,
    index of the tile's mask, or -1 where every pair of the tile is seen. The last block may be
    cut short by ``length``; a tile that reaches past it always has a mask.
    pairs_seen: exact number of (query, key) pairs that the rule lets through.
    """

    length: int
    causal: bool
    tile: int
    rows: Array
    cols: Array
    pattern: Array
    seen: Rule = field(repr=False)
    """The rule with causality, callable on position tensors."""
    examples: Array = field(repr=False)
    """(M, 2): the row and column of one tile for every pattern."""
    stored: Tensor | None = field(repr=False)
    """(M, tile, tile) bool masks; None where they would be too large to keep."""
    pairs_seen: int = 0

    @property
    def blocks(self) -> int:
        """Number of blocks along the sequence."""
        return -(-self.length // self.tile)

    @property
    def tiles_computed(self) -> int:
        """Number of tiles on which any work is done."""
        return len(self.rows)

    @property
    def pairs_computed(self) -> int:
        """Number of pairs inside those tiles: what a kernel really multiplies."""
        return int(np.sum(self._extent(self.rows) * self._extent(self.cols)))

    @property
    def keys_per_query(self) -> float:
        """Mean number of keys that a query sees."""
        return self.pairs_seen / self.length

    @cached_property
    def dense_tiles(self) -> bool:
        """True where nearly every tile is touched though few pairs are seen: full cost, no gain."""
        n, length = self.blocks, self.length
        tiles = n * (n + 1) // 2 if self.causal else n * n
        pairs = length * (length + 1) // 2 if self.causal else length * length
        return self.tiles_computed >= 0.9 * tiles and self.pairs_seen <= 0.5 * pairs

    @property
    def nbytes(self) -> int:
        """Bytes that the plan itself holds."""
        arrays = self.rows.nbytes + self.cols.nbytes + self.pattern.nbytes + self.examples.nbytes
        return arrays + (0 if self.stored is None else self.stored.numel())

    def masks(self, patterns: Array) -> Tensor:
        """Return the masks (n, tile, tile) of the given pattern numbers; True is seen."""
        if self.stored is not None:
            return self.stored[torch.from_numpy(np.ascontiguousarray(patterns))]
        return evaluate_tiles(self.seen, self.length, self.tile, *self.examples[patterns].T)

    def _extent(self, block: Array) -> Array:
        return np.minimum((block + 1) * self.tile, self.length) - block * self.tile


def _finish(
    length: int, causal: bool, tile: int, seen: Rule, rows: Array, cols: Array, pattern: Array
) -> Plan:
    """Evaluate one tile of every pattern: its mask, and the exact count of pairs."""
    number, first, index, count = np.unique(
        pattern, return_index=True, return_inverse=True, return_counts=True
    )
    some = number >= 0
    examples = np.stack([rows[first[some]], cols[first[some]]], axis=1).astype(np.int64)
    keep = len(examples) * tile**2 <= _STORED_MASK_BYTES
    stored, sums = [], []
    step = max(1, PAIRS_AT_ONCE // tile**2)
    for start in range(0, len(examples), step):
        masks = evaluate_tiles(seen, length, tile, *examples[start : start + step].T)
        sums.append(masks.sum((1, 2)).numpy())
        if keep:
            stored.append(masks)
    per_pattern = np.concatenate(sums) if sums else np.zeros(0, np.int64)
    pairs_of_masked = np.sum(per_pattern * count[some])
    # A pattern in which no pair is seen after all (intervals were vague) is no work.
    alive = np.concatenate([np.ones(int((~some).sum()), bool), per_pattern > 0])[index.ravel()]
    whole = pattern[alive] < 0
    kept = torch.cat(stored) if stored else torch.zeros(0, tile, tile, dtype=torch.bool)
    if keep and len(examples) > 1:
        pattern, one = _renumber(pattern, kept)
        examples, kept = examples[one], kept[torch.from_numpy(one)]
    plan = Plan(
        length=length,
        causal=causal,
        tile=tile,
        rows=rows[alive],
        cols=cols[alive],
        pattern=pattern[alive],
        seen=seen,
        examples=examples,
        stored=kept if keep else None,
    )
    area = np.sum(plan._extent(plan.rows[whole]) * plan._extent(plan.cols[whole]))
    plan.pairs_seen = int(area + pairs_of_masked)
    return plan


def _renumber(pattern: Array, masks: Tensor) -> tuple[Array, Array]:
    """Give equal masks one number, and those that hide nothing -1; return it with one of each.

    Intervals know equal patterns along a diagonal, but not down a column, as global keys make.
    """
    bits = np.ascontiguousarray(np.packbits(masks.flatten(1).numpy(), axis=1))
    as_one = bits.view(np.dtype((np.void, bits.shape[1]))).ravel()
    _, one, same = np.unique(as_one, return_index=True, return_inverse=True)
    number = np.where(
        masks[torch.from_numpy(one)].flatten(1).all(1).numpy(), -1, np.arange(len(one))
    )
    return np.where(pattern < 0, -1, number[same.ravel()[pattern]]), one


_cache: OrderedDict[tuple, Plan] = OrderedDict()
_cache_lock = Lock()
CACHE_PLANS = 64
CACHE_BYTES = 512 << 20
_warned: set[str] = set()


def plan(sees: Rule | None, length: int, causal: bool = True, tile: int = 128) -> Plan:
    """Return the block plan of ``sees`` at ``length``.

    tile: positions on a side of a tile. Plans are cached by the rule's arithmetic and constants
    (lookup tables by content), so a rule whose attributes have changed gets a plan of its own. A
    rule that intervals do not understand is evaluated pair by pair, at every call, with a warning.

    Raises ConfigError where length or tile is no whole number of at least 1, causal no bool, or
    the rule has no truth value for some pair (a lookup beyond its table, a division by 0).
    """
    check_rule(sees, causal)
    length, tile = whole("length", length), whole("tile", tile)
    try:
        return plan_expression(trace_rule(sees, causal), length, causal, tile)
    except Unsupported as reason:
        return plan_by_pairs(sees, length, causal, tile, reason)


def trace_rule(sees: Rule | None, causal: bool) -> Expression:
    """Return the rule with causality as an expression; raises Unsupported where it cannot."""
    rule = trace(sees)
    return Expression("&", (CAUSAL, rule), boolean=True) if causal else rule


def plan_expression(rule: Expression, length: int, causal: bool, tile: int) -> Plan:
    """Return the plan of a rule that holds its causality already, from the cache where it can."""
    key = (rule.key, length, causal, tile)
    with _cache_lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
    rule = freeze(rule)
    check_defined(rule, length)
    tiles = tiles_by_interval(rule, length, tile)
    made = _finish(length, causal, tile, rule, *tiles)
    with _cache_lock:
        _cache[key] = made
        while len(_cache) > 1 and (
            len(_cache) > CACHE_PLANS or sum(p.nbytes for p in _cache.values()) > CACHE_BYTES
        ):
            _cache.popitem(last=False)
    return made


def forget() -> None:
    """Empty the plan cache (for measurements of planning itself)."""
    with _cache_lock:
        _cache.clear()


def plan_by_pairs(sees: Any, length: int, causal: bool, tile: int, reason: Unsupported) -> Plan:
    """Plan a rule that only tensors understand: every tile is looked into, nothing is cached."""
    name = name_of(sees)

    def seen(q: Tensor, k: Tensor) -> Tensor:
        found = on_tensors(sees, q, k, reason)
        return found & (k <= q) if causal else found

    made = _finish(length, causal, tile, seen, *tiles_by_pairs(seen, length, tile, causal))
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"rule {name} is evaluated pair by pair, "
            f"in time that grows with length squared: {reason}",
            PairwiseWarning,
            stacklevel=3,
        )
    return made


def keys_per_query(sees: Rule | None, length: int, causal: bool = True) -> float:
    """Return the exact mean number of keys that a query sees at ``length``; errors as `plan`."""
    length = whole("length", length)
    return plan(sees, length, causal, tile=128 if length > 2048 else 32).keys_per_query


def kernel_flops(
    pairs: float, heads: int, head_dim: int, batch: int = 1, train: bool = False
) -> float:
    """Return the floating-point operations of attention over ``pairs`` (query, key) pairs.

    Two products of 2 * head_dim operations a pair and head, forward; with the backward pass 3.5
    times that (five more products, one of which repeats the scores).
    """
    return 4.0 * batch * heads * head_dim * pairs * (3.5 if train else 1.0)
