"""Host-wide locks: a timing runs alone, training cells run together.

``exclusive()`` is for timing, ``shared()`` for training: any number of shared holders, or one
exclusive holder, over all processes of the machine whatever launched them. The kernel keeps the
lock (``flock``), so it goes when its holder dies, however it dies. No queue starves: whoever comes
passes a gate first, and a timing holds the gate while it waits for the training cells that run,
so later ones line up behind it.

The two files lie in the machine's temporary folder, where every user may lock them. Where that
cannot be (someone put something else there), a folder of this user's own is used, with a warning:
then the locks hold among this user's processes only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

_GATE, _MAIN = "spanwise-gate.lock", "spanwise-main.lock"

_open: set[int] = set()
_held = threading.local()


def _close_inherited() -> None:
    # A forked child shares its parent's open file, and with it the lock: it would keep the lock
    # alive after the parent died.
    for descriptor in _open:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open.clear()
    _held.__dict__.clear()


os.register_at_fork(after_in_child=_close_inherited)


def _open_lock_file(path: Path) -> int:
    """Return a descriptor of a regular file at ``path``, made if missing, or raise OSError."""
    # Reading is enough for flock, so one user's file serves all. O_CREAT comes second: in a
    # sticky folder the kernel may refuse it for a file that another user owns.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o644)
        # The umask may have made the file private.
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


def host_folder() -> Path:
    """Return the folder of the machine's lock files.

    /tmp where there is one, even if TMPDIR points elsewhere: a cluster gives each job a TMPDIR of
    its own, and two jobs on one machine must still meet. SPANWISE_LOCKS names another folder: for
    tests, which wait for nobody, and for containers that share a machine but no /tmp.
    """
    if chosen := os.environ.get("SPANWISE_LOCKS"):
        with contextlib.suppress(OSError):  # what is wrong with it is told when it is opened
            Path(chosen).mkdir(parents=True, exist_ok=True)
        return Path(chosen)
    shared = Path("/tmp")
    return shared if os.access(shared, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _open_both(folder: Path | None) -> tuple[int, int]:
    chosen = host_folder() if folder is None else folder
    opened: list[int] = []
    try:
        for name in (_GATE, _MAIN):
            opened.append(_open_lock_file(chosen / name))
    except OSError as error:
        for descriptor in opened:
            os.close(descriptor)
        if folder is not None:
            raise
        own = Path(tempfile.gettempdir()) / f"spanwise-{os.getuid()}"
        own.mkdir(mode=0o700, exist_ok=True)
        warnings.warn(
            f"the machine-wide locks cannot be used ({error}): timings are kept apart from this "
            f"user's own processes only, by {own}",
            stacklevel=4,
        )
        opened = [_open_lock_file(own / name) for name in (_GATE, _MAIN)]
    gate, main = opened
    return gate, main


def _lock(descriptor: int, kind: int, deadline: float | None) -> None:
    if deadline is None:
        fcntl.flock(descriptor, kind)
        return
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError("the machine's timing lock was not free in time") from None
            time.sleep(0.02)


@contextlib.contextmanager
def _holding(kind: int, folder: Path | None, timeout: float | None) -> Iterator[float]:
    if getattr(_held, "yes", False):
        raise RuntimeError("this thread already holds the lock and would wait for itself")
    began = time.monotonic()
    deadline = None if timeout is None else began + timeout
    gate, main = _open_both(folder)
    _open.update((gate, main))
    try:
        _lock(gate, fcntl.LOCK_EX, deadline)
        _lock(main, kind, deadline)
        # The explicit unlock also frees a description that a child process still shares.
        fcntl.flock(gate, fcntl.LOCK_UN)
        _held.yes = True
        yield time.monotonic() - began
    finally:
        _held.yes = False
        for descriptor in (main, gate):
            if descriptor in _open:
                _open.discard(descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)


def exclusive(
    folder: Path | None = None, timeout: float | None = None
) -> contextlib.AbstractContextManager[float]:
    """Hold the machine alone: no ``shared`` and no other ``exclusive`` holder meanwhile.

    Yields the seconds spent waiting. ``folder`` is where the lock files lie (default: the
    machine's). After ``timeout`` seconds of waiting: TimeoutError. One thread holds one lock at
    a time (RuntimeError otherwise).
    """
    return _holding(fcntl.LOCK_EX, folder, timeout)


def shared(
    folder: Path | None = None, timeout: float | None = None
) -> contextlib.AbstractContextManager[float]:
    """Hold the machine together with other ``shared`` holders; as ``exclusive`` otherwise."""
    return _holding(fcntl.LOCK_SH, folder, timeout)
