"""What the benchmarks print and keep: rows as a table, as CSV, the machine's facts beside it."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.options import check_folder, table_name
from spanwise import records
from spanwise.cell import machine

OUT = Path(__file__).parents[1] / "results" / "reference" / "speed"


def show(rows: list[dict[str, Any]], title: str) -> None:
    """Print rows as a table; a column that is the same throughout goes to the title."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    same = [c for c in columns if len(rows) > 1 and len({str(row.get(c)) for row in rows}) == 1]
    table = Table(title=title, caption=", ".join(f"{c} {rows[0][c]}" for c in same))
    shown = [c for c in columns if c not in same and not c.endswith(("_low", "_high"))]
    for column in shown:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(_cell(row, column) for column in shown))
    Console(width=max(110, 13 * len(shown))).print(table)


def _cell(row: dict[str, Any], column: str) -> str:
    value = row.get(column, "")
    if isinstance(value, float) and not math.isnan(value):
        value = f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if f"{column}_low" in row:
        value += f" [{row[f'{column}_low']:.2f}, {row[f'{column}_high']:.2f}]"
    return str(value)


def write(name: str, rows: list[dict[str, Any]], command: str) -> None:
    """Write rows as CSV, and beside it the command and the machine's facts."""
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    records.write_text(OUT / f"{name}.csv", text.getvalue())
    facts = {"command": command, "machine": machine()}
    records.write_text(OUT / f"{name}.json", json.dumps(facts, indent=1) + "\n")


def progress(text: str) -> None:
    """Say on standard error how far a benchmark is."""
    print(text, file=sys.stderr, flush=True)


def command_line(module: str, arguments: list[str] | None) -> str:
    """Return the command that these figures come from, for the facts beside them."""
    return " ".join([f"python -m {module}", *(sys.argv[1:] if arguments is None else arguments)])


def add_write(parser: argparse.ArgumentParser) -> None:
    """Add --write and --no-write to a benchmark's options."""
    parser.add_argument("--write", type=table_name, metavar="NAME", help="keep the table, so named")
    parser.add_argument("--no-write", action="store_true", help="keep no table")


def altered(parser: argparse.ArgumentParser, options: argparse.Namespace, *free: str) -> bool:
    """Return whether an option that shapes the table is not as defined (``free`` ones are not)."""
    apart = {"write", "no_write", "threads", *free}
    given = {key: value for key, value in vars(options).items() if key not in apart}
    return any(value != parser.get_default(key) for key, value in given.items())


def kept_as(
    parser: argparse.ArgumentParser, options: argparse.Namespace, name: str, *free: str
) -> str | None:
    """Return the name to keep a table under, None to keep none.

    A table measured as it is defined is kept under its own name; an altered one only under the
    name that --write gives, so that it replaces no other.
    """
    if options.no_write:
        return None
    return options.write or (None if altered(parser, options, *free) else name)


def check_kept(parser: argparse.ArgumentParser, kept: str | None) -> None:
    """End with one line where a table is to be kept and its folder cannot be written to."""
    if kept is not None:
        check_folder(parser, "--write", OUT)
