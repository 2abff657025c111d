"""A plan cut into groups: query blocks that one fused call can serve, with views instead of copies.

A row of the plan sees runs of consecutive key blocks. Runs of equal shape whose rows and first key
blocks advance by constant steps are one group, read through strided views that may overlap (a
sliding window is one such group). What is left goes in rectangles, or, where many small pieces are
scattered, in gathered groups that copy their keys. Queries in several groups have their results
merged by log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spanwise.attention.group import NOT_SEEN, Gathered, Group, Strided
from spanwise.attention.plan import Plan

Array = NDArray[Any]
_FEWEST_BLOCKS = 4
_CALL_IN_PAIRS = 1 << 14  # pairs that may be computed in vain to save one call
_RECTANGLE_PAIRS = 1 << 20
_FEW_PIECES = 32


@dataclass
class _Runs:
    """Runs of consecutive key blocks: one entry each, sorted by row, then column."""

    row: Array
    col: Array
    width: Array
    at: Array
    """Index of the run's first tile in the plan."""

    def __getitem__(self, which: Array) -> _Runs:
        return _Runs(self.row[which], self.col[which], self.width[which], self.at[which])


def groups(plan: Plan) -> list[Group]:
    """Return the groups of ``plan``, the largest first; kept with the plan."""
    kept = plan.__dict__.get("_groups")
    if kept is None:
        kept = plan.__dict__["_groups"] = _build(plan)
    return kept


def all_written(plan: Plan) -> bool:
    """Return whether every query is overwritten by the first group that touches it."""
    groups(plan)
    return plan.__dict__["_written"]


def _build(plan: Plan) -> list[Group]:
    made: list[Group] = []
    runs, shape = _find_runs(plan)
    left = np.ones(len(runs.row), bool)
    whole = np.ones(len(runs.row), bool)
    if plan.length % plan.tile:  # blocks cut short by the length are served one by one
        whole = (runs.row < plan.blocks - 1) & (runs.col + runs.width < plan.blocks)
    for key in (shape, runs.width):  # equal patterns first, then equal widths
        for members in _progressions(runs, key, left & whole):
            made.append(_strided(plan, runs[members]))
            left[members] = False
    rectangles = _rectangles(plan, runs[left])
    if sum(group.pairs < 4 * _CALL_IN_PAIRS for group in rectangles) > _FEW_PIECES:
        made += _gathered(plan, runs[left & whole])
        made += _rectangles(plan, runs[left & ~whole])
    else:
        made += rectangles
    made = [group for group in made if group.trim()]
    made.sort(key=lambda group: -group.pairs)
    touched, written = np.zeros(plan.length, np.int64), np.zeros(plan.length, bool)
    for group in made:
        at = queries_of(group)
        group.first = not touched[at].any()
        touched[at] += 1
        written[at] |= group.first
    for group in made:
        group.alone = bool((touched[queries_of(group)] == 1).all())
    plan.__dict__["_written"] = bool(written.all())
    return made


def queries_of(group: Group) -> Array:
    """Return the positions of all queries of ``group``."""
    return (group.q_blocks[:, None] + np.arange(group.q_size)).ravel()


def _find_runs(plan: Plan) -> tuple[_Runs, Array]:
    rows, cols, pattern = plan.rows, plan.cols, plan.pattern
    begins = np.ones(len(rows), bool)
    begins[1:] = (rows[1:] != rows[:-1]) | (cols[1:] != cols[:-1] + 1)
    at = np.flatnonzero(begins)
    width = np.diff(np.append(at, len(rows)))
    runs = _Runs(rows[at], cols[at], width, at)
    if not len(at):
        return runs, at
    place = np.arange(len(rows)) - np.repeat(at, width)
    with np.errstate(over="ignore"):
        mixed = (pattern.astype(np.uint64) + np.uint64(3)) * (
            place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0xBF58476D1CE4E5B9)
        )
        mixed ^= mixed >> np.uint64(29)
        total = np.add.reduceat(mixed * np.uint64(0x94D049BB133111EB), at)
    keys = np.stack([width, total.view(np.int64)])
    return runs, np.unique(keys, axis=1, return_inverse=True)[1].ravel()


