"""What differs between variants, paired by seed, and what made the rows unequal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from spanwise.statistics import Estimate, paired_difference
from spanwise.summary import BASE, RATE, choose_rates, settings
from spanwise.tables import Study

METRICS = [
    "accuracy",
    "bits_per_byte",
    "forward_ms",
    "train_ms",
    "forward_peak_bytes",
    "train_peak_bytes",
]
"""What is compared where both sides measured it; costs also as a ratio."""

_MAX_CONTENDERS = 12
_MAX_PARAMETER_DIFFERENCE = 0.01
_EQUAL = {
    "n_heads": "heads",
    "steps": "steps",
    "tokens": "tokens",
    "batch": "batch",
    "dtype": "precision",
    "threads": "threads",
    "device": "device",
    "lr_grid_size": "learning-rate grid size",
    RATE: "learning rate",
}
_CHOSEN = {RATE, "lr_grid_size"}


def crossed_keys(cells: pd.DataFrame, keys: list[str]) -> list[str]:
    """Return the swept ones of ``keys`` that vary while task, variant and length stay the same.

    The others follow from those (a number of pairs set for each length, heads set for one
    variant): they do not keep two variants from being compared.
    """
    crossed = []
    for key in keys:
        if key not in BASE:
            within = cells[cells[key].notna()].groupby(BASE, dropna=False)[key].nunique()
            if (within > 1).any():
                crossed.append(key)
    return crossed


def reference(study: Study) -> tuple[str, str] | None:
    """Return the (variant, variant_params) that the others are compared against.

    The ``reference`` of the report block names a variant; by default it is the one whose queries
    see the most keys, the first by name where several do.
    """
    known = study.cells[["variant", "variant_params"]].drop_duplicates()
    named = study.question.get("reference")
    if isinstance(named, str) and (known["variant"] == named).any():
        return named, str(known.loc[known["variant"] == named, "variant_params"].iloc[0])
    cells = study.cells[study.cells["keys_per_query"].notna()]
    if cells.empty:
        return None
    share = (cells["keys_per_query"] / cells["length"].astype(float)).round(6)
    sees = share.groupby([cells["variant"], cells["variant_params"]]).max()
    variant, params = min(sees.index, key=lambda name: (-sees[name], name))
    return str(variant), str(params)


def compare(study: Study) -> pd.DataFrame:
    """Return the differences between variants at equal settings, paired by seed.

    One row a pair, setting and metric: ``difference`` is the mean of (variant - against) over the
    seeds both finished, with Student's 95% interval; costs also give the ratio (its interval from
    the paired logarithms). ``flags`` says what makes the two unequal. In a study of one variant,
    the values of a swept key are compared instead. Past 12 contenders only the differences from
    the reference are kept.
    """
    chosen = choose_rates(study)
    keys = settings(study)
    rows = []
    for setting, first, second in _pairs(study, chosen, keys):
        rows += _compare_pair(setting, first, second)
    return pd.DataFrame(rows)


Name = tuple[object, ...]
_Pair = tuple[dict[str, object], tuple[Name, pd.DataFrame], tuple[Name, pd.DataFrame]]


def _pairs(study: Study, cells: pd.DataFrame, keys: list[str]) -> Iterator[_Pair]:
    crossed = crossed_keys(cells, keys)
    contenders = ["variant", "variant_params"]
    first = reference(study)
    if len(cells[contenders].drop_duplicates()) > 1:
        yield from _pairs_of(cells, contenders, ["task", "length", *crossed], first)
        return
    for key in crossed:
        others = [k for k in crossed if k != key]
        fixed = ["task", "variant", "variant_params", "length", *others]
        yield from _pairs_of(cells, [key], fixed, None)


def _pairs_of(
    cells: pd.DataFrame, contenders: list[str], fixed: list[str], first: Name | None
) -> Iterator[_Pair]:
    for values, group in cells.groupby(fixed, dropna=False, sort=False):
        setting = dict(zip(fixed, values, strict=True))
        sides: list[tuple[Name, pd.DataFrame]] = [
            (name, rows) for name, rows in group.groupby(contenders, sort=True)
        ]
        sides = [(name if isinstance(name, tuple) else (name,), rows) for name, rows in sides]
        sides.sort(key=lambda side: side[0] != first)
        pairs = itertools.combinations(sides, 2)
        for one, other in itertools.islice(
            pairs, None if len(sides) <= _MAX_CONTENDERS else len(sides) - 1
        ):
            named = dict(setting)
            if len(contenders) == 1:
                named["swept"] = contenders[0]
            yield named, other, one


def _compare_pair(
    setting: dict[str, object],
    first: tuple[Name, pd.DataFrame],
    second: tuple[Name, pd.DataFrame],
) -> list[dict[str, object]]:
    (name, one), (against, other) = first, second
    if "swept" in setting:
        setting = setting | {"value": name[0], "against_value": against[0]}
        against = (setting["variant"], setting["variant_params"])
    else:
        setting = setting | {"variant": name[0], "variant_params": name[1]}
    labels = {
        "label": one["variant_label"].iloc[0],
        "against_label": other["variant_label"].iloc[0],
    }
    rows: list[dict[str, object]] = []
    for metric in METRICS:
        ours, theirs = _by_seed(one, metric), _by_seed(other, metric)
        if not set(ours) & set(theirs):
            continue
        difference = paired_difference(ours, theirs)
        row: dict[str, object] = {"metric": metric} | setting
        row |= {"against": against[0], "against_params": against[1]}
        row |= labels
        row["n"] = difference.n
        row |= _columns("difference", difference)
        logs = [{s: math.log(v) for s, v in side.items() if v > 0} for side in (ours, theirs)]
        if metric not in METRICS[:2] and set(logs[0]) & set(logs[1]):
            ratio = paired_difference(logs[0], logs[1])
            row |= _columns("ratio", ratio, math.exp)
        row["flags"] = "; ".join(unequal(one, other, metric))
        rows.append(row)
    return rows


def _columns(
    name: str, estimate: Estimate, undo: Callable[[float], float] = float
) -> dict[str, float]:
    ends = ("", estimate.value), ("_low", estimate.low), ("_high", estimate.high)
    return {name + end: undo(value) for end, value in ends}


def _by_seed(cells: pd.DataFrame, metric: str) -> dict[int, float]:
    done = cells[cells[metric].notna() & cells["seed"].notna()]
    values = done.groupby(done["seed"].astype(int))[metric].mean()
    pairs = zip(values.index.tolist(), values.tolist(), strict=True)
    return {seed: value for seed, value in pairs if np.isfinite(value)}


def unequal(one: pd.DataFrame, other: pd.DataFrame, metric: str) -> list[str]:
    """Return in words what differs between two sides of a comparison besides the variant."""
    training = metric in METRICS[:2]
    flags = []
    for column, word in _EQUAL.items():
        if column in _CHOSEN and (not training or _tuned(one, other, column)):
            continue
        values = [_values(side, column) for side in (one, other)]
        if values[0] != values[1] and all(values):
            flags.append(f"{word}: {_join(values[0])} against {_join(values[1])}")
    counts = [side["n_params"].dropna().astype(float) for side in (one, other)]
    if all(len(c) for c in counts):
        share = counts[0].mean() / counts[1].mean() - 1
        if abs(share) > _MAX_PARAMETER_DIFFERENCE:
            flags.append(f"parameters: {share:+.1%}")
    if not training and metric.endswith("_ms") and any(map(_contended, (one, other))):
        flags.append("contended timing")
    if training and _other_data(one, other):
        flags.append("training data at the same seed")
    lost = [(side["status"] != "ok").sum() for side in (one, other)]
    if any(lost):
        flags.append(f"cells that failed: {lost[0]} against {lost[1]}")
    return flags


def _other_data(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    if "data_hash" not in one:
        return False
    by_seed = [
        side.dropna(subset=["data_hash"]).groupby("seed")["data_hash"] for side in (one, other)
    ]
    seen = [{seed: set(found) for seed, found in side} for side in by_seed]
    return any(seen[0][seed] != seen[1][seed] for seed in set(seen[0]) & set(seen[1]))


def _tuned(one: pd.DataFrame, other: pd.DataFrame, column: str) -> bool:
    # Where both had a grid, different winners are the point of the grid, not an inequality.
    return column == RATE and all(side["lr_grid"].notna().any() for side in (one, other))


def _values(cells: pd.DataFrame, column: str) -> list[str]:
    if column not in cells:
        return []
    return sorted({f"{v:g}" if isinstance(v, float) else str(v) for v in cells[column].dropna()})


def _join(values: list[str]) -> str:
    return "/".join(values[:3]) + ("/…" if len(values) > 3 else "")


def _contended(cells: pd.DataFrame) -> bool:
    return "contended" in cells and bool((cells["contended"] == True).any())  # noqa: E712
