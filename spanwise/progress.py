"""What a sweep says on the terminal: cells done of all, what runs, time left; then how it ended.

Progress is read from the study's folder, so that it is the same for every launcher.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from spanwise import records

if TYPE_CHECKING:
    from spanwise.study import Tally

_SHOWN = 20


class Progress:
    """Watch the records of a study while its cells run.

    titles: every planned cell by key. pending: the keys to be run. On a terminal a bar is drawn;
    elsewhere each finished cell is one line.
    """

    def __init__(self, study: Path, titles: Mapping[str, str], pending: Sequence[str]):
        self.study, self.titles = study, titles
        self.waiting = {key: records.stamp(study, key) for key in pending}
        self.total, self.n_pending = len(titles), len(pending)
        self.console = Console(stderr=False, highlight=False)
        self.started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._bar: Any = None

    def __enter__(self) -> Progress:
        done = self.total - self.n_pending
        if done:
            self.console.print(f"{done} of {self.total} cells were done before")
        if self.n_pending and self.console.is_terminal:
            self._bar = _bar(self.console)
            self._line = self._bar.add_task("", total=self.total, completed=done)
            self._bar.start()
        if self.n_pending:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._bar:
            self._bar.stop()

    def _watch(self) -> None:
        while not self._stop.wait(0.3):
            self._look()
        self._look()

    def _look(self) -> None:
        for key, stamp in list(self.waiting.items()):
            if records.stamp(self.study, key) != stamp:
                del self.waiting[key]
                self._say(key)
        if self._bar:
            running = [self.titles.get(key, "another study's cell") for key in self._running()]
            text = running[0] if running else "starting"
            if len(running) > 1:
                text += f" and {len(running) - 1} more"
            self._bar.update(self._line, completed=self.total - len(self.waiting), description=text)

    def _running(self) -> list[str]:
        return [key for key in records.running(self.study) if key in self.waiting]

    def _say(self, key: str) -> None:
        try:
            record = records.read(records.path_of(self.study, key))
        except records.BadRecord:
            return
        status = record["status"]
        if self._bar and status == "ok":
            return
        done = self.total - len(self.waiting)
        left = time_left(time.monotonic() - self.started, self.n_pending, len(self.waiting))
        told = f": {record['message']}" if status != "ok" else f" {figures(record['row'])}"
        line = f"[{done}/{self.total}] {status} {self.titles[key]}{told}{left}"
        self.console.print(line, markup=False, soft_wrap=True)


def _bar(console: Console) -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    return Bar(
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )


def time_left(elapsed: float, planned: int, waiting: int) -> str:
    """Return ``", about N s left"`` from the pace so far, or an empty text at the end."""
    finished = planned - waiting
    if not waiting or not finished:
        return ""
    seconds = elapsed / finished * waiting
    return (
        f", about {seconds:.0f} s left" if seconds < 120 else f", about {seconds / 60:.0f} min left"
    )


def figures(row: Mapping[str, Any]) -> str:
    """Return the figures of a finished cell that one looks at first."""
    parts = []
    for column, text in (
        ("accuracy", "accuracy {:.3f}"),
        ("bits_per_byte", "{:.2f} bits/byte"),
        ("forward_ms", "forward {:.3g} ms"),
        ("train_ms", "train {:.3g} ms"),
        ("decode_ms", "decode {:.3g} ms"),
    ):
        value = row.get(column)
        if isinstance(value, int | float):
            parts.append(text.format(value))
    return ", ".join(parts)


def summarise(study: Path, tally: Tally) -> None:
    """Say how the sweep ended: the failed and the missing cells, the place of the report."""
    console = Console(highlight=False)
    for name, cells in (
        ("failed", [f"{status} {title}: {message}" for title, status, message in tally.failed]),
        ("missing", tally.missing),
    ):
        for text in cells[:_SHOWN]:
            console.print(f"{name}: {text}", markup=False, soft_wrap=True)
        if len(cells) > _SHOWN:
            console.print(f"{name}: and {len(cells) - _SHOWN} more, see cells.csv")
    page = study / "index.html"
    if page.exists():
        console.print(f"tables, plots and page: {page}", markup=False, soft_wrap=True)
    bad = len(tally.failed) + len(tally.missing)
    line = f"{tally.done} of {tally.total} cells ok"
    if tally.interrupted:
        line = f"interrupted: {line}; the same command again goes on from here"
    elif bad:
        line += (
            f", {len(tally.failed)} failed, {len(tally.missing)} missing; "
            "the same command again redoes only those"
        )
    console.print(line, markup=False, soft_wrap=True)
