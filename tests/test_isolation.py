"""Work in its own process costs itself only, and how it ended is told."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spanwise import isolation


def call(name, payload=None, **limits):
    return isolation.call(f"isolation_work:{name}", payload or {}, **limits)


def test_the_value_and_the_output_come_back():
    outcome = call("double", {"n": 21})
    assert (outcome.status, outcome.value) == ("ok", {"doubled": 42})
    assert "standard output" in outcome.output
    assert "standard error" in outcome.output
    assert outcome.peak_resident_bytes > 2**20


def test_each_work_has_a_process_of_its_own_with_torch_there():
    first, second = call("say_who").value, call("say_who").value
    assert first["torch"]
    assert first["pid"] != second["pid"]
    assert os.getpid() not in (first["pid"], second["pid"])


@pytest.mark.parametrize(
    ("name", "payload", "status", "told"),
    [
        ("refuse", {}, "error", "first line"),
        ("leave", {"code": 3}, "error", "exit code 3"),
        ("leave", {"code": 0}, "error", "sys.exit"),
        ("leave", {"code": "a text"}, "error", "sys.exit"),
        ("leave_hard", {}, "error", "exit code 0"),
        ("kill_itself", {"signal": signal.SIGKILL}, "error", "killed from outside (SIGKILL)"),
        ("kill_itself", {"signal": signal.SIGSEGV}, "error", "SIGSEGV"),
        ("kill_itself", {"signal": signal.SIGTERM}, "error", "SIGTERM"),
        ("answer_what_json_lacks", {}, "error", "not JSON serializable"),
        ("no_such_function", {}, "error", "no_such_function"),
    ],
)
def test_a_bad_end_is_told_in_one_line(name, payload, status, told):
    outcome = call(name, payload)
    assert outcome.status == status
    assert told in outcome.message
    assert "\n" not in outcome.message
    assert outcome.value is None


def test_the_exception_and_its_traceback_are_kept():
    outcome = call("refuse")
    assert outcome.kind == "ValueError"
    assert "second line" in outcome.trace
    assert "isolation_work.py" in outcome.trace


@pytest.mark.parametrize(
    ("name", "payload"),
    [("eat_tensors", {}), ("eat_bytes", {}), ("eat_in_backward", {"copies": 10})],
)
def test_memory_past_the_limit_is_oom(name, payload):
    outcome = call(name, payload, memory_gib=0.7)
    assert outcome.status == "oom"
    assert outcome.message


def test_memory_within_the_limit_is_fine():
    assert call("eat_tensors", memory_gib=1.7).value == 2**28


@pytest.mark.parametrize("name", ["sleep", "spin_holding_signals"])
def test_time_past_the_limit_is_timeout(name):
    outcome = call(name, seconds=0.3)
    assert outcome.status == "timeout"
    assert "0.3 s" in outcome.message


def test_a_killed_server_costs_one_more_try(tmp_path):
    outcome = call("kill_server_once", {"marker": str(tmp_path / "marker")})
    assert (outcome.status, outcome.value) == ("ok", "done")


def test_a_server_that_is_killed_each_time_is_an_error():
    outcome = call("kill_server")
    assert outcome.status == "error"
    assert "fork server" in outcome.message
    assert call("double", {"n": 1}).status == "ok"


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid, seconds=10):
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_children_that_work_leaves_behind_are_killed():
    outcome = call("leave_children")
    assert outcome.status == "ok"
    assert all(gone(pid) for pid in outcome.value)


def test_a_thread_left_behind_does_not_keep_the_process():
    started = time.monotonic()
    assert call("leave_a_thread").value == "done"
    assert time.monotonic() - started < 30


def test_endless_output_keeps_its_end_only():
    outcome = call("shout", {"lines": 5000})
    assert outcome.output.rstrip().endswith("the last line")
    assert len(outcome.output) <= isolation.TAIL_BYTES


def test_work_and_server_die_with_their_caller(tmp_path):
    marker = tmp_path / "marker"
    program = (
        "from spanwise import isolation; "
        f"isolation.call('isolation_work:sleep', {{'marker': {str(marker)!r}}})"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as caller:
        while not (marker.exists() and marker.read_text().endswith(".")):
            assert caller.poll() is None
            time.sleep(0.02)
        caller.kill()
    work, server = (int(pid) for pid in marker.read_text().rstrip(".").split())
    assert gone(work)
    assert gone(server)


def test_an_interrupt_kills_the_work(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    call("double", {"n": 1})
    (server,) = isolation._servers.values()
    with monkeypatch.context() as patch:
        patch.setattr(isolation.Server, "_await_end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call("sleep")
    assert gone(server.process.pid)
    assert call("double", {"n": 2}).value == {"doubled": 4}
