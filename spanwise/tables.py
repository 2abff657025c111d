"""Records to pandas: one row a cell, whatever state its record is in.

``load`` reads a study's folder; a record that cannot be used is set aside with the reason in
``Study.rejected``, and the tables are built from the rest.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spanwise.errors import ConfigError
from spanwise.reading import (
    COLUMNS,
    NAME,
    TEXT_COLUMNS,
    Columns,
    Rejected,
    Unusable,
    are_numbers,
    clip,
    detail_table,
    facts,
    flatten,
    mapping,
    picture,
    plain,
    read_record,
    read_row,
    span,
)

_NOT_SWEPT = frozenset(
    ["action", "study", "results", "seed", "length", "measure", "variant", "task", "experiment"]
)
_NOT_SWEPT_GROUPS = frozenset(["variant", "hydra", "report", "limits"])
_UNUSED = {"cost": ("train",), "accuracy": ("cost",), "probe": ("train", "cost")}
_MAX_DETAILS = 24
_WHOLE = ["length", "seed", "steps", "n_params", "n_heads", "d_model", "threads", "batch"]


@dataclass
class Study:
    """What a study's records say.

    cells: one row a cell, columns as in cells.csv. swept: dotted config keys, among the cells'
    columns, whose value differs between cells (never the variant's own parameters, which are
    ``variant_params``). constant: those that have one value in all cells, and so no column.
    displays: label, colour and paper of a variant. details: tables in the records' details
    (``curve``: the points of training), by name and cell key. probes: which of those are
    tables of probes (``spanwise.probes``). samples: a timing's
    repetitions in units of its calibration, by cell key and column. pictures: rows of 0/1 text a
    layer, by (variant, variant_params). machines: each machine's facts with the number of its
    cells. rejected: record files that are not, or not wholly, in ``cells``. question: the
    ``report`` block that the study was run with. command: what it was run with.
    """

    folder: Path
    name: str
    cells: pd.DataFrame
    swept: list[str] = field(default_factory=list)
    constant: dict[str, Any] = field(default_factory=dict)
    displays: dict[str, dict[str, str]] = field(default_factory=dict)
    details: dict[str, dict[str, Columns]] = field(default_factory=dict)
    probes: set[str] = field(default_factory=set)
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    pictures: dict[tuple[str, str], tuple[int, list[list[str]]]] = field(default_factory=dict)
    machines: list[tuple[dict[str, str], int]] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    question: dict[str, Any] = field(default_factory=dict)
    command: str = ""


def cells(study_folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return one row a cell of the study, failed cells included, in the order of ``COLUMNS``.

    Raises ``ConfigError`` where the folder has no records.
    """
    return load(study_folder).cells


def load(study_folder: str | os.PathLike[str]) -> Study:
    """Read every record of a study. Raises ``ConfigError`` where there is none to read."""
    folder = Path(study_folder)
    files = sorted((folder / "records").glob("*.json"))
    if not files:
        raise ConfigError(f"study: no records in {folder / 'records'}; run the study first")
    study = Study(folder, folder.name, pd.DataFrame())
    rows: list[dict[str, Any]] = []
    configs: list[dict[str, Any]] = []
    machines: Counter[tuple[tuple[str, str], ...]] = Counter()
    latest = ""
    for file in files:
        try:
            record = read_record(file)
            row, notes = read_row(record)
            config = dict(flatten(mapping(record.get("config"))))
        except (Unusable, OSError, RecursionError) as reason:
            study.rejected.append(Rejected(file.name, clip(str(reason), 300)))
            continue
        study.rejected += [Rejected(file.name, clip(note, 300)) for note in notes]
        rows.append(row)
        configs.append(config)
        machines[tuple(sorted(facts(record.get("machine"))))] += 1
        _gather(study, record, row)
        ended = str(record.get("ended"))
        question = mapping(mapping(record.get("config")).get("report"))
        if question and ended >= latest:
            latest, study.question = ended, question
    _name_alike(rows)
    study.machines = [(dict(found), n) for found, n in machines.most_common()]
    study.swept = swept_keys(rows, configs)
    study.constant = constant_keys(rows, configs)
    for key in study.swept:
        _add_swept(key, rows, configs)
    study.cells = _frame(rows, study)
    _read_study_file(study)
    return study


