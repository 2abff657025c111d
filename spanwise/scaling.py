"""How cost grows with length: fitted exponents, and where one variant overtakes another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from spanwise.fairness import reference
from spanwise.statistics import Estimate, crossover, scaling_exponent
from spanwise.summary import RATE
from spanwise.tables import Study

COSTS = ["forward_ms", "train_ms", "forward_peak_bytes", "train_peak_bytes"]
_LEAST_LENGTHS = 4
_SETTLED = 0.75
_MOST_SAMPLES = 60
_MANY = 40


def series_keys(study: Study) -> list[str]:
    """Return the columns that stay fixed while a cost is followed over length."""
    keys = ["task", "variant", "variant_params"]
    cells = study.cells[study.cells["length"].notna() & study.cells[COSTS].notna().any(axis=1)]
    for key in study.swept:
        followed = cells.groupby("length")[key].nunique().max()
        # A key with one value at each length (pairs set by length) moves along with it; the
        # training's own settings do not change what a layer costs.
        if followed > 1 and not key.startswith("train."):
            keys.append(key)
    return keys


def fit(study: Study, costs: list[str] | None = None) -> pd.DataFrame:
    """Return the exponent of each cost against length, a row a series and cost.

    The fit is log-log over the cells' values (times as ``steady`` says), with Student's 95%
    interval, from the length where the fixed cost has become small: ``from_length``, found by
    ``settled``.
    """
    rows = []
    keys = series_keys(study)
    for values, group in _measured(study).groupby(keys, dropna=False, sort=False):
        for cost in costs or COSTS:
            points = _points(group, cost)
            if len(points) < 2:
                continue
            exponent, start = exponent_of(points)
            row = {"metric": cost} | dict(zip(keys, values, strict=True))
            row |= {
                "variant_label": group["variant_label"].iloc[0],
                "exponent": exponent.value,
                "exponent_low": exponent.low,
                "exponent_high": exponent.high,
                "n_lengths": sum(length >= start for length in points),
                "from_length": start,
                "to_length": max(points),
            }
            rows.append(row)
    return pd.DataFrame(rows)


def exponent_of(points: Mapping[int, Sequence[float]]) -> tuple[Estimate, int]:
    """Return the exponent of values given by length, and the length from which it was fitted."""
    start = settled(points)
    # Equal values (exact bytes of several seeds) are one measurement, not several.
    distinct = {n: found if min(found) < max(found) else found[:1] for n, found in points.items()}
    pairs = [(float(length), v) for length, found in distinct.items() for v in found]
    pairs = [pair for pair in pairs if pair[0] >= start]
    return scaling_exponent([p[0] for p in pairs], [p[1] for p in pairs]), start


def settled(points: Mapping[int, Sequence[float]]) -> int:
    """Return the length from which on cost grows as it does in the end.

    Lengths are left out up to the last at which the cost's local exponent, over the next two steps,
    is under three quarters of that of the last two; at least four lengths are kept, below which
    noise decides more than the fixed cost. (Over two steps, because one is the difference of two
    noisy values.)
    """
    lengths = sorted(points)
    if len(lengths) <= _LEAST_LENGTHS:
        return lengths[0]
    medians = np.log([np.median(points[length]) for length in lengths])
    logs = np.log(lengths)
    slopes = (medians[2:] - medians[:-2]) / (logs[2:] - logs[:-2])
    slow = np.flatnonzero(slopes < _SETTLED * slopes[-1])
    first = int(slow[-1]) + 1 if len(slow) else 0
    return lengths[min(first, len(lengths) - _LEAST_LENGTHS)]


def crossovers(study: Study) -> pd.DataFrame:
    """Return the length from which each variant costs less than the reference.

    With a 95% interval by bootstrap over the repeated measurements of each cell, or over the
    seeds' values where records hold no repetitions. ``length`` is 0 where the variant is cheaper
    at every length measured, infinite where it is not at the longest; ``reading`` says so.
    """
    against = reference(study)
    if against is None:
        return pd.DataFrame()
    keys = series_keys(study)
    other_keys = [key for key in keys if key not in ("variant", "variant_params")]
    rows = []
    contenders = len(study.cells[["variant", "variant_params"]].drop_duplicates())
    resamples = 2000 if contenders <= _MANY else 400
    for values, group in _measured(study).groupby(other_keys, dropna=False, sort=False):
        setting = dict(zip(other_keys, values, strict=True))
        sides = dict(list(group.groupby(["variant", "variant_params"], sort=True)))
        base = sides.pop(against, None)
        if base is None:
            continue
        for (variant, params), cells in sides.items():
            for cost in COSTS:
                row = _cross(cost, cells, base, study, resamples)
                if row:
                    named = {"variant": variant, "variant_params": params}
                    named["variant_label"] = cells["variant_label"].iloc[0]
                    named |= {"against": against[0], "against_params": against[1]}
                    rows.append({"metric": cost} | setting | named | row)
    return pd.DataFrame(rows)


def _thinned(values: list[float]) -> list[float]:
    """Return at most 60 of the values, evenly taken; one where all are the same (exact bytes)."""
    if min(values) == max(values):
        return values[:1]
    return values if len(values) <= _MOST_SAMPLES else values[:: -(-len(values) // _MOST_SAMPLES)]


def _cross(
    cost: str, cells: pd.DataFrame, base: pd.DataFrame, study: Study, resamples: int
) -> dict[str, object] | None:
    ours, theirs = (_points(side, cost, study.samples) for side in (cells, base))
    lengths = sorted(set(ours) & set(theirs))
    if len(lengths) < 2:
        return None
    sides = [[_thinned(side[n]) for n in lengths] for side in (ours, theirs)]
    found = crossover(lengths, sides[0], sides[1], resamples=resamples)
    if found.value == 0:
        reading = f"cheaper at every length from {lengths[0]}"
    elif math.isinf(found.value):
        reading = f"not cheaper at {lengths[-1]}"
    else:
        reading = f"cheaper from {found.value:,.0f}"
    return {
        "length": found.value,
        "length_low": found.low,
        "length_high": found.high,
        "from_length": lengths[0],
        "to_length": lengths[-1],
        "reading": reading,
    }


def steady(cells: pd.DataFrame, cost: str) -> str:
    """Return the column in which ``cost`` is compared between cells.

    Times are: in units of the matrix product timed beside them, where all of the cells have that.
    A shared machine may run one cell at half the speed of the next; it does so for the product too.
    """
    ratio = f"x_calibration_{cost.removesuffix('_ms')}"
    if (
        cost.endswith("_ms")
        and ratio in cells
        and cells.loc[cells[cost].notna(), ratio].notna().all()
    ):
        return ratio
    return cost


def _measured(study: Study) -> pd.DataFrame:
    cells = study.cells
    cells = cells[cells["length"].notna() & cells[COSTS].notna().any(axis=1)]
    return cells if RATE not in cells else cells.drop(columns=RATE)


def _points(
    cells: pd.DataFrame, cost: str, samples: dict[str, dict[str, list[float]]] | None = None
) -> dict[int, list[float]]:
    """Return the values at each length: one a cell, or all of a cell's repeated measurements."""
    points: dict[int, list[float]] = {}
    if cost not in cells:
        return points
    column = steady(cells, cost)
    for key, length, value in zip(cells["key"], cells["length"], cells[column], strict=True):
        repeated = (samples or {}).get(key, {}).get(cost, [value])
        kept = [v for v in repeated if v is not None and np.isfinite(v) and v > 0]
        if kept and length > 0:
            points.setdefault(int(length), []).extend(kept)
    return points
