"""The points of a figure: which cells make a line, where it goes, and where cells failed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from spanwise.fairness import crossed_keys
from spanwise.figures import Figure, is_share, scale, words
from spanwise.palette import natural
from spanwise.scaling import COSTS, exponent_of, steady
from spanwise.statistics import Estimate, mean_interval
from spanwise.summary import BASE, settings, stated
from spanwise.tables import Study

MAX_SERIES = 24
MAX_PANELS = 9
_MAX_RUNS = 12


@dataclass
class Line:
    """One line: its points by rising x (or length), and the x at which its cells failed."""

    name: tuple[str, ...]
    label: str
    x: list[Any] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    dashed: list[float] = field(default_factory=list)
    failed: list[tuple[Any, str]] = field(default_factory=list)
    runs: list[tuple[list[float], list[float]]] = field(default_factory=list)
    exponent: Estimate | None = None
    chance: float = math.nan

    def sort_by_x(self) -> None:
        """Put the points in order of x, where length gives them none."""
        order = sorted(range(len(self.x)), key=lambda i: self.x[i])
        for name in ("x", "y", "low", "high", "dashed"):
            setattr(self, name, [getattr(self, name)[i] for i in order])


@dataclass
class Panel:
    """One panel: its title and lines."""

    title: str
    lines: list[Line] = field(default_factory=list)


@dataclass
class Points:
    """All panels of a figure; ``left_out`` says how many series or panels were too many."""

    panels: list[Panel]
    numeric_x: bool
    by_variant: bool
    left_out: str = ""
    dashed: str = ""


def is_cost(column: str) -> bool:
    """Say whether a column is measured by cost, not by training."""
    return column.startswith(
        ("forward_", "train_ms", "train_peak", "x_", "flops", "calibration", "decode_", "cache_")
    )


def select(
    cells: pd.DataFrame, where: Mapping[str, Any], constant: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """Return the cells whose columns have the wanted values (a list: any of them).

    constant: what all cells of the study have in common, and so no column.
    """
    alike = constant or {}
    for column, wanted in where.items():
        allowed = {_text(v) for v in (wanted if isinstance(wanted, list | tuple) else [wanted])}
        if column in cells:
            cells = cells[[_text(v) in allowed for v in cells[column]]]
        elif column not in alike or _text(alike[column]) not in allowed:
            return cells.iloc[:0]
    return cells


def with_parameters(cells: pd.DataFrame, figure: Figure) -> pd.DataFrame:
    """Return the cells with those of a variant's own parameters that the figure names.

    ``variant.window`` is read from ``variant_params``; NaN where a variant has no such parameter,
    or not a number; a cell without the x has no place in the figure.
    """
    named = [figure.x, *(figure.by or ()), *(figure.facet or ()), *figure.where]
    for column in named:
        group, _, parameter = column.partition(".")
        if group != "variant" or not parameter or column in cells:
            continue
        given = r"(?:^|, )" + re.escape(parameter) + "=([^,]*)"
        values = cells["variant_params"].str.extract(given, expand=False)
        cells = cells.assign(**{column: pd.to_numeric(values, errors="coerce")})
        if column == figure.x:
            cells = cells[cells[column].notna()]
    return cells


def _text(value: Any) -> str:
    """Return one text for equal values, whatever number or text type they came as."""
    if value is None or value is pd.NA:
        return "null"
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return "null" if math.isnan(number) else f"{number:.12g}"


def points(study: Study, cells: pd.DataFrame, figure: Figure) -> Points | None:
    """Return what ``figure`` shows of the cells (of ``choose_rates``); None where there is nothing.

    A point is the mean over the seeds of one setting with its 95% interval, as in summary.csv.
    """
    cells = select(with_parameters(cells, figure), figure.where, study.constant)
    detail = "." in figure.y and figure.y.split(".")[0] in study.details
    if not detail and not _is_number(cells, figure.y):
        return None
    if not detail and figure.x not in cells:
        return None
    relevant = cells["measure"] != ("accuracy" if is_cost(figure.y) else "cost")
    cells = cells[relevant | (not detail and cells[figure.y].notna())]
    keys = settings(study)
    crossed = [k for k in crossed_keys(cells, keys) if k != figure.x]
    facet = _facets(cells, figure, detail)
    by = list(figure.by) if figure.by is not None else ["variant", "variant_params", *crossed]
    if figure.by is None and figure.x != "length" and figure.x in keys and _varies(cells, "length"):
        by.append("length")
    by = [c for c in by if c in cells and c not in facet and c != figure.x]
    cells, left_out = _cut(cells, by)
    panels = []
    for values, group in _grouped(cells, facet):
        panel = Panel(_title(facet, values))
        for name, rows in _grouped(group, by):
            line = Line(tuple(_text(v) for v in name), _label(by, name, rows, cells))
            if detail:
                _follow_detail(line, study, rows, figure)
            else:
                _follow(line, rows, figure, keys)
            if line.y or line.failed or line.runs:
                panel.lines.append(line)
        panel.lines.sort(key=lambda line: natural(line.name))
        if any(line.y or line.runs for line in panel.lines):
            panels.append(panel)
    if not panels:
        return None
    if len(panels) > MAX_PANELS:
        left_out.append(f"{len(panels) - MAX_PANELS:,} of {len(panels):,} panels")
    numeric = detail or _is_number(cells, figure.x)
    by_variant = bool(by) and by[0] == "variant" and _varies(cells, "variant")
    dashed = words(figure.dashed) if figure.dashed else ""
    return Points(panels[:MAX_PANELS], numeric, by_variant, " and ".join(left_out), dashed)


def _cut(cells: pd.DataFrame, by: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return the cells of the first series, by name, where there are too many to draw."""
    found = _grouped(cells, by)
    if len(found) <= MAX_SERIES:
        return cells, []
    ordered = sorted(found, key=lambda series: natural(_text(v) for v in series[0]))
    kept = pd.concat([rows for _, rows in ordered[:MAX_SERIES]])
    return kept, [f"{len(found) - MAX_SERIES:,} of {len(found):,} series"]