def _name_alike(rows: list[dict[str, Any]]) -> None:
    """Give a cell that failed before its variant could say its name the name its equals have."""
    labels: dict[tuple[str, str], str] = {}
    for row in rows:
        if row["variant_label"]:
            labels.setdefault((row["variant"], row["variant_params"]), row["variant_label"])
    for row in rows:
        params = row["variant_params"]
        named = labels.get((row["variant"], params))
        row["variant_label"] = named or f"{row['variant']} {params}".strip()


def swept_keys(rows: Sequence[dict[str, Any]], configs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the dotted keys that differ between cells of the same task, in order of name.

    A key that a record lacks says nothing (records of an older version lack new keys), nor do
    the training settings of a cell that only measured cost, or the reverse.
    """
    seen: dict[tuple[str, str], set[object]] = {}
    for row, config in zip(rows, configs, strict=True):
        for key, value in config.items():
            if _says_something(key, row):
                within = str(row["task"]) if key.startswith("task.") else ""
                plainly = isinstance(value, str | bool | int | float | None)
                told = (type(value) is bool, value) if plainly else json.dumps(value, default=str)
                seen.setdefault((key, within), set()).add(told)
    return sorted({key for (key, _), values in seen.items() if len(values) > 1})


def constant_keys(
    rows: Sequence[dict[str, Any]], configs: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the dotted keys that have one value in all cells of which they say something."""
    found: dict[str, Any] = {}
    several: set[str] = set()
    for row, config in zip(rows, configs, strict=True):
        for key, value in config.items():
            if _says_something(key, row) and found.setdefault(key, value) != value:
                several.add(key)
    return {key: value for key, value in found.items() if key not in several}


@lru_cache(maxsize=4096)
def _may_be_swept(key: str) -> bool:
    group = key.split(".", 1)[0]
    return key not in _NOT_SWEPT and group not in _NOT_SWEPT_GROUPS and bool(NAME.fullmatch(key))


def _says_something(key: str, row: dict[str, Any]) -> bool:
    group = key.split(".", 1)[0]
    return _may_be_swept(key) and group not in _UNUSED.get(str(row.get("measure")), ())


def _add_swept(key: str, rows: list[dict[str, Any]], configs: list[dict[str, Any]]) -> None:
    """Add a swept key as a column: of numbers where all are, else of text, null included."""
    values = [
        config[key] if key in config and _says_something(key, row) else ...
        for row, config in zip(rows, configs, strict=True)
    ]
    numeric = all(type(v) in (int, float) for v in values if v is not ...)
    for row, value in zip(rows, values, strict=True):
        if key in row:
            continue
        if value is ... or numeric:
            row[key] = None if value is ... else plain(value)
        else:
            row[key] = value if isinstance(value, str) else clip(json.dumps(value, default=str))


def _gather(study: Study, record: dict[str, Any], row: dict[str, Any]) -> None:
    detail = mapping(record.get("detail"))
    parts = [mapping(detail.get("train")), mapping(detail.get("cost")), detail]
    for name, entry in [item for part in parts for item in list(part.items())[:_MAX_DETAILS]]:
        table = detail_table(entry) if NAME.fullmatch(name) else None
        if table is not None:
            study.details.setdefault(name, {}).setdefault(row["key"], table)
    study.probes |= set(mapping(mapping(record.get("config")).get("probes")))
    for name, series in mapping(detail.get("cost")).items():
        ratios = mapping(series).get("ratios")
        if isinstance(ratios, list) and are_numbers(ratios):
            study.samples.setdefault(row["key"], {})[f"{name}_ms"] = ratios
    display = mapping(mapping(record.get("display")).get("variant"))
    shown = {k: v for k in ("label", "colour", "paper") if isinstance(v := display.get(k), str)}
    known = study.displays.setdefault(row["variant"], {})
    study.displays[row["variant"]] = {k: clip(v, 200) for k, v in shown.items()} | known
    looks, visibility = (row["variant"], row["variant_params"]), record.get("visibility")
    if looks not in study.pictures or span(visibility) > study.pictures[looks][0]:
        seen = picture(visibility)
        if seen:
            study.pictures[looks] = seen


def _frame(rows: list[dict[str, Any]], study: Study) -> pd.DataFrame:
    """Return the rows as a frame with one type a column; a value of another type is dropped."""
    extra = sorted({column for row in rows for column in row} - set(COLUMNS))
    columns: dict[str, Any] = {}
    for column in [*COLUMNS, *extra]:
        values = [row.get(column) for row in rows]
        kinds = Counter(type(v) for v in values if v is not None)
        numbers = kinds[int] + kinds[float]
        if column in TEXT_COLUMNS or kinds[str] > max(numbers, kinds[bool]):
            columns[column] = pd.Series(_only((str,), values, column, rows, study), dtype=object)
        elif kinds[bool] > numbers:
            columns[column] = pd.Series(
                _only((bool,), values, column, rows, study), dtype="boolean"
            )
        else:
            numeric = _only((int, float), values, column, rows, study)
            columns[column] = pd.Series(numeric, dtype=float)
    frame = pd.DataFrame(columns)
    for column in _WHOLE:
        whole = frame[column].dropna()
        if (whole == whole.round()).all() and (whole.abs() < 2**53).all():
            frame[column] = frame[column].astype("Int64")
    order = ["task", "variant", "variant_params", "length", *study.swept, "seed", "key"]
    return frame.sort_values(order, kind="stable").reset_index(drop=True)


def _only(
    kinds: tuple[type, ...],
    values: list[Any],
    column: str,
    rows: list[dict[str, Any]],
    study: Study,
) -> list[Any]:
    kept = []
    for row, value in zip(rows, values, strict=True):
        usable = value is None or type(value) in kinds
        kept.append(value if usable else None)
        if not usable:
            reason = f"{column}: unlike in other records, it is {clip(repr(value), 60)}"
            study.rejected.append(Rejected(f"{row['key']}.json", reason))
    return kept


def _read_study_file(study: Study) -> None:
    """Take the question and the command from study.json, where the runner has left one."""
    file = study.folder / "study.json"
    try:
        left = mapping(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        study.rejected.append(Rejected(file.name, f"not readable ({type(error).__name__})"))
        return
    study.question = mapping(left.get("report")) or study.question
    if isinstance(left.get("command"), str):
        study.command = clip(left["command"])


def probe_tables(study: Study) -> dict[str, pd.DataFrame]:
    """Return each probe's tables as one: whose cell it is, then the probe's own columns."""
    found = {}
    identity = ["key", "variant", "variant_params", "task", "length", "seed", *study.swept]
    cells = study.cells[[name for name in dict.fromkeys(identity) if name in study.cells]]
    for name in sorted(study.probes & set(study.details)):
        parts = []
        for _, cell in cells.iterrows():
            columns = study.details[name].get(str(cell["key"]))
            if columns is not None:
                part = pd.DataFrame(columns)
                mine = {str(k): v for k, v in cell.items() if k not in part}
                parts.append(part.assign(**mine)[[*mine, *part.columns]])
        if parts:
            found[name] = pd.concat(parts, ignore_index=True)
    return found


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table beside its place and rename it in, so that no reader sees half of it."""
    text = frame.to_csv(index=False, lineterminator="\n", float_format=_digits)
    write_atomic(path, text.encode())


def _digits(value: Any) -> str:
    # Nine digits: all that a float32 result or a timing holds, and the same text on every host.
    return np.format_float_positional(float(f"{value:.9g}"), trim="-")


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` to a temporary file in the same folder, then rename it to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
