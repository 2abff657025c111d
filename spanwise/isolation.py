"""A process of its own for each piece of work, forked from a server that has torch imported.

A fresh interpreter spends seconds on importing torch; a fork of one that has done so starts in a
fraction of that, yet costs only itself when it eats all memory, never returns or is killed. The
server runs no tensor operation, so no thread of torch exists when it forks.

`call` names a function and gives it plain data; the function's value comes back as JSON. The work
runs in a session of its own, with its standard output and error kept, and whatever processes it
leaves behind are killed with it. When the caller dies, the server and the work die too.

The server's program, and the work's side of it, are in `spanwise.forkserver`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from spanwise.forkserver import BROKE, LEFT, is_out_of_memory

TAIL_BYTES = 16 * 1024
"""How much of the end of a work's output is kept."""
_OUTPUT_LIMIT = 2**20


@dataclass(frozen=True)
class Outcome:
    """How a piece of work ended.

    status: ``ok``, ``oom``, ``timeout`` or ``error``. value: what the function returned.
    message: one line, empty when ok. kind: the name of the exception's class, if one ended it.
    trace: its traceback. output: the end of what the work wrote to standard output and error.
    peak_resident_bytes: the most memory that its process had resident.
    """

    status: str
    value: Any = None
    message: str = ""
    kind: str = ""
    trace: str = ""
    output: str = ""
    peak_resident_bytes: int | None = None


class ServerDied(RuntimeError):
    """The fork server was killed while it had work."""


def call(
    function: str,
    payload: Any,
    *,
    memory_gib: float | None = None,
    seconds: float | None = None,
) -> Outcome:
    """Run ``function`` ("module:name") on ``payload`` in a process of its own; say how it ended.

    payload: what JSON can hold. memory_gib: how much address space the work may take beyond what
    it starts with; None for no limit. seconds: after this much time it is killed; None for no
    limit. Work whose server is killed is done once more. Never raises for what the work does;
    KeyboardInterrupt kills the work and passes on.
    """
    request = {"function": function, "payload": payload, "memory_gib": memory_gib}
    for _ in range(2):
        server = _server()
        try:
            return server.run(request, seconds)
        except ServerDied:
            server.stop()
            _forget_server(server)
        except BaseException:
            server.stop()
            _forget_server(server)
            raise
    return Outcome("error", message="the fork server was killed twice during this work")


class Server:
    """The caller's side of one fork server."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ, KINETO_LOG_LEVEL="99")
        root = str(Path(__file__).resolve().parents[1])
        paths = [root, *(path for path in sys.path if path)]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "spanwise.forkserver", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.socket = ours
        self.working = False

    def run(self, request: dict[str, Any], seconds: float | None) -> Outcome:
        """Have the server do one piece of work; see `call`."""
        kills = _kernel_kills()
        with tempfile.TemporaryFile() as question, tempfile.TemporaryFile() as answer:
            with tempfile.TemporaryFile("a+b") as output:
                question.write(json.dumps(request).encode())
                question.seek(0)
                files = [question.fileno(), answer.fileno(), output.fileno()]
                try:
                    socket.send_fds(self.socket, [b"work"], files)
                except OSError:
                    raise ServerDied from None
                ended, timed_out = self._await_end(seconds, output)
                self.working = False
                text = _tail(output)
            answer.seek(0)
            reply = answer.read()
        peak = ended["peak_resident_bytes"]
        if timed_out:
            message = f"stopped after {seconds:g} s (limits.seconds)"
            return Outcome("timeout", message=message, output=text, peak_resident_bytes=peak)
        if ended["exit"] == 0 and reply:
            return Outcome(**json.loads(reply), output=text, peak_resident_bytes=peak)
        status, message = _explain_exit(ended["exit"], _kernel_kills() > kills, text)
        return Outcome(status, message=message, output=text, peak_resident_bytes=peak)

    def _await_end(self, seconds: float | None, output: IO[bytes]) -> tuple[dict[str, Any], bool]:
        started = self._receive(None, output)
        if "exit" in started:
            return started, False
        self.working = True
        ended = self._receive(seconds, output)
        if ended:
            return ended, False
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(started["pid"], signal.SIGKILL)
        return self._receive(None, output), True

    def _receive(self, seconds: float | None, output: IO[bytes]) -> dict[str, Any]:
        """Return the server's next message, or {} when ``seconds`` have passed without one."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = 0.5 if deadline is None else min(0.5, deadline - time.monotonic())
            if select.select([self.socket], [], [], max(0.0, left))[0]:
                try:
                    message = self.socket.recv(4096)
                except OSError:
                    message = b""
                if not message:
                    raise ServerDied
                return dict(json.loads(message))
            _trim(output)
            if deadline is not None and time.monotonic() >= deadline:
                return {}

    def stop(self) -> None:
        """End the server and whatever work it has."""
        self.socket.close()
        if self.working:
            # It kills its work first.
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
                return
        # Nothing to tidy up, and an interpreter with torch in it takes a second to leave by itself.
        self.process.kill()
        self.process.wait()


