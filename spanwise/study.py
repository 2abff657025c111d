"""A study: cells planned, launched, and accounted for by their records alone.

The launcher's own word is never taken: joblib loses the jobs after a worker that was killed, and
Slurm shows failed jobs as completed. What counts is whether each planned cell has a record.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from spanwise import cell, config, isolation, records
from spanwise.errors import ConfigError, one_line
from spanwise.progress import Progress, summarise

_IN_EVERY_TITLE = ("variant", "task", "length", "seed", "measure")


@dataclass(frozen=True)
class Cell:
    """A planned cell.

    overrides: the command-line overrides that its launcher's job gets. told_apart: those that
    its title shows.
    """

    config: dict[str, Any]
    choices: dict[str, Any]
    overrides: list[str] = field(default_factory=list)
    told_apart: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """The cell's key."""
        return config.key_of(self.config, self.choices)

    @property
    def title(self) -> str:
        """The cell's name for people."""
        return " ".join([config.title_of(self.config, self.choices), *self.told_apart])


@dataclass
class Tally:
    """How a sweep's cells ended; each list holds titles, failed ones with their message."""

    done: int = 0
    total: int = 0
    failed: list[tuple[str, str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    interrupted: bool = False


def run_one(settings: dict[str, Any], choices: dict[str, Any]) -> int:
    """Run the one cell that the config describes; return the exit code."""

    def launch(cells: Sequence[Cell]) -> None:
        for one in cells:
            cell.run(one.config, one.choices, config.study_folder(one.config))

    return run([Cell(settings, choices)], launch)


def run(cells: Sequence[Cell], launch: Callable[[Sequence[Cell]], None]) -> int:
    """Run the cells that have no ok record yet, rebuild the study's tables; return the exit code.

    Raises ConfigError, before anything is written, where some cell cannot be what its config
    says. 0: all cells are ok. 1: some are not, and the last lines say which. 130: interrupted.
    """
    for one in cells:
        config.check(one.config)
    by_key = {one.key: one for one in told_apart(cells)}
    study = config.study_folder(cells[0].config)
    pending = {key: one for key, one in by_key.items() if not records.is_ok(study, key)}
    check(list(pending.values()))
    _open(study, cells[0].config)
    before = {key: records.stamp(study, key) for key in pending}
    interrupted = False
    with Progress(study, {key: one.title for key, one in by_key.items()}, list(pending)):
        try:
            _launch(pending, study, before, launch)
        except KeyboardInterrupt:
            interrupted = True
    tally = account(by_key, study, before)
    tally.interrupted = interrupted
    if cells[0].config["report"] is not None:
        report(study)
    summarise(study, tally)
    if interrupted:
        return 130
    return 1 if tally.failed or tally.missing else 0


def told_apart(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with titles that show in what they differ."""
    common = set(cells[0].overrides).intersection(*(one.overrides for one in cells))
    return [
        replace(
            one,
            told_apart=tuple(
                text
                for text in one.overrides
                if text not in common and text.partition("=")[0] not in _IN_EVERY_TITLE
            ),
        )
        for one in cells
    ]


def check(cells: Sequence[Cell]) -> None:
    """Raise ConfigError for the first cell whose parts cannot be built as its config says.

    Cells that differ only in their seed are checked once. What the check itself cannot do (it
    crashes, or never ends) is left to the cells.
    """
    distinct: dict[str, Cell] = {}
    for one in cells:
        alike = {k: v for k, v in one.config.items() if k not in ("seed", "study", "results")}
        distinct.setdefault(json.dumps(alike, sort_keys=True, default=str), one)
    if not distinct:
        return
    asked = list(distinct.values())
    outcome = isolation.call(
        "spanwise.soundness:check",
        {"configs": [one.config for one in asked]},
        seconds=120 + len(asked),
    )
    for one, wrong in zip(asked, outcome.value or [], strict=False):
        if wrong:
            where = f" (in the cell {one.title})" if len(cells) > 1 else ""
            raise ConfigError(wrong + where)


def _open(study: Path, settings: dict[str, Any]) -> None:
    """Make the study's folders; raise ConfigError, leaving nothing, where that cannot be."""
    made: list[Path] = []
    try:
        folder = records.folder(study)
        for path in (*reversed(folder.parents), folder):
            if not path.exists():
                path.mkdir(exist_ok=True)
                made.append(path)
        probe = folder / f".writable.{id(made)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        for path in reversed(made):
            path.rmdir()
        raise ConfigError(
            f"results: cannot write to {study} ({error.strerror}); allowed: a folder to write to"
        ) from None
    records.sweep_temporary(study)
    told = {"command": " ".join(["python", *sys.argv]), "report": settings.get("report") or {}}
    records.write_text(study / "study.json", json.dumps(told, indent=1, default=str) + "\n")


def _launch(
    pending: dict[str, Cell],
    study: Path,
    before: dict[str, Any],
    launch: Callable[[Sequence[Cell]], None],
) -> None:
    if not pending:
        return
    _try(launch, list(pending.values()))
    again = []
    for key, one in pending.items():
        if records.stamp(study, key) == before[key] and key in records.running(study):
            # Another sweep has it: wait for that one's end, then see what it left.
            with records.claim(study, key, wait=True):
                pass
            if records.stamp(study, key) == before[key]:
                again.append(one)
    if again:
        _try(launch, again)


def _try(launch: Callable[[Sequence[Cell]], None], cells: list[Cell]) -> None:
    try:
        launch(cells)
    except Exception as error:
        # A launcher that breaks takes later jobs with it; the accounting says which.
        text = one_line(str(error)) or type(error).__name__
        print(f"the launcher stopped: {text}", file=sys.stderr)


def account(cells: dict[str, Cell], study: Path, before: dict[str, Any]) -> Tally:
    """Return how the planned cells ended, from the records.

    before: stamps of the records that were not ok when the sweep began; a cell whose record is
    still that one was not run, and counts as missing.
    """
    tally = Tally(total=len(cells))
    for key, one in cells.items():
        try:
            record = records.read(records.path_of(study, key))
        except records.BadRecord as problem:
            exists = records.path_of(study, key).exists()
            tally.missing.append(f"{one.title}" + (f" ({problem})" if exists else ""))
            continue
        if record["status"] == "ok":
            tally.done += 1
        elif key in before and records.stamp(study, key) == before[key]:
            tally.missing.append(f"{one.title} (its record is an earlier run's)")
        else:
            tally.failed.append((one.title, record["status"], record["message"]))
    return tally


def report(study: Path) -> None:
    """Rebuild the study's tables, plots and page; say so in one line where that fails."""
    try:
        importlib.import_module("spanwise.report").write(study)
    except Exception as error:
        text = one_line(str(error)) or type(error).__name__
        print(f"the report could not be written: {type(error).__name__}: {text}", file=sys.stderr)