def _progressions(runs: _Runs, key: Array, allowed: Array) -> Iterator[Array]:
    """Yield index arrays of at least four runs with one key, rows and columns in even steps."""
    candidates = np.flatnonzero(allowed)
    candidates = candidates[np.argsort(key[candidates], kind="stable")]
    if not len(candidates):
        return
    cuts = np.flatnonzero(np.diff(key[candidates])) + 1
    for members in np.split(candidates, cuts):
        if len(members) < _FEWEST_BLOCKS:
            continue
        steps = np.stack([np.diff(runs.row[members]), np.diff(runs.col[members])])
        changes = np.append(np.flatnonzero((np.diff(steps) != 0).any(0)) + 1, steps.shape[1])
        i = 0
        while len(members) - i >= _FEWEST_BLOCKS:
            last = int(changes[np.searchsorted(changes, i, side="right")])
            forward = steps[0, i] > 0 and steps[1, i] >= 0
            if last - i + 1 >= _FEWEST_BLOCKS and forward:
                yield members[i : last + 1]
                i = last + 1
            else:
                i += 1


def _strided(plan: Plan, runs: _Runs) -> Strided:
    tile, width = plan.tile, int(runs.width[0])
    patterns = plan.pattern[runs.at[:, None] + np.arange(width)][:, None, :]
    if (patterns == patterns[:1]).all():
        patterns = patterns[:1]
    return Strided(
        plan=plan,
        patterns=patterns,
        n=len(runs.row),
        q_start=int(runs.row[0]) * tile,
        q_step=int(runs.row[1] - runs.row[0]) * tile,
        q_size=tile,
        k_start=int(runs.col[0]) * tile,
        k_step=int(runs.col[1] - runs.col[0]) * tile,
        k_size=width * tile,
    )


def _rectangles(plan: Plan, runs: _Runs) -> list[Strided]:
    """Join runs of neighbouring rows into rectangles where that wastes less than a call costs."""
    made: list[list[int]] = []
    area, box = 0, (0, 0, 0, 0)
    for i, (row, col, width) in enumerate(zip(runs.row, runs.col, runs.width, strict=True)):
        if made and row <= box[1]:
            top, bottom = box[0], max(box[1], row + 1)
            left, right = min(box[2], col), max(box[3], col + width)
            joined = (bottom - top) * (right - left)
            waste = (joined - area - width) * plan.tile**2
            if waste <= _CALL_IN_PAIRS and joined * plan.tile**2 <= _RECTANGLE_PAIRS:
                made[-1].append(i)
                area, box = joined, (top, bottom, left, right)
                continue
        made.append([i])
        area, box = width, (row, row + 1, col, col + width)
    return [_rectangle(plan, runs[np.array(members)]) for members in made]


def _rectangle(plan: Plan, runs: _Runs) -> Strided:
    tile, length = plan.tile, plan.length
    top, left = int(runs.row.min()), int(runs.col.min())
    bottom, right = int(runs.row.max()) + 1, int((runs.col + runs.width).max())
    patterns = np.full((1, bottom - top, right - left), NOT_SEEN)
    for row, col, width, at in zip(runs.row, runs.col, runs.width, runs.at, strict=True):
        patterns[0, row - top, col - left : col - left + width] = plan.pattern[at : at + width]
    return Strided(
        plan=plan,
        patterns=patterns,
        n=1,
        q_start=top * tile,
        q_step=0,
        q_size=min(bottom * tile, length) - top * tile,
        k_start=left * tile,
        k_step=0,
        k_size=min(right * tile, length) - left * tile,
    )


def _gathered(plan: Plan, runs: _Runs) -> list[Group]:
    """Rows with scattered key blocks, those with equally many together."""
    rows, first = np.unique(runs.row, return_index=True)
    counts = np.add.reduceat(runs.width, first)
    index = np.concatenate(
        [at + np.arange(width) for at, width in zip(runs.at, runs.width, strict=True)]
    )
    begins = np.cumsum(counts) - counts
    made: list[Group] = []
    for count in np.unique(counts):
        which = counts == count
        tiles = index[begins[which][:, None] + np.arange(count)]
        made.append(
            Gathered(
                plan=plan,
                patterns=plan.pattern[tiles][:, None, :],
                n=len(tiles),
                q_size=plan.tile,
                k_size=int(count) * plan.tile,
                rows=rows[which],
                cols=plan.cols[tiles],
            )
        )
    return made