_servers: dict[tuple[int, int], Server] = {}


def _server() -> Server:
    # One a process and thread: a server does one piece of work at a time, and a forked process
    # must not talk to its parent's.
    key = (os.getpid(), threading.get_ident())
    if key not in _servers:
        _servers[key] = Server()
    return _servers[key]


def _forget_server(server: Server) -> None:
    for key, known in list(_servers.items()):
        if known is server:
            del _servers[key]


@atexit.register
def stop_servers() -> None:
    """End the fork servers of this process; the next `call` starts a new one."""
    for (pid, _), server in list(_servers.items()):
        if pid == os.getpid():
            server.stop()
    _servers.clear()


RUNNER = "SPANWISE_RUNNER"
"""The environment variable in which the runner tells its workers its process id."""


@cache
def follow_runner() -> None:
    """End this process soon after its parent, if that is the runner; a worker calls it.

    A launcher's worker whose runner was killed would do the cells it still has, and then wait for
    more for ever.
    """
    runner = os.getppid()
    if os.environ.get(RUNNER) == str(runner):
        threading.Thread(target=_end_after, args=(runner,), daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    stop_servers()
    os._exit(1)


def _tail(output: IO[bytes]) -> str:
    size = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(
        "utf-8", "replace"
    )


def _trim(output: IO[bytes]) -> None:
    # The file is opened for appending, so that cutting it loses nothing that is written later.
    if os.fstat(output.fileno()).st_size > _OUTPUT_LIMIT:
        with suppress(OSError):
            os.ftruncate(output.fileno(), 0)


def _kernel_kills() -> int:
    """Return how often this machine's kernel has killed for want of memory."""
    total = 0
    for path, name in (("/proc/vmstat", "oom_kill"), ("/sys/fs/cgroup/memory.events", "oom_kill")):
        with suppress(OSError, ValueError), Path(path).open(encoding="ascii") as file:
            total += sum(int(line.split()[1]) for line in file if line.split()[0] == name)
    return total


def _explain_exit(code: int, kernel_killed: bool, output: str) -> tuple[str, str]:
    """Return (status, message) for work that ended without an answer."""
    if is_out_of_memory(output):
        return "oom", "out of memory: " + _last_line(output)
    if code < 0:
        name = signal.Signals(-code).name
        if -code == signal.SIGKILL:
            if kernel_killed:
                return "oom", "killed by the kernel, which was out of memory"
            return "error", "killed from outside (SIGKILL)"
        return "error", f"ended by {name}" + (f": {_last_line(output)}" if output.strip() else "")
    if code == LEFT:
        return "error", "left by itself (sys.exit in the cell)"
    if code == BROKE:
        return "error", f"broke off: {_last_line(output)}"
    return "error", f"left by itself with exit code {code} (sys.exit or os._exit in the cell)"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
