"""The fork server of `spanwise.isolation`: a program that does each work in a fork of itself.

It imports torch and ours once, runs no tensor operation, so no thread of torch exists when it
forks, and kills whatever processes the work leaves behind. When its caller dies it dies too, and
so does the work. Its imports are kept light, for it is started with every sweep.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from spanwise.errors import one_line

LEFT, BROKE = 64, 70
"""Exit codes of work that called sys.exit without one, and of work that broke off untold."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_OUT_OF_MEMORY = (
    "not enough memory: you tried to allocate",
    "can't allocate memory",
    "cannot allocate memory",
    "out of memory",
    "std::bad_alloc",
)
# torch's optimisers import its compiler when the first is made: longer than a small cell takes.
_PRELOADED = (
    "torch",
    "torch._dynamo",
    "spanwise.phases",
    "spanwise.soundness",
    "spanwise.model",
    "spanwise.train",
    "spanwise.cost",
    "spanwise.reach",
    "spanwise.probes",
)


def is_out_of_memory(text: str) -> bool:
    """Return whether ``text`` is how Python, torch or an allocator says that memory is short."""
    lower = text.lower()
    return any(sign in lower for sign in _OUT_OF_MEMORY)


def _serve(descriptor: int) -> None:
    """Fork one process for each request on the socket, until its other end is closed."""
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _preload()
    wake, alarm = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(alarm)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        data, files, _, _ = socket.recv_fds(connection, 16, 3)
        if not data:
            return
        question, answer, output = files
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            _work(question, answer, output)
        for file in files:
            os.close(file)
        connection.send(json.dumps({"pid": child}).encode())
        if not _await_child(child, connection, wake):
            return


def _await_child(child: int, connection: socket.socket, wake: int) -> bool:
    """Wait for the work, report its end; return False, with all killed, once the caller is gone."""
    watched: list[Any] = [connection, wake]
    while True:
        ready = select.select(watched, [], [], 1.0)[0]
        if wake in ready:
            with suppress(BlockingIOError):
                os.read(wake, 4096)
        pid, status, usage = os.wait4(child, os.WNOHANG)
        gone = connection in ready
        if not pid and gone:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
            pid, status, usage = os.wait4(child, 0)
        if pid:
            _kill_strays(child)
            message = {
                "exit": os.waitstatus_to_exitcode(status),
                "peak_resident_bytes": usage.ru_maxrss * 1024,
            }
            with suppress(OSError):
                connection.send(json.dumps(message).encode())
            return not gone


def _kill_strays(group: int) -> None:
    """Kill every process that the work left behind, whatever session it fled to."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(50):
        children = _children()
        if not children:
            return
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def _children() -> list[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(OSError):
        return [int(pid) for pid in path.read_text().split()]
    return []


def _preload() -> None:
    names = list(_PRELOADED)
    for package in ("variants", "tasks"):
        with suppress(Exception):
            module = importlib.import_module(package)
            names += [f"{package}.{found.name}" for found in pkgutil.iter_modules(module.__path__)]
    for name in names:
        # What cannot be imported fails again, and is told, in the work that needs it.
        with suppress(Exception):
            importlib.import_module(name)


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _work(question: int, answer: int, output: int) -> None:
    """Do one piece of work in the forked process, which ends here."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
        with os.fdopen(question, "rb") as file:
            request = json.loads(file.read())
        outcome = _do(request)
        with os.fdopen(answer, "wb") as file:
            file.write(json.dumps(outcome).encode())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    except SystemExit as leaving:
        os._exit(leaving.code if isinstance(leaving.code, int) and leaving.code else LEFT)
    except BaseException:
        with suppress(BaseException):
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(BROKE)


def _do(request: dict[str, Any]) -> dict[str, Any]:
    module, _, name = request["function"].partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        if request["memory_gib"] is not None:
            _limit_memory(request["memory_gib"])
        value = function(request["payload"])
        json.dumps(value)
        return {"status": "ok", "value": value}
    except Exception as error:
        _unlimit_memory()
        trace = traceback.format_exc()
        text = str(error) or type(error).__name__
        oom = isinstance(error, MemoryError) or is_out_of_memory(text)
        return {
            "status": "oom" if oom else "error",
            "message": one_line(text) if str(error) else type(error).__name__,
            "kind": type(error).__name__,
            "trace": trace[-20_000:],
        }


def _limit_memory(gib: float) -> None:
    """Let this process map ``gib`` more than it has mapped now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(gib * 2**30)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(
        resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
    )


def _unlimit_memory() -> None:
    # So that telling what happened does not itself run out of memory.
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
