"""Which keys must be kept: for each key the last query that sees it, read off the block plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spanwise.attention.plan import Plan

Array = NDArray[Any]
_TILES_AT_ONCE = 1024


def last_query(plan: Plan) -> Array:
    """Return (L,) int64: the last query that sees each key, -1 for a key that none sees.

    A cache of keys and values may drop a key after that query.
    """
    tile = plan.tile
    last = np.full((plan.blocks, tile), -1, np.int64)
    for rows, cols, seen in _tiles(plan):
        # The last True of each column: argmax finds the first one of the column upside down.
        found = seen.any(1)
        within = tile - 1 - seen[:, ::-1].argmax(1)
        np.maximum.at(last, cols, np.where(found, rows[:, None] * tile + within, -1))
    return last.ravel()[: plan.length]


def keys_of_queries(plan: Plan) -> Array:
    """Return (L,) int64: the number of keys that each query sees."""
    counts = np.zeros((plan.blocks, plan.tile), np.int64)
    for rows, _, seen in _tiles(plan):
        np.add.at(counts, rows, seen.sum(2))
    return counts.ravel()[: plan.length]


def _tiles(plan: Plan) -> Iterator[tuple[Array, Array, Array]]:
    """Yield the plan's tiles in groups: rows, columns, and who sees whom (n or 1, tile, tile)."""
    inside = plan.length - (plan.blocks - 1) * plan.tile  # rows of the last block that exist
    for start in range(0, plan.tiles_computed, _TILES_AT_ONCE):
        part = slice(start, start + _TILES_AT_ONCE)
        rows, cols, pattern = plan.rows[part], plan.cols[part], plan.pattern[part]
        cut = (rows == plan.blocks - 1) & (inside < plan.tile)
        masked = (pattern >= 0) | cut
        if masked.any():
            seen = np.ones((int(masked.sum()), plan.tile, plan.tile), bool)
            some = pattern[masked] >= 0
            if some.any():
                seen[some] = plan.masks(pattern[masked][some]).numpy()
            seen[cut[masked], inside:] = False
            yield rows[masked], cols[masked], seen
        if not masked.all():  # one tile stands for all that are seen whole
            yield rows[~masked], cols[~masked], np.ones((1, plan.tile, plan.tile), bool)
