"""A study's claim and the measured answer, from data alone: no text from a file is ever run.

An experiment declares them in its ``report`` block::

    claim: Attention without positions cannot tell order.
    answers:
      - say: Without positions accuracy is {none}; with rotary positions it is {rotary}.
        values:
          none: {of: accuracy, where: {model.positions: none}}
          rotary: {of: accuracy, where: {model.positions: rotary}}
          gap: {difference: [rotary, none]}
        holds: {none: {below: 0.6}, rotary: {above: 0.9}, gap: {above: 0.3}}

A value is a column of one of the tables (``table``: cells by default, or summary, comparison,
scaling, crossover), ``where`` other columns have given values; ``take`` says how several are
made one: mean (with a 95% interval over the rows), median, least, most. Or it is the ``ratio`` or
``difference`` of two values before it (a difference is paired by seed where both have one row a
seed). Each condition compares a value by name: above, below, within (two bounds). It holds where
the whole interval does, fails where none of it does, and is open in between.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from spanwise.errors import ConfigError, nearest
from spanwise.series import select
from spanwise.statistics import paired_difference
from spanwise.summary import stated

Verdict = Literal["holds", "does not hold", "is open", "is not measured", ""]
TABLES = ("cells", "summary", "comparison", "scaling", "crossover")
TAKES = ("mean", "median", "least", "most")
COMPARISONS = ("above", "below", "within")
_VALUE_KEYS = ("of", "table", "where", "take", "ratio", "difference")
_NAMED = re.compile(r"\{([A-Za-z_]\w*)(?:\.(value|low|high|n))?\}")


@dataclass(frozen=True)
class Value:
    """A measured figure with its 95% interval (NaN where there is none) and its count."""

    value: float
    low: float
    high: float
    n: int
    by_seed: Mapping[int, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the value with its interval: ``0.981 [0.97, 0.99]``."""
        if math.isnan(self.value):
            return "not measured"
        if math.isnan(self.low) or math.isnan(self.high):
            return digits(self.value)
        return f"{digits(self.value)} [{digits(self.low)}, {digits(self.high)}]"


@dataclass(frozen=True)
class Answer:
    """A sentence with measured figures, and what it says of the claim."""

    text: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()


def answer(
    question: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame],
    constant: Mapping[str, Any] | None = None,
) -> list[Answer]:
    """Return the measured answers of a report block; raises ``ConfigError`` for a malformed one.

    constant: the config's keys that have one value in all of the study's cells, and so no column.
    """
    wanted = question.get("answers") or []
    if not isinstance(wanted, list | tuple):
        raise ConfigError(f"report.answers: a list is needed, found {wanted!r}")
    alike = constant or {}
    return [_answer(f"report.answers.{i}", entry, tables, alike) for i, entry in enumerate(wanted)]


def overall(answers: list[Answer]) -> Verdict:
    """Return the verdict over all answers: the worst of theirs."""
    order: tuple[Verdict, ...] = ("does not hold", "is not measured", "is open", "holds")
    found = {each.verdict for each in answers}
    return next((verdict for verdict in order if verdict in found), "")


def digits(value: float) -> str:
    """Return a number as a sentence has it: three digits, thousands with commas."""
    if math.isnan(value):
        return "not measured"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    rounded = float(text)  # .9996 has the digits of 1.00, not of .999
    return text if "e" in text else f"{value:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def _keys(place: str, entry: Any, allowed: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{place}: a mapping is needed, found {entry!r}")
    for key in entry:
        if key not in allowed:
            hint = nearest(str(key), allowed)
            raise ConfigError(f"{place}.{key}: allowed are {', '.join(allowed)}.{hint}")
    return entry


def _answer(
    place: str, entry: Any, tables: Mapping[str, pd.DataFrame], constant: Mapping[str, Any]
) -> Answer:
    entry = _keys(place, entry, ("say", "values", "holds"))
    say = entry.get("say")
    if not isinstance(say, str):
        raise ConfigError(f"{place}.say: a sentence is needed, found {say!r}")
    values: dict[str, Value] = {}
    wanted = entry.get("values") or {}
    if not isinstance(wanted, Mapping):
        raise ConfigError(f"{place}.values: a mapping of names is needed, found {wanted!r}")
    for name, spec in wanted.items():
        values[str(name)] = _value(f"{place}.values.{name}", spec, values, tables, constant)
    for name, _ in _NAMED.findall(say):
        if name not in values:
            raise ConfigError(
                f"{place}.say: {{{name}}} is none of the values{nearest(name, values)}"
            )
    text = _NAMED.sub(lambda m: _shown(values[m[1]], m[2]), say)
    verdicts, reasons = [], []
    for name, conditions in (entry.get("holds") or {}).items():
        if name not in values:
            raise ConfigError(f"{place}.holds.{name}: no such value.{nearest(str(name), values)}")
        for comparison, bound in _keys(f"{place}.holds.{name}", conditions, COMPARISONS).items():
            verdict = compare(values[name], comparison, bound, f"{place}.holds.{name}")
            verdicts.append(Answer("", verdict))
            if verdict != "holds":
                limit = " to ".join(digits(float(b)) for b in np.atleast_1d(bound))
                reasons.append(f"{name} is {values[name]}, expected {comparison} {limit}")
    return Answer(text, overall(verdicts), tuple(reasons))


