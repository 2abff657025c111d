"""Records: what happened to each cell, one JSON file a cell, from which all tables are rebuilt.

A file is written beside its place and renamed into it, so that a reader sees a whole record or
none, whatever is killed, and any number of processes and hosts may write one study. A record is
never trusted on reading: a truncated, foreign or newer file is left where it is and reported.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1
STATUSES = ("ok", "oom", "timeout", "diverged", "error")
MAX_BYTES = 64 * 2**20
"""A larger file is not one of ours: curves and samples of a cell take kilobytes."""

_SCALARS = (str, int, float, bool, type(None))
_TEXTS = ("key", "study", "status", "message", "traceback", "started", "ended")
_TABLES = ("config", "choices", "row", "detail", "display", "machine")


class BadRecord(ValueError):
    """A file in the records folder that cannot be used; the message says why in one line."""


@dataclass
class Loaded:
    """All that could be read of a study: ``records`` by key order, ``problems`` one line each."""

    records: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def folder(study: Path) -> Path:
    """Return the folder that holds the records of the study whose folder is ``study``."""
    return Path(study) / "records"


def path_of(study: Path, key: str) -> Path:
    """Return the file of the cell ``key``."""
    return folder(study) / f"{key}.json"


def write(study: Path, record: Mapping[str, Any]) -> Path:
    """Write ``record`` atomically and return its path.

    An ``ok`` record is never replaced by a failed one, nor a newer version's by ours; a file that
    cannot be read is moved aside to ``<name>.damaged``. Numbers that JSON does not know (NaN,
    infinities) become null. Raises OSError where the folder cannot be written or the disk is full.
    """
    path = path_of(study, record["key"])
    if path.exists():
        try:
            if read(path)["status"] == "ok" and record["status"] != "ok":
                return path
        except NewerRecord:
            return path
        except BadRecord:
            path.replace(_free_name(path))
    write_text(path, json.dumps(_plain(dict(record)), allow_nan=False, ensure_ascii=False))
    return path


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader, or the next run after a crash, sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    owner = f"{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}"
    temporary = path.with_name(f".{path.stem[:16]}.{owner}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


class NewerRecord(BadRecord):
    """A record of a later version than this program knows: kept, reported, never replaced."""


def read(path: Path) -> dict[str, Any]:
    """Return the record in ``path``; raise `BadRecord` in one line for anything else.

    What is returned has a text ``status`` out of `STATUSES`, a ``row`` of scalars, and tables
    where tables belong, so that a reader need not check again.
    """
    try:
        size = path.stat().st_size
        text = path.read_bytes() if size <= MAX_BYTES else None
    except OSError as error:
        raise BadRecord(f"{path.name}: cannot be read ({error.strerror})") from None
    if text is None:
        raise BadRecord(f"{path.name}: {size} bytes, more than any record has")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadRecord(f"{path.name}: not a whole JSON file") from None
    if not isinstance(value, dict) or not isinstance(value.get("version"), int):
        raise BadRecord(f"{path.name}: not a record of this program")
    if value["version"] > VERSION:
        raise NewerRecord(
            f"{path.name}: version {value['version']} was written by a newer program "
            f"(this one knows {VERSION})"
        )
    for name in _TEXTS:
        if not isinstance(value.setdefault(name, ""), str):
            raise BadRecord(f"{path.name}: {name} is not a text")
    for name in _TABLES:
        if not isinstance(value.setdefault(name, {}), dict):
            raise BadRecord(f"{path.name}: {name} is not a table")
    if value["key"] != path.stem:
        raise BadRecord(f"{path.name}: holds the record of another cell")
    if value["status"] not in STATUSES:
        raise BadRecord(f"{path.name}: unknown status {value['status'][:40]!r}")
    for column, entry in value["row"].items():
        if not isinstance(entry, _SCALARS):
            raise BadRecord(f"{path.name}: column {column[:40]!r} is not a single value")
    return value


def load(study: Path) -> Loaded:
    """Return every readable record of the study, in the order of their keys, and the problems."""
    loaded = Loaded()
    for path in sorted(folder(study).glob("*.json")):
        try:
            loaded.records.append(read(path))
        except BadRecord as problem:
            loaded.problems.append(str(problem))
    return loaded


def is_ok(study: Path, key: str) -> bool:
    """Return whether the cell ``key`` has a readable record that ended well."""
    path = path_of(study, key)
    try:
        return path.exists() and read(path)["status"] == "ok"
    except BadRecord:
        return False


def stamp(study: Path, key: str) -> tuple[int, int] | None:
    """Return what changes whenever the record of ``key`` is written again, or None without one."""
    try:
        stat = path_of(study, key).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


@contextmanager
def claim(study: Path, key: str, wait: bool = False) -> Iterator[bool]:
    """Hold the cell ``key`` for this process; yield whether it could be had.

    The claim is an advisory lock on a file, so that it ends with its holder however that one
    ends. Where the file system has no locks the answer is True: two processes may then do one
    cell twice, which costs time and no result.
    """
    claims = Path(study) / "claims"
    claims.mkdir(parents=True, exist_ok=True)
    path = claims / key
    while True:
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass
            # The holder before us removed the file that we waited for: lock the one that
            # others will find.
            if _inode(path) != os.fstat(file.fileno()).st_ino:
                continue
            try:
                yield True
            finally:
                with suppress(OSError):
                    path.unlink()
            return


def running(study: Path) -> list[str]:
    """Return the keys that some process on any host claims now."""
    keys = []
    for path in sorted((Path(study) / "claims").glob("*")):
        try:
            with path.open("r", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            keys.append(path.name)
        except OSError:
            continue
    return keys


def sweep_temporary(study: Path) -> None:
    """Remove the temporary files that killed processes of this host left behind."""
    for path in folder(study).glob(f".*.{socket.gethostname()}.*.tmp"):
        pid = path.name.split(".")[-3]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with suppress(OSError):
                path.unlink()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _free_name(path: Path) -> Path:
    name = path.with_name(path.name + ".damaged")
    return name if not name.exists() else name.with_name(f"{name.name}-{uuid.uuid4().hex[:8]}")


def _sync_folder(path: Path) -> None:
    """Make the rename itself durable, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _plain(value: Any) -> Any:
    """Return ``value`` in JSON's types; what is not finite becomes None, the unknown its text."""
    if isinstance(value, bool | str | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item") and getattr(value, "size", None) == 1:
        return _plain(value.item())
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return str(value)
