"""Three-valued answers for whole tiles: may a query of this tile see a key of it, must every one?

Interval arithmetic over many tiles at once (numpy int64, one entry a tile). It is sound: the true
value always lies within [low, high], so a tile is never called unseen where one pair is seen, nor
wholly seen where one is not. It may be vague where positions are correlated; vague means "some".

Besides, each value carries its shift: by how much it changes when query and key both move by one
tile, where that is a known constant. A comparison of values with equal shifts gives the same
pattern in every tile of a diagonal, so tiles can share one mask; the signature says which.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spanwise.attention.expression import Expression

Array = NDArray[Any]
_NONE, _ALL = np.uint64(1), np.uint64(2)


@dataclass
class Numbers:
    """Whole numbers within [low, high], one interval a tile; shift as the module says."""

    low: Array
    high: Array
    shift: int | None


@dataclass
class Truth:
    """Truth values of tiles: ``may`` one pair be true, ``must`` all be true.

    ``signature``: tiles of one diagonal with equal signatures have equal patterns, unless
    ``unique``, which claims nothing.
    """

    may: Array
    must: Array
    signature: Array
    unique: Array


class Ranges:
    """Least and greatest of ``values`` over any [low, high], in two reads (a sparse table)."""

    def __init__(self, values: Array):
        values = values.astype(np.int64)
        self.least, self.greatest = [values], [values]
        width = 1
        while 2 * width <= len(values):
            for levels, choose in ((self.least, np.minimum), (self.greatest, np.maximum)):
                levels.append(choose(levels[-1][:-width], levels[-1][width:]))
            width *= 2

    def __call__(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Return the least and the greatest entry of every [low, high], both ends included."""
        n = len(self.least[0])
        wraps = low < 0  # negative positions index from the end, as on tensors
        low, high = np.clip(low, 0, n - 1), np.clip(high, 0, n - 1)
        low = np.where(wraps, 0, low)
        high = np.where(wraps, n - 1, high)
        low, high = np.broadcast_arrays(low, high)
        level = np.frexp((high - low + 1).astype(np.float64))[1] - 1
        least, greatest = np.empty(low.shape, np.int64), np.empty(low.shape, np.int64)
        for each in np.unique(level):
            at = level == each
            first, last = low[at], high[at] - (1 << int(each)) + 1
            table = self.least[each]
            least[at] = np.minimum(table[first], table[last])
            table = self.greatest[each]
            greatest[at] = np.maximum(table[first], table[last])
        return least, greatest


class Tiles:
    """Evaluates a rule on tiles of queries x keys. One object serves many calls (tables kept)."""

    def __init__(self, rule: Expression, tile: int):
        self.rule, self.tile = rule, tile
        self._tables: dict[str, Ranges] = {}

    def __call__(self, q_low: Array, q_high: Array, k_low: Array, k_high: Array) -> Truth:
        """Return the rule's Truth for tiles of queries [q_low, q_high] and keys likewise."""
        self._memo: dict[str, Any] = {
            "q": Numbers(q_low, q_high, self.tile),
            "k": Numbers(k_low, k_high, self.tile),
        }
        truth = self._evaluate(self.rule)
        del self._memo
        return Truth(*(np.broadcast_to(a, q_low.shape) for a in vars(truth).values()))

    def _evaluate(self, node: Expression) -> Any:
        if node.key not in self._memo:
            self._memo[node.key] = self._compute(node)
        return self._memo[node.key]

    def _compute(self, node: Expression) -> Any:
        if node.op == "const":
            value = np.array([node.value])
            if node.boolean:
                return _truth(value, value, np.False_)
            return Numbers(value, value, 0)
        args = [self._evaluate(a) for a in node.args]
        if node.op == "lookup":
            return self._look_up(node, args[0])
        if node.op == "~":
            a = args[0]
            signature = np.where(
                a.must, _NONE, np.where(~a.may, _ALL, _mix(a.signature, np.uint64(7)))
            )
            return Truth(~a.must, ~a.may, signature, a.unique)
        if node.op in ("&", "|", "^"):
            return _combine(node.op, args[0], args[1])
        if node.op in ("<", "<=", "==", "!="):
            return _compare(node, args[0], args[1])
        return _arithmetic(node, args)

    def _look_up(self, node: Expression, x: Numbers) -> Any:
        if node.key not in self._tables:
            values = node.value.numpy()
            self._tables[node.key] = Ranges(values if node.boolean else values.astype(np.int64))
        least, greatest = self._tables[node.key](x.low, x.high)
        if not node.boolean:
            return Numbers(least, greatest, 0 if x.shift == 0 else None)
        return _truth(greatest > 0, least > 0, np.bool_(x.shift != 0), node.key)


