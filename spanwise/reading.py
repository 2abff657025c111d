"""One record file, read without trust.

Records come from other hosts, other versions and interrupted disks. What cannot be used is an
``Unusable`` with the reason in one line; what can is cut to a size that tables can hold.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spanwise import records

COLUMNS = [
    "key",
    "study",
    "variant",
    "task",
    "length",
    "seed",
    "status",
    "message",
    "accuracy",
    "bits_per_byte",
    "loss",
    "steps",
    "train_seconds",
    "n_params",
    "n_heads",
    "d_model",
    "keys_per_query",
    "forward_ms",
    "forward_ms_low",
    "forward_ms_high",
    "train_ms",
    "train_ms_low",
    "train_ms_high",
    "calibration_ms",
    "x_floor_forward",
    "x_floor_train",
    "forward_peak_bytes",
    "train_peak_bytes",
    "flops_forward",
    "device",
    "dtype",
    "threads",
    "batch",
    "torch",
    "git",
    "variant_params",
    "variant_label",
    "measure",
]
"""The first columns of cells.csv, in order; whatever else rows hold comes after, by name."""

TEXT_COLUMNS = frozenset(
    [
        "key",
        "study",
        "variant",
        "task",
        "status",
        "message",
        "device",
        "dtype",
        "torch",
        "git",
        "variant_params",
        "variant_label",
        "measure",
    ]
)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,79}")
_MAX_TEXT = 2000
_MOST = 1e100  # larger is no measurement, and its square is no number
_MAX_COLUMNS = 300
_MAX_ROWS = 200
_MAX_DETAIL_COLUMNS = 32
_MAX_PICTURE = 512


@dataclass(frozen=True)
class Rejected:
    """A record file that is not in the tables, or not wholly, and why."""

    file: str
    reason: str


class Unusable(ValueError):
    """What makes a record unusable, in one line."""


def clip(text: str, limit: int = _MAX_TEXT) -> str:
    """Return ``text``, cut with a note of its length where it is longer than ``limit``."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield (dotted key, value) for every leaf; a list of plain values is one leaf."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{name}.")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield from flatten({str(i): item for i, item in enumerate(value)}, f"{name}.")
        else:
            yield name, value


def mapping(value: Any) -> dict[str, Any]:
    """Return ``value`` where it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def plain(value: Any) -> Any:
    """Return a scalar for a table: text cut to size, an array as JSON text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else float("nan")
    if isinstance(value, float):
        return value if abs(value) < _MOST or math.isinf(value) else float("nan")
    return clip(value if isinstance(value, str) else json.dumps(value, default=str))


def read_record(file: Path) -> dict[str, Any]:
    """Return a record, or raise ``Unusable`` with the reason."""
    if not file.is_file():
        raise Unusable("not a regular file")
    try:
        return records.read(file)
    except records.BadRecord as problem:
        raise Unusable(str(problem).removeprefix(f"{file.name}: ")) from None


