"""The config of a cell: where results lie, what is allowed at the top level, and the cell's key."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spanwise.errors import ConfigError, nearest

MEASURES = ("accuracy", "cost", "both", "probe")
DTYPES = ("float32", "float64", "bfloat16", "float16")
GROUPS = ("variant", "task", "model", "train", "cost")
KEYS = (
    "action", "study", "results", "measure", "length", "seed", "device", "dtype", "threads",
    "limits", "report", "walkthrough", "probes", *GROUPS,
)  # fmt: skip
"""Every key of the top level."""
NAME = r"[\w][\w.\-]{0,99}"
"""What a study, or a table of the benchmarks, may be called: a file's name, never a path."""


def root() -> Path:
    """Return the folder that relative result paths start from.

    That is the repository where the package is used from one, else the working directory.
    """
    repository = Path(__file__).resolve().parents[1]
    return repository if (repository / "pyproject.toml").exists() else Path.cwd()


def study_folder(config: Mapping[str, Any]) -> Path:
    """Return the folder of the config's study."""
    return root() / Path(str(config["results"])).expanduser() / str(config["study"])


def check_study(config: Mapping[str, Any]) -> None:
    """Raise ConfigError where the study's name or the results folder cannot be used."""
    study, results = config["study"], config["results"]
    if not isinstance(study, str | int) or not re.fullmatch(NAME, str(study)):
        raise ConfigError(
            f"study: found {study!r}; allowed: a name of letters, digits, '_', '-' and '.'"
        )
    if not isinstance(results, str) or not results.strip():
        raise ConfigError(f"results: found {results!r}; allowed: a folder")


def most_threads() -> int:
    """Return the threads beyond which a number is a mistake on this machine."""
    return max(64, 4 * (os.cpu_count() or 1))


def check(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a top-level key that is unknown, or whose value cannot be.

    What stands inside the groups is checked where it is used (`spanwise.soundness.check`).
    """
    for name in config:
        if name not in KEYS:
            raise ConfigError(
                f"{name}: no such key; allowed: {', '.join(KEYS)}." + nearest(name, KEYS)
            )
    for name in KEYS:
        if name not in config:
            raise ConfigError(f"{name}: a value is needed")
    check_study(config)
    _one_of(config, "measure", MEASURES)
    _one_of(config, "dtype", DTYPES)
    _whole(config, "length", least=1)
    _whole(config, "seed", least=0)
    if config["threads"] is not None:
        _whole(config, "threads", least=1)
        most = most_threads()
        if config["threads"] > most:
            raise ConfigError(
                f"threads: found {config['threads']}; allowed: up to {most} on this machine"
            )
    if not isinstance(config["device"], str) or not config["device"]:
        raise ConfigError(f"device: found {config['device']!r}; allowed: cpu, cuda, cuda:0 ...")
    limits = config["limits"]
    if not isinstance(limits, Mapping):
        raise ConfigError(f"limits: found {limits!r}; allowed: memory_gib and seconds")
    for name, value in limits.items():
        if name not in ("memory_gib", "seconds"):
            raise ConfigError(
                f"limits.{name}: no such key; allowed: memory_gib, seconds."
                + nearest(name, ("memory_gib", "seconds"))
            )
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and math.isfinite(value) and value > 0):
            raise ConfigError(f"limits.{name}: found {value!r}; allowed: a number above 0, or null")
    if config["report"] is not None and not isinstance(config["report"], Mapping):
        raise ConfigError(f"report: found {config['report']!r}; allowed: a table, or null")
    for name in GROUPS:
        if not isinstance(config[name], Mapping):
            raise ConfigError(f"{name}: found {config[name]!r}; allowed: a config of this group")


def _one_of(config: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> None:
    value = config[name]
    if value not in allowed:
        raise ConfigError(
            f"{name}: found {value!r}; allowed: {', '.join(allowed)}." + nearest(value, allowed)
        )


def _whole(config: Mapping[str, Any], name: str, least: int) -> None:
    value = config[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise ConfigError(f"{name}: found {value!r}; allowed: a whole number of at least {least}")


def key_of(config: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    """Return the name of the cell: 64 hex digits that depend on what changes its result only.

    The study's name, folders, limits and the launcher do not, nor does the order of keys, nor
    the settings of a measurement that the cell does not make.
    """
    names = ["variant", "task", "model", "measure", "length", "seed", "device", "dtype", "threads"]
    if config["measure"] in ("accuracy", "both"):
        names.append("train")
    if config["measure"] in ("cost", "both"):
        names.append("cost")
    if config["measure"] != "cost" and config["probes"]:
        names.append("probes")
    relevant = {name: config[name] for name in names}
    relevant["choices"] = {name: choices.get(name) for name in ("variant", "task")}
    text = json.dumps(relevant, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def title_of(config: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    """Return a cell's name for people: ``windowed recall length=64 seed=0 accuracy``."""
    return (
        f"{choices.get('variant')} {choices.get('task')} length={config['length']} "
        f"seed={config['seed']} {config['measure']}"
    )
