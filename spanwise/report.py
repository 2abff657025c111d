"""A study's records to its tables, figures and page: all rebuilt from the records alone.

The page is one file that opens without a network. The question it answers (title, claim, answers,
figures) is the ``report`` block that the study was run with; see ``figures`` and ``answers``.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from rich.console import Console
from rich.table import Table as Shown

from spanwise import answers, fairness, figures, page, plots, scaling, summary, tables
from spanwise.config import study_folder
from spanwise.errors import ConfigError

TABLES = ("cells", "summary", "comparison", "scaling", "crossover")


@dataclass(frozen=True)
class Report:
    """What was written: the page, the tables, the figures, and what they say in short."""

    folder: Path
    page: Path
    tables: dict[str, pd.DataFrame] = field(repr=False)
    figures: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    set_aside: int = 0
    verdict: str = ""
    problems: list[str] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Print the short form: one row a setting, then where the rest is."""
        console.print(_shown(self.tables["summary"]))
        for problem in self.problems:
            console.print(problem, style="red", markup=False)
        if self.verdict:
            console.print(f"The claim {self.verdict}.", markup=False)
        if self.set_aside:
            console.print(f"{self.set_aside} records set aside: see the page.", markup=False)
        console.print(f"Page: {self.page}", markup=False, soft_wrap=True)


def write(folder: str | os.PathLike[str], question: Mapping[str, Any] | None = None) -> Report:
    """Rebuild cells.csv and the other tables, plots/ and index.html of a study's folder.

    ``question`` replaces the ``report`` block found with the records. Raises ``ConfigError`` where
    there are no records, or ``question`` is malformed; a malformed block found with the records
    is named on the page instead, which then has the usual figures.
    """
    study = tables.load(folder)
    problems: list[str] = []
    if question is not None:
        study.question = dict(question)
    made = {
        "cells": study.cells,
        "summary": summary.summarise(study),
        "comparison": fairness.compare(study),
        "scaling": scaling.fit(study),
        "crossover": scaling.crossovers(study),
    }
    try:
        wanted = figures.declared(study.question)
        found = answers.answer(study.question, made, study.constant)
    except ConfigError as error:
        if question is not None:
            raise
        problems.append(str(error))
        wanted, found = figures.DEFAULT, []
    for name, table in {**tables.probe_tables(study), **made}.items():
        tables.write_csv(table, study.folder / f"{name}.csv")
    drawn = plots.draw(study, summary.choose_rates(study), wanted)
    if wanted is not figures.DEFAULT:
        shown = {each.name for each in drawn}
        problems += [
            f"Not drawn, for want of measurements: {each.y} against {each.x}{_where(each)}"
            for each in wanted
            if each.name not in shown
        ]
    counts = {str(k): int(n) for k, n in study.cells["status"].value_counts().items()}
    path = study.folder / "index.html"
    tables.write_atomic(path, _page(study, made, drawn, found, counts, problems).encode())
    return Report(
        study.folder,
        path,
        made,
        [each.name for each in drawn],
        counts,
        len({each.file for each in study.rejected}),
        answers.overall(found),
        problems,
    )


def run(config: Mapping[str, Any], choices: Mapping[str, Any]) -> int:
    """Rebuild the page of the config's study and print its short form; return the exit code."""
    report = write(study_folder(config), config.get("report") or None)
    # A file or a pipe has no width of its own; eighty columns would cut the table.
    report.show(Console() if sys.stdout.isatty() else Console(width=140))
    return 0


def _page(
    study: tables.Study,
    made: dict[str, pd.DataFrame],
    drawn: list[plots.Drawn],
    found: list[answers.Answer],
    counts: Mapping[str, int],
    problems: list[str],
) -> str:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pictures = [_inlined(each, study.folder) for each in drawn]
    question = study.question
    lead = pictures.pop(0) if pictures else None
    parts = page.sections(study, made, pictures)
    parts.append(
        page.Section(
            "How to get this page again",
            "All of it is made from the files in records/.",
            command="\n".join(
                [
                    *([study.command] if study.command else []),
                    f"python runner.py action=report study={study.name}",
                ]
            ),
        )
    )
    return environment.get_template("report.html.j2").render(
        title=_text(question.get("title")) or study.name,
        name=study.name,
        counts=_counted(counts, len({each.file for each in study.rejected})),
        claim=_text(question.get("claim")),
        answers=found,
        verdict=answers.overall(found),
        problems=problems,
        lead=lead,
        sections=parts,
        files=[f"{name}.csv" for name in TABLES],
    )


def _text(value: Any) -> str:
    return tables.clip(value) if isinstance(value, str) else ""


def _counted(counts: Mapping[str, int], set_aside: int) -> str:
    total = sum(counts.values())
    parts = [f"{n:,} {status}" for status, n in sorted(counts.items(), key=lambda c: c[0] != "ok")]
    text = f"{total:,} cells, {', '.join(parts)}"
    return text + (f"; {set_aside:,} record files set aside" if set_aside else "")


def _inlined(drawn: plots.Drawn, folder: Path) -> dict[str, str | bool]:
    content = base64.b64encode((folder / "plots" / f"{drawn.name}.svg").read_bytes()).decode()
    return {
        "name": drawn.name,
        "title": drawn.title,
        "caption": drawn.caption,
        "wide": drawn.wide,
        "image": f"data:image/svg+xml;base64,{content}",
    }


def _where(wanted: figures.Figure) -> str:
    told = ", ".join(f"{column}={value}" for column, value in wanted.where.items())
    return f" where {told}" if told else ""


def _shown(settings: pd.DataFrame) -> Shown:
    metrics = [m for m in page.SHOWN if m in settings and settings[m].notna().any()]
    table = Shown(box=None, header_style="bold", pad_edge=False)
    keys = list(settings.columns)[: list(settings.columns).index("variant_label")]
    crossed = fairness.crossed_keys(settings, keys)
    for column in ("task", "variant", *crossed, "length"):
        width = 26 if column == "variant" else None
        side: Any = "right" if column == "length" else "left"
        head = column.rpartition(".")[2].replace("_", "\n", 1)
        table.add_column(head, justify=side, no_wrap=True, max_width=width)
    for metric in metrics:
        head = metric.replace("_peak", "").replace("_bytes", "_MiB")
        head = head.replace("_", "\n", 1).replace("_", " ")
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("n", justify="right")
    table.add_column("failed", style="red", no_wrap=True)
    for _, row in settings.head(60).iterrows():
        numbers = [page.figure(float(row[m]) * figures.scale(m))[0] for m in metrics]
        swept = ["" if pd.isna(row[c]) else page.short(row[c]) for c in crossed]
        words = [str(row["task"]), str(row["variant_label"]), *swept, str(row["length"])]
        texts = [*words, *numbers, str(row["n"]), str(row["failed"])]
        table.add_row(*(_escaped(text) for text in texts))
    if len(settings) > 60:
        table.caption = f"{len(settings) - 60:,} more rows in summary.csv"
    return table


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