def _is_number(cells: pd.DataFrame, column: str) -> bool:
    """Say whether a column holds numbers, and any at all."""
    if column not in cells or cells[column].isna().all():
        return False
    return pd.api.types.is_numeric_dtype(cells[column]) and cells[column].dtype != "boolean"


def _varies(cells: pd.DataFrame, column: str) -> bool:
    return cells[column].nunique(dropna=False) > 1


def _facets(cells: pd.DataFrame, figure: Figure, detail: bool) -> list[str]:
    if figure.facet is not None:
        return [c for c in figure.facet if c in cells]
    wanted = ["task", "length"] if detail else ["task"]
    return [c for c in wanted if _varies(cells, c) and c != figure.x]


def _grouped(cells: pd.DataFrame, columns: list[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    if not columns:
        return [((), cells)]
    groups = cells.groupby(columns, dropna=False, sort=True)
    return [(name if isinstance(name, tuple) else (name,), rows) for name, rows in groups]


def _title(facet: list[str], values: tuple[Any, ...]) -> str:
    return ", ".join(_named(c, v) for c, v in zip(facet, values, strict=True))


def _named(column: str, value: Any) -> str:
    if column in ("variant", "task"):
        return _text(value)
    if column == "length":
        return f"L = {_text(value)}"
    return f"{column.rsplit('.', 1)[-1]} = {_text(value)}"


def _label(by: list[str], name: tuple[Any, ...], rows: pd.DataFrame, cells: pd.DataFrame) -> str:
    parts = []
    if "variant" in by and (_varies(cells, "variant") or len(by) <= 2):
        whole = "variant_params" in by or rows["variant_params"].nunique() == 1
        parts.append(str(rows["variant_label"].iloc[0] if whole else rows["variant"].iloc[0]))
    elif "variant_params" in by and _varies(cells, "variant_params"):
        parts.append(str(rows["variant_label"].iloc[0]))
    for column, value in zip(by, name, strict=True):
        if column not in ("variant", "variant_params") and _varies(cells, column):
            parts.append(_named(column, value))
    return ", ".join(parts) or str(rows["variant_label"].iloc[0])


def _follow(line: Line, rows: pd.DataFrame, figure: Figure, keys: list[str]) -> None:
    """Follow ``figure.y`` over x: a point a value of a setting, or a setting of a measured x."""
    setting = figure.x in BASE or "." in figure.x or not pd.api.types.is_float_dtype(rows[figure.x])
    along = [figure.x] if setting else [key for key in keys if key in rows]
    by_length: dict[int, list[float]] = {}
    compared = steady(rows, figure.y)
    for values, group in rows.groupby(along, dropna=setting, sort=True):
        x: Any = values[0]
        if not setting:
            x = float(group[figure.x].astype(float).mean()) * scale(figure.x)
            if not math.isfinite(x):
                continue
        found = stated(figure.y, group)
        if found[f"{figure.y}_n"]:
            factor = scale(figure.y)
            line.x.append(x)
            line.y.append(found[figure.y] * factor)
            line.low.append(found[f"{figure.y}_low"] * factor)
            line.high.append(found[f"{figure.y}_high"] * factor)
            beside = group[figure.dashed].mean() if figure.dashed in group else math.nan
            line.dashed.append(float(beside) * factor)
        lost = group.loc[(group["status"] != "ok") & group[figure.y].isna(), "status"]
        line.failed += [(x, status) for status in sorted(set(lost))]
        if figure.x == "length":
            measured = group[compared].dropna().astype(float)
            by_length[int(x)] = [v for v in measured if math.isfinite(v) and v > 0]
    if not setting and rows["length"].nunique() < 2:
        line.sort_by_x()
    if figure.y == "accuracy" and "chance" in rows:
        line.chance = float(rows["chance"].astype(float).mean())
    by_length = {length: values for length, values in by_length.items() if values}
    if figure.y in COSTS and len(by_length) > 1:
        line.exponent = exponent_of(by_length)[0]


def _follow_detail(line: Line, study: Study, rows: pd.DataFrame, figure: Figure) -> None:
    """Follow a table in the details: each seed's run for a curve, else means by x."""
    name, _, y = figure.y.partition(".")
    x = figure.x.partition(".")[2] if figure.x.startswith(f"{name}.") else figure.x
    tables = [study.details[name].get(key) for key in rows["key"]]
    runs = [(t[x], t[y]) for t in tables if t is not None and x in t and y in t]
    if name == "curve":
        line.runs = [(list(a), list(b * scale(y))) for a, b in runs[:_MAX_RUNS]]
        return
    gathered: dict[float, list[float]] = {}
    for a, b in runs:
        for place, value in zip(a, b, strict=True):
            if math.isfinite(place) and math.isfinite(value):
                gathered.setdefault(float(place), []).append(float(value) * scale(y))
    for place in sorted(gathered):
        mean = mean_interval(gathered[place])
        line.x.append(place)
        line.y.append(mean.value)
        share = is_share(figure.y)
        line.low.append(max(mean.low, 0.0) if share else mean.low)
        line.high.append(min(mean.high, 1.0) if share else mean.high)
        line.dashed.append(math.nan)
