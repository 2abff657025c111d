"""The page's content: a study's tables cut to what a reader can take in, as plain data.

Nothing here is HTML; the template escapes every text that it is given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from spanwise.answers import digits
from spanwise.fairness import crossed_keys, reference
from spanwise.figures import scale, words
from spanwise.palette import hues, natural
from spanwise.series import is_cost
from spanwise.summary import RATE, better, settings
from spanwise.tables import Study

SHOWN = [
    "accuracy",
    "bits_per_byte",
    "forward_ms",
    "train_ms",
    "forward_peak_bytes",
    "train_peak_bytes",
    "decode_ms",
    "cache_bytes",
]
_MAX_ROWS = 60
_MAX_COLUMNS = 12
_MAX_LISTED = 200


@dataclass(frozen=True)
class Entry:
    """One entry of a table on the page; ``kind`` is its class: number, words, status, best."""

    text: str
    kind: str = ""
    range: str = ""
    colour: str = ""


@dataclass(frozen=True)
class Head:
    """A column's head."""

    text: str
    number: bool = False


@dataclass
class Table:
    """A table on the page, with a word on the rows that it leaves to the csv file."""

    heads: list[Head]
    rows: list[list[Entry]]
    title: str = ""
    left_out: str = ""


@dataclass
class Section:
    """A part of the page under a heading."""

    title: str
    text: str = ""
    tables: list[Table] = field(default_factory=list)
    figures: list[object] = field(default_factory=list)
    command: str = ""


def figure(value: float, low: float = math.nan, high: float = math.nan) -> tuple[str, str]:
    """Return a number and its interval as text."""
    if math.isnan(value):
        return "", ""
    if math.isnan(low) or math.isnan(high) or digits(low) == digits(high):
        return digits(value), ""
    return digits(value), f"[{digits(low)}, {digits(high)}]"


def results(study: Study, summary: pd.DataFrame) -> list[Table]:
    """Return a table a task and metric: a row a variant, a column a length, the best in bold."""
    colours = hues({k: v.get("colour") for k, v in study.displays.items()})
    tables = []
    for task, rows in summary.groupby("task", sort=True):
        for metric in SHOWN:
            if metric in rows and rows[metric].notna().any():
                title = (
                    f"{str(task).capitalize()}: {words(metric)}"
                    if summary["task"].nunique() > 1
                    else ""
                )
                title = title or words(metric)[:1].upper() + words(metric)[1:]
                asked = rows["measure"].map(lambda measure, of=metric: _asks(measure, of))
                known = rows[rows[metric].notna() | ((rows["failed"] != "") & asked)]
                crossed = crossed_keys(known[known[metric].notna()], settings(study))
                tables.append(_pivot(known, metric, title, crossed, colours))
    return tables


def _asks(measure: object, metric: str) -> bool:
    """Say whether cells of this measure were to measure the metric."""
    return "both" in str(measure) or ("cost" in str(measure)) == is_cost(metric)


def _pivot(
    rows: pd.DataFrame, metric: str, title: str, crossed: list[str], colours: dict[str, str]
) -> Table:
    lengths = sorted(rows["length"].dropna().unique())
    shown = lengths[:_MAX_COLUMNS]
    by_length = rows.groupby("length")[metric]
    ends = by_length.max() if better(metric) > 0 else by_length.min()
    best = ends[by_length.nunique() > 1].to_dict()
    columns = ["variant", "variant_params", *crossed]
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    found: list[dict[Any, Any]] = rows.to_dict("records")
    for row in found:
        groups.setdefault(tuple(row[c] for c in columns), []).append(row)
    ordered = sorted(groups.items(), key=lambda group: natural(group[0]))
    made = []
    for name, group in ordered[:_MAX_ROWS]:
        extras = [
            f"{k.rsplit('.', 1)[-1]}={short(v)}"
            for k, v in zip(crossed, name[2:], strict=True)
            if not _missing(v)
        ]
        label = ", ".join([str(group[0]["variant_label"]), *extras])
        # A measured row stands before one of the same length that failed.
        group.sort(key=lambda row: not _missing(row[metric]))
        at = {row["length"]: row for row in group}
        line = [Entry(label, colour=colours.get(str(name[0]), ""))]
        line += [_pivoted(at.get(length), metric, best.get(length)) for length in shown]
        made.append(line)
    left_out = []
    if len(ordered) > _MAX_ROWS:
        left_out.append(f"{len(ordered) - _MAX_ROWS:,} more rows")
    if len(lengths) > len(shown):
        left_out.append(f"{len(lengths) - len(shown)} more lengths")
    heads = [Head("")] + [Head(f"L = {length:,}", number=True) for length in shown]
    note = f"{' and '.join(left_out)} are in summary.csv." if left_out else ""
    return Table(heads, made, title, note)


def _pivoted(row: dict[str, Any] | None, metric: str, best: float | None) -> Entry:
    if row is None:
        return Entry("", "number")
    value, low, high = (row[f"{metric}{end}"] * scale(metric) for end in ("", "_low", "_high"))
    text, bounds = figure(value, low, high)
    if not text:
        return Entry(str(row["failed"]), "number status")
    return Entry(text, "number best" if row[metric] == best else "number", bounds)


