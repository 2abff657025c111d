"""``action=check``: the suite on the variant of a config, as a table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hydra.utils import instantiate
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spanwise.check.subject import Subject
from spanwise.check.suite import check_variant, layers_of, why_not_run
from spanwise.errors import ConfigError

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim", "expected_failure": "yellow"}


def run(config: dict[str, Any], choices: dict[str, Any]) -> int:
    """Check the config's variant, print a table and return the exit code: 1 if a check failed."""
    name = str(choices.get("variant"))
    factory = instantiate(config["variant"], _partial_=True)
    try:
        for layer in layers_of(factory).values():
            Subject(layer)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"variant={name}: {error}") from None
    for prefix, layer in layers_of(factory).items():
        why = why_not_run(layer)
        if why:
            print(f"variant={name}: {prefix and prefix + ', '}{why}; nothing else was checked")
            return 1
    results = check_variant(factory)
    table = Table("check", "result", "", box=box.SIMPLE, title=f"variant={name}")
    for result in results:
        words = result.status.replace("_", " ")
        table.add_row(
            result.check.replace("check_", ""),
            Text(words, style=_STYLES[result.status]),
            Text(result.message),
        )
    console = Console()
    console.print(table)
    counts: Counter[str] = Counter(result.status for result in results)
    shown = ", ".join(f"{counts[s]} {s.replace('_', ' ')}" for s in _STYLES if counts[s])
    console.print(f"{name}: {shown}")
    return 1 if counts["failed"] else 0
