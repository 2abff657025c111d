"""Which tiles of a rule's map may be seen: found by intervals, coarse first, or pair by pair."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spanwise.attention.expression import Expression, Rule
from spanwise.attention.interval import Tiles
from spanwise.errors import ConfigError

Array = NDArray[Any]
PAIRS_AT_ONCE = 1 << 20
_REFINE = 8
_TILES_AT_ONCE = 1 << 16


def evaluate_tiles(
    seen: Rule, length: int, tile: int, rows: Array, cols: Array, device: str = "cpu"
) -> Tensor:
    """Evaluate the given tiles pair by pair: (n, tile, tile) bool, False past ``length``."""
    inside = torch.arange(tile, device=device)
    q = torch.as_tensor(rows, device=device)[:, None, None] * tile + inside[:, None]
    k = torch.as_tensor(cols, device=device)[:, None, None] * tile + inside[None, :]
    valid = (q < length) & (k < length)
    got = seen(q.clamp(max=length - 1), k.clamp(max=length - 1))
    got = got if isinstance(got, Tensor) else torch.tensor(got)
    if got.dtype != torch.bool:
        raise ConfigError(f"a rule must return truth values, got a tensor of {got.dtype}")
    return valid & got


def walk(rule: Expression, length: int, tile: int) -> Iterator[tuple]:
    """Yield (size, rows, cols, truth) for every tile that may be seen, none of it twice.

    Tiles of ``size`` > ``tile`` are wholly seen; tiles of size ``tile`` may be partly seen.
    Depth first and in chunks, so that what waits stays small.
    """
    tiles = Tiles(rule, tile)
    size = tile * _REFINE ** max(0, math.ceil(math.log(max(1, length / tile), _REFINE)))
    children = np.indices((_REFINE, _REFINE)).reshape(2, -1)
    todo = [(size, np.zeros(1, np.int64), np.zeros(1, np.int64))]
    while todo:
        size, rows, cols = todo.pop()
        ends = [np.minimum((x + 1) * size, length) - 1 for x in (rows, cols)]
        truth = tiles(rows * size, ends[0], cols * size, ends[1])
        if size == tile:
            yield size, rows[truth.may], cols[truth.may], truth
            continue
        if truth.must.any():
            yield size, rows[truth.must], cols[truth.must], None
        some = truth.may & ~truth.must
        step = max(1, _TILES_AT_ONCE // _REFINE**2)
        some_rows, some_cols, size = rows[some], cols[some], size // _REFINE
        for start in range(0, len(some_rows), step):
            finer = [
                (x[start : start + step, None] * _REFINE + c).ravel()
                for x, c in ((some_rows, children[0]), (some_cols, children[1]))
            ]
            inside = (finer[0] * size < length) & (finer[1] * size < length)
            todo.append((size, finer[0][inside], finer[1][inside]))


def _expand(size: int, tile: int, rows: Array, cols: Array, blocks: int) -> tuple[Array, Array]:
    """Return the tiles of size ``tile`` inside the given larger ones."""
    factor = size // tile
    inner = np.indices((factor, factor)).reshape(2, -1)
    rows = (rows[:, None] * factor + inner[0]).ravel()
    cols = (cols[:, None] * factor + inner[1]).ravel()
    inside = (rows < blocks) & (cols < blocks)
    return rows[inside], cols[inside]


def tiles_by_interval(rule: Expression, length: int, tile: int) -> tuple[Array, Array, Array]:
    """Return rows, cols, kind (-1 wholly seen, else a number shared by equal patterns)."""
    blocks, ragged = -(-length // tile), length % tile != 0
    nothing = np.zeros(0, np.int64)
    found: list[tuple[Array, ...]] = [(nothing, nothing, nothing, nothing, nothing)]
    for size, rows, cols, truth in walk(rule, length, tile):
        if truth is None:
            rows, cols = _expand(size, tile, rows, cols, blocks)
            found.append((rows, cols, np.zeros_like(rows), rows < 0, rows >= 0))
        else:
            may, signature = truth.may, truth.signature.view(np.int64)
            found.append((rows, cols, signature[may], truth.unique[may], truth.must[may]))
    rows, cols, kind, unique, whole = (np.concatenate(x) for x in zip(*found, strict=True))
    order = np.lexsort((cols, rows))
    rows, cols, kind, unique, whole = (x[order] for x in (rows, cols, kind, unique, whole))
    pattern = np.full(len(rows), -1, np.int64)
    masked = ~whole.astype(bool)
    if ragged:
        masked |= cols == blocks - 1
    at = np.flatnonzero(masked)
    if len(at):
        serial = np.where(unique[at], at + 1, 0)
        edge = ragged * ((rows[at] == blocks - 1) * 2 + (cols[at] == blocks - 1))
        keys = np.stack([kind[at], rows[at] - cols[at], serial, edge])
        pattern[at] = np.unique(keys, axis=1, return_inverse=True)[1].ravel()
    return rows, cols, pattern


def tiles_by_pairs(seen: Rule, length: int, tile: int, causal: bool) -> tuple[Array, Array, Array]:
    """The same for a rule that only tensors understand: every tile is looked into."""
    blocks = -(-length // tile)
    rows, cols = np.divmod(np.arange(blocks * blocks), blocks)
    if causal:
        rows, cols = rows[cols <= rows], cols[cols <= rows]
    step = max(1, PAIRS_AT_ONCE // tile**2)
    may, whole = [], []
    for start in range(0, len(rows), step):
        mask = evaluate_tiles(
            seen, length, tile, rows[start : start + step], cols[start : start + step]
        )
        may.append(mask.flatten(1).any(1).numpy())
        whole.append(mask.flatten(1).all(1).numpy())
    any_seen, all_seen = np.concatenate(may), np.concatenate(whole)
    rows, cols, all_seen = rows[any_seen], cols[any_seen], all_seen[any_seen]
    pattern = np.where(all_seen, -1, np.cumsum(~all_seen) - 1)
    return rows, cols, pattern