def read_row(record: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the record's row of cells.csv, with what had to be left out of it, in words.

    Raises ``Unusable`` where a column that every table needs has a value of the wrong type.
    """
    config = mapping(record.get("config"))
    choices = mapping(record.get("choices"))
    display = mapping(mapping(record.get("display")).get("variant"))
    model, train = mapping(config.get("model")), mapping(config.get("train"))
    machine = mapping(record.get("machine"))
    params = variant_params(mapping(config.get("variant")))
    known: dict[str, Any] = {
        "variant": choices.get("variant"),
        "task": choices.get("task"),
        "variant_params": params,
        "variant_label": display.get("describe") or display.get("label"),
        "n_heads": model.get("n_heads"),
        "d_model": model.get("d_model"),
        "batch": train.get("batch"),
    }
    known |= {k: config.get(k) for k in ("length", "seed", "measure", "device", "dtype", "threads")}
    chance = mapping(mapping(record.get("display")).get("task")).get("chance")
    known["chance"] = chance if _is_number(chance) else None
    known |= {k: machine.get(k) for k in ("torch", "git")}
    measured = record.get("row")
    notes: list[str] = [] if isinstance(measured, dict) else ["row: an object is needed"]
    row = known
    for column, value in mapping(measured).items():
        if not NAME.fullmatch(column) or len(row) > _MAX_COLUMNS:
            notes.append(f"column {clip(repr(column), 60)} is left out of the tables")
        elif isinstance(value, dict | list):
            notes.append(f"{column}: a plain value is needed, found {type(value).__name__}")
        elif value is not None or column not in row:
            row[column] = value
    row |= {k: record.get(k) for k in ("key", "study", "status", "message")}
    row["variant"] = row["variant"] or "unknown"
    row["task"] = row["task"] or "unknown"
    for column in COLUMNS:
        value = row.get(column)
        if value is None:
            continue
        if column in TEXT_COLUMNS:
            row[column] = clip(value) if isinstance(value, str) else clip(str(value), 80)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise Unusable(f"{column}: a number is needed, found {clip(repr(value), 60)}")
    if not isinstance(row.get("length"), int) and record["status"] == "ok":
        raise Unusable("length: an ok record needs one")
    finished = {column: plain(value) for column, value in row.items()}
    for column, value in finished.items():
        if isinstance(value, float) and math.isnan(value) and row[column] == row[column]:
            notes.append(f"{column}: {clip(repr(row[column]), 40)} is no measurement")
    return finished, notes


def variant_params(config: Mapping[str, Any]) -> str:
    """Return the variant's own parameters as one text: ``"globals=4, window=32"``.

    A nested variant is named by its class, so that stacks of different layers differ.
    """
    parts = []
    for key, value in sorted(flatten(config), key=lambda leaf: leaf[0]):
        if key.startswith("_"):
            continue
        head, _, leaf = key.rpartition(".")
        if leaf == "_target_":
            parts.append(f"{head}={str(value).rpartition('.')[2]}")
        elif not leaf.startswith("_"):
            parts.append(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    return clip(", ".join(parts), 400)


def facts(machine: Any) -> Iterable[tuple[str, str]]:
    """Yield the plain facts of a machine as text."""
    # Load differs with every cell and is a column of the row; the rest tells machines apart.
    for key, value in mapping(machine).items():
        scalar = isinstance(value, str | int | float)
        if scalar and "load" not in key and NAME.fullmatch(key):
            yield key, clip(str(value), 200)


def _is_number(value: Any) -> bool:
    # JSON's whole numbers have no limit; those past 64 bits are no measurement.
    return (type(value) is float and not _MOST <= abs(value) < math.inf) or (
        type(value) is int and abs(value) < 2**63
    )


def are_numbers(values: Any) -> bool:
    """Say whether ``values`` is a list of 1 to 10,000 finite numbers."""
    return (
        isinstance(values, list)
        and 0 < len(values) <= 10_000
        and all(_is_number(v) and math.isfinite(v) for v in values)
    )


Columns = dict[str, NDArray[np.float64]]
"""Equally long columns of numbers, by name."""


def detail_table(entry: Any) -> Columns | None:
    """Return a table in a record's details, thinned to 200 rows, or None for anything else.

    Understands a list of points (mappings of numbers) and a mapping of equally long lists. Counts
    ``n`` and ``correct`` also give ``accuracy``.
    """
    if isinstance(entry, list) and entry and all(isinstance(point, dict) for point in entry):
        names = sorted({k for point in entry[:_MAX_ROWS] for k in point})
        entry = {k: [point.get(k) for point in entry] for k in names}
    columns: Columns = {}
    for name, values in mapping(entry).items():
        if not isinstance(values, list) or not all(v is None or _is_number(v) for v in values):
            continue
        if NAME.fullmatch(name) and len(columns) < _MAX_DETAIL_COLUMNS:
            kept = np.linspace(0, len(values) - 1, min(len(values), _MAX_ROWS)).astype(int)
            numbers = [np.nan if values[i] is None else values[i] for i in kept]
            columns[name] = np.asarray(numbers, dtype=float)
    sizes = {len(values) for values in columns.values()}
    if len(columns) < 2 or len(sizes) > 1 or sizes == {0}:
        return None
    if {"n", "correct"} <= set(columns) and "accuracy" not in columns:
        asked = np.where(columns["n"] > 0, columns["n"], np.nan)
        columns["accuracy"] = columns["correct"] / asked
    return columns


def span(visibility: Any) -> int:
    """Return the number of positions that a recorded picture says it spans; 0 where it does not."""
    found = visibility.get("span") if isinstance(visibility, dict) else None
    return found if isinstance(found, int) and 0 < found < 2**31 else 0


def picture(visibility: Any) -> tuple[int, list[list[str]]] | None:
    """Return the positions that a picture spans and rows of 0/1 text a layer.

    None where that is not what was recorded. A span of more positions than rows is a sample of
    them, evenly spaced.
    """
    positions = span(visibility)
    if isinstance(visibility, dict):
        visibility = visibility.get("layers")
    if not isinstance(visibility, list) or not visibility:
        return None
    layers = [visibility] if isinstance(visibility[0], str) else visibility[:16]
    # A layer without a rule (a recurrence) has no picture; the others still have theirs.
    for rows in layers:
        if rows is None:
            continue
        if not isinstance(rows, list) or not 0 < len(rows) <= _MAX_PICTURE:
            return None
        if any(not isinstance(r, str) or len(r) != len(rows) or set(r) - {"0", "1"} for r in rows):
            return None
    layers = [rows for rows in layers if rows is not None]
    if not layers:
        return None
    return max(positions, len(layers[0])), layers
