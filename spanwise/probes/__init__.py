"""Probes: what else a cell measures, beside accuracy and cost, in any study.

A config names them: ``probes: {heads: {_target_: spanwise.probes.heads.heads, sequences: 256}}``,
or picks ready ones of configs/probes/: ``probes=[heads,lengths]``. A probe is a function::

    def depth(subject: Subject, *, option: int = 1) -> Found:

that looks at a model, trained (``measure=accuracy``) or as it starts (``measure=probe``), and
returns columns for the cell's row and a table for its details. It runs inside the cell, with the
cell's limits, and its options are part of the cell's key. Anyone's function will do. Its
annotations say what an option may be, before anything starts: ``Annotated[int, AtLeast(1)]``
(``spanwise.arguments``).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spanwise.errors import ConfigError


@dataclass(frozen=True)
class Subject:
    """What a probe looks at.

    config: the cell's resolved config. task, factory, keywords: its parts, as the model was built
    from them. model: the cell's model. trained: whether it has been trained.
    """

    config: Mapping[str, Any]
    task: Any
    factory: Any
    keywords: Mapping[str, Any]
    model: Any
    trained: bool

    def untrained(self) -> Any:
        """Return the model as it was before training: the same seed, so the same weights."""
        from spanwise.model import Model

        return Model(self.factory, **self.keywords).to(self.config["device"])


@dataclass
class Found:
    """What a probe found: columns of the cell's row, and a table for its details.

    table: a list of rows of numbers, written as NAME.csv and open to figures as ``NAME.column``;
    or anything else that JSON holds, kept in the record alone.
    """

    row: dict[str, Any] = field(default_factory=dict)
    table: Any = field(default_factory=list)


def named(probes: Any) -> dict[str, tuple[Callable[..., Found], dict[str, Any]]]:
    """Return each probe's function and options; raise ConfigError where one names none."""
    if not isinstance(probes, Mapping):
        raise ConfigError(
            f"probes: found {probes!r}; allowed: probes by name, as in configs/probes"
        )
    found = {}
    for name, settings in probes.items():
        target = settings.get("_target_") if isinstance(settings, Mapping) else None
        module, _, function = str(target).rpartition(".")
        try:
            made = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"probes.{name}._target_: no function {target!r} ({error})"
            ) from error
        if wrong := _no_probe(made):
            raise ConfigError(
                f"probes.{name}._target_: {target} {wrong}; allowed: a function "
                "(subject, *, option=...) that returns a spanwise.probes.Found"
            )
        options = {k: v for k, v in settings.items() if k != "_target_"}
        found[str(name)] = (made, options)
    return found


def _no_probe(made: Any) -> str:
    """Return why ``made`` cannot be called as a probe, or an empty text."""
    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):
        return "is no function whose parameters are known"
    positional, *others = signature.parameters.values() or (None,)
    if (
        positional is None
        or positional.kind not in (positional.POSITIONAL_ONLY, positional.POSITIONAL_OR_KEYWORD)
        or any(one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD) for one in others)
    ):
        names = ", ".join(str(one).partition(":")[0] for one in signature.parameters.values())
        return f"takes ({names})"
    return ""


def run(subject: Subject) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the config's probes one after another; return their columns and their tables."""
    row: dict[str, Any] = {}
    detail: dict[str, Any] = {}
    for name, (probe, options) in named(subject.config.get("probes") or {}).items():
        subject.model.eval()
        found = probe(subject, **options)
        row |= found.row
        if found.table:
            detail[name] = found.table
    return row, detail
