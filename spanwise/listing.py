"""`action=list`: what there is to choose from, one line each, also on ``hydra.searchpath``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

GROUPS = ("variant", "task", "experiment", "model", "train", "cost", "probes", "hydra/launcher")
"""The groups that are shown, in this order."""


@dataclass(frozen=True)
class Option:
    """An option of a group: the first sentence of its file's comment, and its own keys."""

    summary: str
    parameters: str


def run(config: dict[str, Any], choices: dict[str, Any]) -> int:
    """Print the actions and the options of every group; return the exit code."""
    from spanwise.actions import ACTIONS

    roots = search_path()
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, action in ACTIONS.items():
        table.add_row("action=" + name, action.summary)
    for group in GROUPS:
        table.add_row()
        for name, option in options(group, roots).items():
            parameters = option.parameters if group in ("variant", "task") else ""
            table.add_row(f"{group}={name}", option.summary, parameters)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        # Nobody looks at a screen: a line stays a line.
        console.width = 250
    console.print(table)
    return 0


def search_path() -> list[Traversable]:
    """Return the folders that hold configs, as Hydra searches them, its own left out."""
    found: list[Traversable] = []
    for source in HydraConfig.get().runtime.config_sources:
        if source.provider == "hydra":
            continue
        if source.schema == "file":
            found.append(Path(source.path))
        elif source.schema == "pkg":
            found.append(resources.files(source.path))
    return found


def options(group: str, roots: list[Traversable]) -> dict[str, Option]:
    """Return the options of ``group`` by name; what stands first on the path hides what follows."""
    found: dict[str, Option] = {}
    for root in roots:
        for name, file in files(root.joinpath(group)):
            found.setdefault(name, read(file.read_text(encoding="utf-8")))
    # A group's own options first, then those of its folders.
    return dict(sorted(found.items(), key=lambda item: ("/" in item[0], item[0])))


def files(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield the options in ``folder`` and the folders in it, as one chooses them: ``sub/name``."""
    if folder.is_dir():
        for file in folder.iterdir():
            if file.name.endswith(".yaml"):
                yield above + file.name.removesuffix(".yaml"), file
            elif file.is_dir() and not file.name.startswith(("_", ".")):
                yield from files(file, f"{above}{file.name}/")


def read(text: str) -> Option:
    """Return what a config file says of itself."""
    comments = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            comments.append(line.lstrip("# ").strip())
    try:
        values = OmegaConf.to_container(OmegaConf.create(text))
    except Exception:
        # What cannot be read is told when it is chosen.
        values = None
    own = [
        f"{name!s}={'null' if value is None else value}"
        for name, value in (values.items() if isinstance(values, dict) else ())
        if not str(name).startswith("_")
        and name not in ("defaults", "hydra")
        and not isinstance(value, dict)
    ]
    summary = re.split(r"(?<=[.;:]) ", " ".join(comments))[0].rstrip(":;")
    return Option(summary, ", ".join(own))
