"""One cell: a resolved config in, a record out, whatever happens in between.

A cell trains (`measure` accuracy), is measured (cost), or both, one after the other, each in a
process of its own; or it is only looked at (probe). Training and looking share the machine with
others of their kind; measuring has it alone.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from spanwise import isolation, locks, records
from spanwise.config import key_of, root

_LOCKS = {"accuracy": locks.shared, "probe": locks.shared, "cost": locks.exclusive}


def run(config: Mapping[str, Any], choices: Mapping[str, Any], study: Path) -> str:
    """Run one cell, write its record into the folder ``study`` and return how it ended.

    The answer is a status of the record, ``done`` where there was an ok record already, or
    ``busy`` where another process runs this cell. Raises OSError where the record cannot be
    written, and nothing for what the cell does.
    """
    key = key_of(config, choices)
    if records.is_ok(study, key):
        return "done"
    with records.claim(study, key) as mine:
        if not mine:
            return "busy"
        if records.is_ok(study, key):
            return "done"
        record = measure(config, choices)
        records.write(study, record)
        return str(record["status"])


def measure(config: Mapping[str, Any], choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of the cell: what it measured and how it ended. Never raises."""
    record: dict[str, Any] = {
        "version": records.VERSION,
        "key": key_of(config, choices),
        "study": str(config["study"]),
        "status": "ok",
        "message": "",
        "traceback": "",
        "config": dict(config),
        "choices": dict(choices),
        "row": {},
        "detail": {},
        "display": {},
        "visibility": None,
        "machine": machine(),
        "started": _now(),
        "ended": "",
    }
    both = config["measure"] == "both"
    for phase in ("accuracy", "cost") if both else (config["measure"],):
        outcome = _run_phase(phase, config)
        _add(record, phase, outcome)
        if outcome.status != "ok":
            record["status"] = "diverged" if outcome.kind == "Diverged" else outcome.status
            where = f"{phase}: " if both else ""
            record["message"] = where + outcome.message
            record["traceback"] = outcome.trace
            break
    record["ended"] = _now()
    return record


def _run_phase(phase: str, config: Mapping[str, Any]) -> isolation.Outcome:
    limits = config["limits"]
    payload = {"config": dict(config), "threads": threads(phase, config)}
    # The lock is taken here and not in the process that works, so that waiting for it does not
    # count as the cell's own time.
    lock: AbstractContextManager[Any] = _LOCKS[phase]()
    with lock:
        return isolation.call(
            f"spanwise.phases:{phase}",
            payload,
            # CUDA maps the device's whole address space: such a limit would stop it at once.
            memory_gib=None if config["device"] != "cpu" else limits["memory_gib"],
            seconds=limits["seconds"],
        )


def threads(phase: str, config: Mapping[str, Any]) -> int:
    """Return the number of threads of a phase: as configured, else all for cost, 1 for accuracy.

    One for training keeps the bits of its result the same whatever runs beside it.
    """
    if config["threads"] is not None:
        return int(config["threads"])
    return len(os.sched_getaffinity(0)) if phase == "cost" else 1


def _add(record: dict[str, Any], phase: str, outcome: isolation.Outcome) -> None:
    value = outcome.value or {}
    record["row"] |= value.get("row", {}) | {"threads": threads(phase, record["config"])}
    if phase == "accuracy":
        record["row"]["train_threads"] = record["row"]["threads"]
    record["row"][f"{phase}_resident_peak_bytes"] = outcome.peak_resident_bytes
    record["detail"] |= value.get("detail", {})
    record["display"] |= value.get("display", {})
    record["visibility"] = value.get("visibility", record["visibility"])
    if outcome.output.strip():
        record["detail"].setdefault("output", {})[phase] = outcome.output


def machine() -> dict[str, Any]:
    """Return the facts of this machine and program that a result may depend on."""
    return {**_steady_facts(), "load_1_minute": os.getloadavg()[0]}


@cache
def _steady_facts() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "torch": _version("torch"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "git": _git_commit(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _git_commit() -> str:
    """Return the commit that the program runs from, with ``+`` where files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root()), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + "+" if commit and git("status", "--porcelain", "-uno") else commit
    except OSError:
        return ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
