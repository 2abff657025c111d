"""Where a rule is defined: every lookup finds its entry, and nothing is divided by 0.

Both are rules themselves, "the index lies outside the table" and "the divisor is 0", so intervals
answer for nearly all pairs at once. All pairs up to the length count, those too that causality or
another part of the rule hides: on tensors every part is evaluated everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from spanwise.attention.expression import (
    Expression,
    constant,
    evaluate,
    positions_in,
    spoken,
)
from spanwise.attention.interval import Tiles
from spanwise.attention.tiles import PAIRS_AT_ONCE, evaluate_tiles, walk
from spanwise.errors import ConfigError

_TILE = 128
_PAIRS_TO_FIND_A_RANGE = 1 << 24


def check_defined(rule: Expression, length: int) -> None:
    """Raise ConfigError where the rule has no value for some pair of positions below ``length``."""
    _check(rule, length, set())


def _check(node: Expression, length: int, done: set[str]) -> None:
    if node.key in done:
        return
    done.add(node.key)
    for inner in node.args:  # first: what is outside is asked of sound indices and divisors only
        _check(inner, length, done)
    if node.op == "lookup":
        index, entries = node.args[0], node.value.numel()
        at = _first((index < -entries) | (index >= entries), length)
        if at is not None:
            raise ConfigError(
                f"{spoken(node)}: {_asked(index, length, at)}, but values has {entries} "
                f"entries; allowed: 0 to {entries - 1}, and from the end -1 to -{entries}"
            )
    if node.op in ("//", "%"):
        divisor = node.args[1]
        at = _first(Expression("==", (divisor, constant(0)), boolean=True), length)
        if at is not None:
            raise ConfigError(
                f"a rule divides by 0: {spoken(node)} at query {at[0]}, key {at[1]}; "
                "allowed: divisors that are 0 for no pair of positions"
            )


def _first(condition: Expression, length: int) -> tuple[int, int] | None:
    """Return the query and the key of a pair for which the condition holds, None without one."""
    used = positions_in(condition)
    if len(used) < 2:
        return _first_of_one(condition, used, length)
    tile = min(_TILE, length)
    for size, rows, cols, truth in walk(condition, length, tile):
        if truth is None:
            return int(rows[0]) * size, int(cols[0]) * size
        step = max(1, PAIRS_AT_ONCE // tile**2)
        for start in range(0, len(rows), step):
            part = rows[start : start + step], cols[start : start + step]
            found = evaluate_tiles(condition, length, tile, *part).nonzero()
            if len(found):
                n, q, k = found[0].tolist()
                return int(part[0][n]) * tile + q, int(part[1][n]) * tile + k
    return None


def _first_of_one(condition: Expression, used: set[str], length: int) -> tuple[int, int] | None:
    """The same for a condition on queries alone, on keys alone, or on constants."""
    ends = np.zeros(1, np.int64), np.full(1, length - 1, np.int64)
    if not Tiles(condition, 1)(*ends, *ends).may[0]:
        return None
    holds: Any = evaluate(condition, *_all_positions(length))
    if not isinstance(holds, torch.Tensor):
        return (0, 0) if holds else None
    found = holds.flatten().nonzero()
    if not len(found):
        return None
    first = int(found[0])
    return (first, 0) if used == {"q"} else (0, first)


def _all_positions(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    position = torch.arange(length)
    return position[:, None], position[None, :]


def _asked(index: Expression, length: int, at: tuple[int, int]) -> str:
    """Return in words which entries are asked for: their range, or one of them at great length."""
    if len(positions_in(index)) < 2 or length**2 <= _PAIRS_TO_FIND_A_RANGE:
        asked = torch.as_tensor(evaluate(index, *_all_positions(length)))
        low, high = int(asked.min()), int(asked.max())
        return f"{spoken(index)} runs from {low} to {high} at length {length}"
    one = evaluate(index, *(torch.tensor(x) for x in at))
    return f"{spoken(index)} is {int(one)} at query {at[0]}, key {at[1]}"
