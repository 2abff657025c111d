import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spanwise import locks

SCRIPT = """
import sys
from pathlib import Path
from spanwise import locks
kind, folder = sys.argv[1], Path(sys.argv[2])
print("asks", flush=True)
with getattr(locks, kind)(folder):
    print("holds", flush=True)
    sys.stdin.readline()
print("left", flush=True)
"""


class Holder:
    """A process of its own that asks for a lock and holds it until told to leave."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, kind, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        self.expect("asks")

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.expect("left")
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def test_shared_holders_meet_and_keep_the_exclusive_out(tmp_path: Path) -> None:
    one, two = Holder("shared", tmp_path), Holder("shared", tmp_path)
    one.expect("holds")
    two.expect("holds")
    with pytest.raises(TimeoutError), locks.exclusive(tmp_path, timeout=0.1):
        pass
    one.leave()
    with pytest.raises(TimeoutError), locks.exclusive(tmp_path, timeout=0.1):
        pass
    two.leave()
    with locks.exclusive(tmp_path, timeout=10):
        pass


def test_exclusive_keeps_everyone_out(tmp_path: Path) -> None:
    holder = Holder("exclusive", tmp_path)
    holder.expect("holds")
    for kind in (locks.shared, locks.exclusive):
        with pytest.raises(TimeoutError), kind(tmp_path, timeout=0.1):
            pass
    holder.leave()
    with locks.shared(tmp_path, timeout=10):
        pass


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_a_killed_holder_holds_nothing(tmp_path: Path, kind: str) -> None:
    holder = Holder(kind, tmp_path)
    holder.expect("holds")
    holder.process.send_signal(signal.SIGKILL)
    holder.process.wait()
    with locks.exclusive(tmp_path, timeout=10):
        pass
    holder.close()


def test_a_killed_waiter_leaves_the_gate_open(tmp_path: Path) -> None:
    reader = Holder("shared", tmp_path)
    reader.expect("holds")
    waiting = Holder("exclusive", tmp_path)
    _until_the_gate_is_closed(tmp_path)
    waiting.close()
    with locks.shared(tmp_path, timeout=10):
        pass
    reader.leave()


def _until_the_gate_is_closed(folder: Path) -> None:
    for _ in range(1000):
        try:
            with locks.shared(folder, timeout=0.02):
                pass
        except TimeoutError:
            return
    raise AssertionError("the exclusive waiter never reached the gate")


def test_readers_that_keep_coming_do_not_starve_the_writer(tmp_path: Path) -> None:
    first = Holder("shared", tmp_path)
    first.expect("holds")
    writer = Holder("exclusive", tmp_path)
    _until_the_gate_is_closed(tmp_path)
    later = Holder("shared", tmp_path)
    first.leave()
    # Were `later` let in beside `first`, the writer would have to wait for it.
    writer.expect("holds")
    writer.leave()
    later.expect("holds")
    later.leave()


def test_a_child_left_behind_by_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    script = SCRIPT.replace(
        '    print("holds", flush=True)',
        "    import os, time\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        time.sleep(600)\n"
        "    print(child, flush=True)",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "exclusive", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "asks"
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    try:
        with locks.exclusive(tmp_path, timeout=10):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdin.close()
        process.stdout.close()


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    seen: list[str] = []

    def ask() -> None:
        try:
            with locks.exclusive(tmp_path, timeout=0.1):
                seen.append("held")
        except TimeoutError:
            seen.append("out")

    with locks.exclusive(tmp_path):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert seen == ["out"]


def test_a_lock_within_a_lock_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    with locks.shared(tmp_path), pytest.raises(RuntimeError, match="already"):
        locks.exclusive(tmp_path).__enter__()
    with locks.exclusive(tmp_path, timeout=10) as waited:
        assert waited >= 0


def test_an_exception_inside_frees_the_lock(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locks.exclusive(tmp_path):
        raise KeyError
    with locks.exclusive(tmp_path, timeout=0.1):
        pass


def test_every_user_may_lock_the_files(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with locks.exclusive(tmp_path):
            pass
    finally:
        os.umask(before)
    for file in tmp_path.iterdir():
        assert file.stat().st_mode & 0o044 == 0o044


def test_a_planted_link_is_not_followed_and_the_users_own_folder_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, own = tmp_path / "machine", tmp_path / "own"
    machine.mkdir()
    own.mkdir()
    (machine / "spanwise-gate.lock").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(locks, "host_folder", lambda: machine)
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(own))
    with contextlib.ExitStack() as stack:
        with pytest.warns(UserWarning, match="this user's own processes only"):
            stack.enter_context(locks.exclusive())
        assert not (tmp_path / "elsewhere").exists()
        assert len(list(own.glob("spanwise-*/*.lock"))) == 2


def test_a_chosen_folder_is_made_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPANWISE_LOCKS", str(tmp_path / "of" / "mine"))
    with locks.exclusive():
        assert (tmp_path / "of" / "mine").is_dir()