def _missing(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def short(value: object) -> str:
    """Return a swept value as text: 1 for 1.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def rates(summary: pd.DataFrame) -> list[Table]:
    """Return the learning rate that each setting chose by validation, where a grid was tried."""
    if "lr_grid" not in summary or summary["lr_grid"].isna().all():
        return []
    rows = summary[summary["lr_grid"].notna()]
    made = [
        [
            Entry(str(row["task"])),
            Entry(str(row["variant_label"])),
            Entry(short(row["length"]), "number"),
            Entry(f"{row[RATE]:g}", "number"),
            Entry(str(row["lr_grid"]), "words"),
        ]
        for _, row in rows.head(_MAX_ROWS).iterrows()
    ]
    heads = [Head("task"), Head("variant"), Head("length", True), Head("chosen", True)]
    return [Table([*heads, Head("tried")], made, left_out=_more(len(rows), _MAX_ROWS, "summary"))]


def _more(n: int, shown: int, table: str) -> str:
    return f"{n - shown:,} more rows are in {table}.csv." if n > shown else ""


def _setting(study: Study, table: pd.DataFrame, row: Any, but: Any = None) -> str:
    """Return the swept keys that tell ``row`` from others of ``table``, led by a comma."""
    told = [
        f", {key.rpartition('.')[2]}={short(row[key])}"
        for key in study.swept
        if key in table and key != but and table[key].nunique(dropna=False) > 1
    ]
    return "".join(told)


def exponents(study: Study, scaling: pd.DataFrame) -> list[Table]:
    """Return the fitted exponents."""
    made = []
    for _, row in scaling.head(_MAX_LISTED).iterrows():
        text, bounds = figure(row["exponent"], row["exponent_low"], row["exponent_high"])
        made.append(
            [
                Entry(words(row["metric"]).split(" (")[0]),
                Entry(str(row["task"])),
                Entry(str(row["variant_label"]) + _setting(study, scaling, row)),
                Entry(text, "number", bounds),
                Entry(f"{row['from_length']:,} to {row['to_length']:,}", "number"),
            ]
        )
    heads = [Head("cost"), Head("task"), Head("variant"), Head("exponent", True)]
    heads.append(Head("lengths fitted", True))
    return (
        [Table(heads, made, left_out=_more(len(scaling), _MAX_LISTED, "scaling"))] if made else []
    )


def crossings(crossover: pd.DataFrame) -> list[Table]:
    """Return where each variant gets cheaper than the reference."""
    made = []
    for _, row in crossover.head(_MAX_LISTED).iterrows():
        inside = 0 < row["length"] < math.inf
        bounds = f"[{digits(row['length_low'])}, {digits(row['length_high'])}]" if inside else ""
        made.append(
            [
                Entry(words(row["metric"]).split(" (")[0]),
                Entry(str(row["task"])),
                Entry(str(row["variant_label"])),
                Entry(str(row["against"])),
                Entry(str(row["reading"]), "", bounds),
            ]
        )
    heads = [Head("cost"), Head("task"), Head("variant"), Head("against"), Head("reading")]
    left_out = _more(len(crossover), _MAX_LISTED, "crossover")
    return [Table(heads, made, left_out=left_out)] if made else []


def differences(study: Study, comparison: pd.DataFrame) -> list[Table]:
    """Return the paired differences of each variant from the reference."""
    if comparison.empty:
        return []
    first = reference(study)
    rows = comparison
    if first is not None and "swept" not in comparison:
        rows = comparison[
            (comparison["against"] == first[0]) & (comparison["against_params"] == first[1])
        ]
    made = []
    for _, row in rows.head(_MAX_LISTED).iterrows():
        factor = scale(row["metric"])
        ends = [row[f"difference{end}"] * factor for end in ("", "_low", "_high")]
        text, bounds = figure(*ends)
        sign = "+" if ends[0] > 0 else ""
        ratio = row.get("ratio", math.nan)
        name, against = str(row["label"]), str(row["against_label"])
        if "swept" in comparison:
            leaf = str(row["swept"]).rsplit(".", 1)[-1]
            name = f"{leaf}={short(row['value'])}"
            against = f"{leaf}={short(row['against_value'])}"
        made.append(
            [
                Entry(words(row["metric"])),
                Entry(str(row["task"])),
                Entry(short(row["length"]), "number"),
                Entry(name + _setting(study, comparison, row, row.get("swept"))),
                Entry(against),
                Entry(sign + text, "number", bounds),
                Entry("" if math.isnan(ratio) else f"{digits(ratio)}×", "number"),
                Entry(str(row["n"]), "number"),
                Entry(str(row["flags"]), "words status"),
            ]
        )
    heads = [Head("metric"), Head("task"), Head("length", True), Head("variant"), Head("against")]
    heads += [Head("difference", True), Head("ratio", True), Head("seeds", True), Head("unequal")]
    return [Table(heads, made, left_out=_more(len(rows), _MAX_LISTED, "comparison"))]


def inequalities(comparison: pd.DataFrame) -> list[Table]:
    """Return what made compared rows unequal, with the number of comparisons it touches."""
    if comparison.empty:
        return []
    found: Counter[str] = Counter()
    for flags in comparison["flags"]:
        found.update(flag for flag in str(flags).split("; ") if flag)
    made = [[Entry(flag, "words"), Entry(f"{n:,}", "number")] for flag, n in found.most_common(40)]
    return [Table([Head("unequal"), Head("comparisons", True)], made)] if made else []


def flags(cells: pd.DataFrame) -> list[Table]:
    """Return the flags that cells carry (true columns such as ``contended``), by variant."""
    made = []
    for column in cells.columns:
        if cells[column].dtype != "boolean" or not cells[column].fillna(False).any():
            continue
        flagged = cells[cells[column].fillna(False)]
        for label, rows in flagged.groupby("variant_label", sort=True):
            lengths = ", ".join(f"{n:,}" for n in sorted(rows["length"].dropna().unique())[:12])
            made.append(
                [
                    Entry(column.replace("_", " "), "status"),
                    Entry(str(label)),
                    Entry(lengths, "words"),
                    Entry(f"{len(rows):,}", "number"),
                ]
            )
    heads = [Head("flag"), Head("variant"), Head("lengths"), Head("cells", True)]
    return [Table(heads, made[:_MAX_LISTED])] if made else []


def failures(cells: pd.DataFrame) -> list[Table]:
    """Return the failed cells with their messages."""
    lost = cells[cells["status"] != "ok"]
    columns = ["variant_label", "task", "length", "seed"]
    made = []
    for _, row in lost.head(_MAX_LISTED).iterrows():
        line = [Entry(str(row["status"]), "status")]
        line += [Entry("" if _missing(row[c]) else str(row[c])) for c in columns]
        message = "" if _missing(row["message"]) else str(row["message"])
        made.append([*line, Entry(message[:600], "words"), Entry(str(row["key"])[:12])])
    heads = [Head(t) for t in ("status", "variant", "task", "length", "seed", "message", "cell")]
    return [Table(heads, made, left_out=_more(len(lost), _MAX_LISTED, "cells"))] if made else []


def set_aside(study: Study) -> list[Table]:
    """Return the record files that are not (wholly) in the tables, and why."""
    made = [
        [Entry(each.file[:80], "words"), Entry(each.reason, "words")]
        for each in study.rejected[:_MAX_LISTED]
    ]
    n = len(study.rejected)
    note = f"{n - _MAX_LISTED:,} more." if n > _MAX_LISTED else ""
    return [Table([Head("file"), Head("reason")], made, left_out=note)] if made else []


def machines(study: Study) -> list[Table]:
    """Return the facts of the machines that ran the cells."""
    shown = study.machines[:6]
    names = list(dict.fromkeys(name for found, _ in shown for name in found))
    made = [[Entry(n), *(Entry(found.get(n, ""), "words") for found, _ in shown)] for n in names]
    heads = [Head("")] + [Head(f"{n:,} cells") for _, n in shown]
    left_out = len(study.machines) - len(shown)
    note = f"{left_out:,} more machines or versions." if left_out else ""
    return [Table(heads, made, left_out=note)] if made else []


def sections(
    study: Study, tables: dict[str, pd.DataFrame], pictures: Sequence[object]
) -> list[Section]:
    """Return the page's parts in reading order, without those that have nothing to say."""
    cells, summary = tables["cells"], tables["summary"]
    n = int(cells["seed"].nunique())
    over = f"Means over {n} seeds with 95% intervals" if n > 1 else "One seed"
    parts = [
        Section("Figures", figures=list(pictures)),
        Section("Results", f"{over}; the best in bold.", results(study, summary)),
        Section(
            "Learning rates",
            "Each setting took the rate of the best validation accuracy, not seeing the test set.",
            rates(summary),
        ),
        Section(
            "How cost grows with length",
            "Exponents of a log-log fit with 95% intervals, past the lengths that a fixed cost "
            "rules; times in units of the matrix product timed beside them.",
            exponents(study, tables["scaling"]),
        ),
        Section(
            "Where a variant gets cheaper than the reference",
            "Intervals by bootstrap over repeated measurements.",
            crossings(tables["crossover"]),
        ),
        Section(
            "Differences",
            "Variant minus reference, paired by seed, with Student's 95% interval. What else "
            "differs between the two stands last.",
            differences(study, tables["comparison"]),
        ),
        Section("What makes rows unequal", "", inequalities(tables["comparison"])),
        Section("Flags", "What cells say of themselves.", flags(cells)),
        Section("Cells that failed", "", failures(cells)),
        Section("Records set aside", "Kept on disk, not in the tables.", set_aside(study)),
        Section("Machines", "", machines(study)),
    ]
    return [part for part in parts if part.tables or part.figures]