def _shown(value: Value, part: str | None) -> str:
    text = digits(float(getattr(value, part))) if part else str(value)
    return f"({text})" if math.isnan(value.value) else text


def compare(value: Value, comparison: str, bound: Any, place: str = "holds") -> Verdict:
    """Return whether a value's whole interval lies above, below or within the bound(s)."""
    try:
        bounds = [float(b) for b in (bound if isinstance(bound, list | tuple) else [bound])]
    except (TypeError, ValueError):
        raise ConfigError(f"{place}.{comparison}: numbers are needed, found {bound!r}") from None
    if len(bounds) != (2 if comparison == "within" else 1):
        count = "two numbers are" if comparison == "within" else "one number is"
        raise ConfigError(f"{place}.{comparison}: {count} needed, found {bound!r}")
    if math.isnan(value.value):
        return "is not measured"
    low, high = (value.value if math.isnan(end) else end for end in (value.low, value.high))
    least = -math.inf if comparison == "below" else bounds[0]
    most = math.inf if comparison == "above" else bounds[-1]
    if least <= low and high <= most:
        return "holds"
    return "does not hold" if high < least or low > most else "is open"


def _value(
    place: str,
    spec: Any,
    before: Mapping[str, Value],
    tables: Mapping[str, pd.DataFrame],
    constant: Mapping[str, Any],
) -> Value:
    spec = _keys(place, spec, _VALUE_KEYS)
    made = [key for key in ("of", "ratio", "difference") if key in spec]
    if len(made) != 1:
        raise ConfigError(f"{place}: one of of, ratio, difference is needed, found {dict(spec)!r}")
    if made[0] != "of":
        return _derived(f"{place}.{made[0]}", made[0], spec[made[0]], before)
    name, take = spec.get("table", "cells"), spec.get("take", "mean")
    for key, found, allowed in (("table", name, TABLES), ("take", take, TAKES)):
        if found not in allowed:
            hint = nearest(str(found), allowed)
            raise ConfigError(f"{place}.{key}: one of {', '.join(allowed)}, found {found!r}.{hint}")
    if not isinstance(spec.get("where", {}), Mapping):
        raise ConfigError(f"{place}.where: a mapping of columns to values is needed")
    rows = select(tables[name], spec.get("where", {}), constant)
    column = str(spec["of"])
    nothing = Value(math.nan, math.nan, math.nan, 0)
    if column not in rows or not pd.api.types.is_numeric_dtype(rows[column]):
        return nothing
    rows = rows[rows[column].notna()]
    values = [float(v) for v in rows[column]]
    if not values:
        return nothing
    if (take != "mean" and len(values) > 1) or not all(map(math.isfinite, values)):
        taken = {"median": np.median(values), "least": min(values), "most": max(values)}
        return Value(float(taken.get(take, np.mean(values))), math.nan, math.nan, len(values))
    mean = stated(column, rows)
    low, high, n = (mean[f"{column}_{part}"] for part in ("low", "high", "n"))
    return Value(mean[column], low, high, int(n), _seeds(rows, column))


def _seeds(rows: pd.DataFrame, column: str) -> dict[int, float]:
    """Return the value of each seed, where each has one; else nothing."""
    if "seed" not in rows or rows["seed"].isna().any() or rows["seed"].duplicated().any():
        return {}
    return dict(zip(rows["seed"].astype(int).tolist(), rows[column].tolist(), strict=True))


def _derived(place: str, kind: str, names: Any, before: Mapping[str, Value]) -> Value:
    if not isinstance(names, list | tuple) or len(names) != 2:
        raise ConfigError(f"{place}: the names of two values are needed, found {names!r}")
    for name in names:
        if name not in before:
            raise ConfigError(f"{place}: {name!r} is no value before it.{nearest(name, before)}")
    a, b = (before[name] for name in names)
    if kind == "difference" and len(a.by_seed.keys() & b.by_seed.keys()) > 1:
        paired = paired_difference(a.by_seed, b.by_seed)
        return Value(paired.value, paired.low, paired.high, paired.n)
    # The interval of two independent ones: half widths add in squares, for a ratio relatively.
    halves = [(each.high - each.low) / 2 for each in (a, b)]
    if kind == "difference":
        value, half = a.value - b.value, math.hypot(*halves)
    elif not b.value or math.isnan(b.value):
        return Value(math.nan, math.nan, math.nan, 0)
    else:
        value = a.value / b.value
        relative = [
            h / abs(e.value) if e.value else math.nan for h, e in zip(halves, (a, b), strict=True)
        ]
        half = abs(value) * math.hypot(*relative)
    return Value(value, value - half, value + half, min(a.n, b.n))