def _mix(*parts: Any) -> Any:
    """Return a 64-bit hash of the parts, element by element (splitmix64's finaliser)."""
    total: Any = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        for part in parts:
            total = (total ^ part) * np.uint64(0xBF58476D1CE4E5B9)
            total = (total ^ (total >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            total = total ^ (total >> np.uint64(31))
    return total


def _text_hash(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))


def _truth(may: Array, must: Array, unique: Any, text: str = "") -> Truth:
    undecided = _text_hash(text)
    signature = np.where(must, _ALL, np.where(may, undecided, _NONE))
    return Truth(may, must, signature, unique & may & ~must)


def _combine(op: str, a: Truth, b: Truth) -> Truth:
    mixed = _mix(a.signature, b.signature, _text_hash(op))
    unique = a.unique | b.unique
    if op == "&":
        may, must = a.may & b.may, a.must & b.must
        mixed = np.where(a.must, b.signature, np.where(b.must, a.signature, mixed))
    elif op == "|":
        may, must = a.may | b.may, a.must | b.must
        mixed = np.where(~a.may, b.signature, np.where(~b.may, a.signature, mixed))
    else:
        may = (a.may & ~b.must) | (b.may & ~a.must)
        must = (a.must & ~b.may) | (b.must & ~a.may)
    signature = np.where(must, _ALL, np.where(may, mixed, _NONE))
    return Truth(may, must, signature, unique & may & ~must)


def _compare(node: Expression, a: Numbers, b: Numbers) -> Truth:
    unique = np.bool_(a.shift is None or a.shift != b.shift)
    if node.op == "<":
        may, must = a.low < b.high, a.high < b.low
    elif node.op == "<=":
        may, must = a.low <= b.high, a.high <= b.low
    else:
        may = (a.low <= b.high) & (b.low <= a.high)
        must = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
        if node.op == "!=":
            may, must = ~must, ~may
    return _truth(may, must, unique, node.key)


def _arithmetic(node: Expression, args: list[Numbers]) -> Numbers:
    if node.op == "abs":
        return _absolute(args[0])
    if node.op == "*" and node.args[0].op == "const":
        node, args = Expression("*", node.args[::-1]), args[::-1]
    a, b = args
    fixed = node.args[1].value if node.args[1].op == "const" else None
    shift = _shift(node.op, a.shift, b.shift, fixed)
    if node.op == "+":
        return Numbers(a.low + b.low, a.high + b.high, shift)
    if node.op == "-":
        return Numbers(a.low - b.high, a.high - b.low, shift)
    if node.op == "*":
        return Numbers(*_hull([x * y for x in (a.low, a.high) for y in (b.low, b.high)]), shift)
    # A divisor is 0 nowhere (defined.py), though its interval may hold 0.
    crosses = (b.low <= 0) & (b.high >= 0)
    ends = [np.where(crosses, 1, y) for y in (b.low, b.high)]
    quotients = [x // y for x in (a.low, a.high) for y in ends]
    if node.op == "//":
        low, high = _hull(quotients)
        most = np.maximum(np.abs(a.low), np.abs(a.high))  # divided by 1 or -1
        return Numbers(np.where(crosses, -most, low), np.where(crosses, most, high), shift)
    if fixed is None:
        low, high = np.minimum(b.low + 1, 0), np.maximum(b.high - 1, 0)
    else:
        same_turn = quotients[0] == quotients[2]
        low = np.where(same_turn, a.low % fixed, min(0, fixed + 1))
        high = np.where(same_turn, a.high % fixed, max(0, fixed - 1))
    return Numbers(low, high, shift)


def _absolute(a: Numbers) -> Numbers:
    ends = np.abs(a.low), np.abs(a.high)
    low = np.where((a.low < 0) & (a.high > 0), 0, np.minimum(*ends))
    return Numbers(low, np.maximum(*ends), 0 if a.shift == 0 else None)


def _hull(corners: list[Array]) -> tuple[Array, Array]:
    every = np.broadcast_arrays(*corners)
    return np.minimum.reduce(every), np.maximum.reduce(every)


def _shift(op: str, a: int | None, b: int | None, fixed: int | None) -> int | None:
    """Return the shift of ``a op b``; ``fixed`` is b's value where that is a constant."""
    if a is None or b is None:
        return None
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if fixed:
        if op == "*":
            return a * fixed
        if a % fixed == 0:
            return a // fixed if op == "//" else 0
    return 0 if a == 0 and b == 0 else None
