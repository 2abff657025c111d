"""What differs between variants, paired by seed, and what made the rows unequal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from spanwise.palette import natural
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

_TRAINING = ("accuracy", "bits_per_byte")
_MAX_CONTENDERS = 12
_MAX_PARAMETER_DIFFERENCE = 0.01
_EQUAL = {
    "n_heads": "heads",
    "batch": "batch",
    "dtype": "precision",
    "threads": "threads",
    "device": "device",
}
_EQUAL_TRAINING = {
    **_EQUAL,
    "steps": "steps",
    "tokens": "tokens",
    "lr_grid_size": "learning-rate grid size",
    RATE: "learning rate",
}
_FACTS = ("n_params", "contended", "data_hash", "lr_grid", "seed", "status", "variant_label")


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
    seeds that measured both, with Student's 95% interval; costs also give the ratio (its interval
    from the paired logarithms). ``flags`` says what makes the two unequal. In a study of one
    variant, the values of a swept key are compared instead. Past 12 contenders only the
    differences from the first, the reference, are kept.
    """
    rows: list[dict[str, object]] = []
    for setting, one, other in _pairs(study, choose_rates(study), settings(study)):
        rows += _compare_pair(setting, one, other)
    return pd.DataFrame(rows)


Name = tuple[object, ...]
Row = dict[str, Any]


@dataclass
class Side:
    """One contender at one setting: its cells as plain rows, without what they lack."""

    name: Name
    rows: list[Row] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The variant's label."""
        return str(self.rows[0].get("variant_label", ""))

    def measured(self, metric: str) -> dict[int, float]:
        """Return the metric's mean by seed."""
        found: dict[int, list[float]] = {}
        for row in self.rows:
            if math.isfinite(row.get(metric, math.nan)) and "seed" in row:
                found.setdefault(int(row["seed"]), []).append(float(row[metric]))
        return {seed: sum(values) / len(values) for seed, values in found.items()}

    def facts(self, column: str, metric: str) -> list[str]:
        """Return the different values of a column in the cells that measured the metric."""
        values = {row[column] for row in self.rows if metric in row and column in row}
        return sorted(f"{v:g}" if isinstance(v, float) else str(v) for v in values)


_Pair = tuple[dict[str, object], Side, Side]


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
    needed = {*contenders, *fixed, *METRICS, *_EQUAL_TRAINING, *_FACTS} & set(cells.columns)
    by_setting: dict[Name, dict[Name, Side]] = {}
    for row in _plain_rows(cells[sorted(needed)]):
        if all(key in row for key in contenders):
            name = tuple(row[key] for key in contenders)
            sides = by_setting.setdefault(tuple(row.get(key) for key in fixed), {})
            sides.setdefault(name, Side(name)).rows.append(row)
    for values, sides in by_setting.items():
        ordered = sorted(sides.values(), key=lambda side: (side.name != first, natural(side.name)))
        pairs = itertools.combinations(ordered, 2)
        kept = None if len(ordered) <= _MAX_CONTENDERS else len(ordered) - 1
        for one, other in itertools.islice(pairs, kept):
            setting = dict(zip(fixed, values, strict=True))
            if len(contenders) == 1:
                setting["swept"] = contenders[0]
            yield setting, other, one


def _plain_rows(cells: pd.DataFrame) -> Iterator[Row]:
    columns = list(cells.columns)
    values = [cells[column].astype(object).tolist() for column in columns]
    for entries in zip(*values, strict=True):
        row = zip(columns, entries, strict=True)
        yield {k: v for k, v in row if v is not None and v is not pd.NA and v == v}


def _compare_pair(setting: dict[str, object], one: Side, other: Side) -> list[dict[str, object]]:
    if "swept" in setting:
        setting = setting | {"value": one.name[0], "against_value": other.name[0]}
        against = (setting["variant"], setting["variant_params"])
    else:
        setting = setting | dict(zip(("variant", "variant_params"), one.name, strict=True))
        against = (other.name[0], other.name[1])
    rows: list[dict[str, object]] = []
    for metric in METRICS:
        ours, theirs = one.measured(metric), other.measured(metric)
        if not ours.keys() & theirs.keys():
            continue
        difference = paired_difference(ours, theirs)
        row: dict[str, object] = {"metric": metric} | setting
        row |= {"against": against[0], "against_params": against[1]}
        row |= {"label": one.label, "against_label": other.label, "n": difference.n}
        row |= _columns("difference", difference)
        logs = [{s: math.log(v) for s, v in side.items() if v > 0} for side in (ours, theirs)]
        if metric not in _TRAINING and logs[0].keys() & logs[1].keys():
            row |= _columns("ratio", paired_difference(logs[0], logs[1]), math.exp)
        row["flags"] = "; ".join(unequal(one, other, metric))
        rows.append(row)
    return rows


def _columns(
    name: str, estimate: Estimate, undo: Callable[[float], float] = float
) -> dict[str, float]:
    ends = ("", estimate.value), ("_low", estimate.low), ("_high", estimate.high)
    return {name + end: undo(value) for end, value in ends}


def unequal(one: Side, other: Side, metric: str) -> list[str]:
    """Return in words what differs between two sides of a comparison besides the variant."""
    training = metric in _TRAINING
    flags = []
    # Where both had a grid, different winners are the point of the grid, not an inequality.
    tuned = all(side.facts("lr_grid", metric) for side in (one, other))
    for column, word in (_EQUAL_TRAINING if training else _EQUAL).items():
        ours, theirs = one.facts(column, metric), other.facts(column, metric)
        if ours != theirs and ours and theirs and not (column == RATE and tuned):
            flags.append(f"{word}: {_join(ours)} against {_join(theirs)}")
    sizes = [_mean_size(side, metric) for side in (one, other)]
    if all(sizes) and abs(sizes[0] / sizes[1] - 1) > _MAX_PARAMETER_DIFFERENCE:
        flags.append(f"parameters: {sizes[0] / sizes[1] - 1:+.1%}")
    contended = [row.get("contended") for side in (one, other) for row in side.rows]
    if metric.endswith("_ms") and any(contended):
        flags.append("contended timing")
    if training and _other_data(one, other):
        flags.append("training data at the same seed")
    lost = [sum(row["status"] != "ok" for row in side.rows) for side in (one, other)]
    if any(lost):
        flags.append(f"cells that failed: {lost[0]} against {lost[1]}")
    return flags


def _mean_size(side: Side, metric: str) -> float:
    sizes = [row["n_params"] for row in side.rows if metric in row and "n_params" in row]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _other_data(one: Side, other: Side) -> bool:
    seen = [
        {row["seed"]: row["data_hash"] for row in side.rows if "data_hash" in row}
        for side in (one, other)
    ]
    return any(seen[0][seed] != seen[1][seed] for seed in seen[0].keys() & seen[1].keys())


def _join(values: Sequence[str]) -> str:
    return "/".join(values[:3]) + ("/…" if len(values) > 3 else "")
