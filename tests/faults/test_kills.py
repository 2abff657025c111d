"""SIGKILL of a cell, of the fork server, of the runner, at random moments of a real sweep.

After each: no finished cell is lost or done twice, no half file is ever read, and the same command
again ends with every cell ok.
"""

import random
import signal
import time

import psutil
import pytest
from commands import TINY, finish, start

from spanwise import records

ROUNDS = [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 51))]
CELLS = 4


def whole(study):
    loaded = records.load(study)
    assert loaded.problems == []
    return {record["key"]: record for record in loaded.records}


def victims(process, kind):
    """Return the processes of that kind that run now under the command."""
    if kind == "runner":
        return [process.pid]
    servers = [child for child in children(process.pid) if is_server(child)]
    if kind == "server":
        return [server.pid for server in servers]
    return [child.pid for server in servers for child in children(server.pid)]


def children(pid):
    try:
        return psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []


def is_server(process):
    # Whatever is listed may end before it is looked at: a zombie has no command line any more.
    try:
        return "spanwise.forkserver" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("seed", ROUNDS)
def test_a_kill_at_any_moment_costs_itself_only(tmp_path, seed):
    chance = random.Random(seed)
    kind = ("cell", "server", "runner")[seed % 3]
    sweep = ["-m", *TINY, "train.steps=40", f"seed=range({CELLS})", f"results={tmp_path}"]
    study = tmp_path / "default"
    process = start(*sweep)
    while not victims(process, "cell") and process.poll() is None:
        time.sleep(0.02)
    time.sleep(chance.random() * 2)
    for _ in range(200):
        found = victims(process, kind)
        if found or process.poll() is not None:
            break
        time.sleep(0.01)
    for pid in found:
        try:
            psutil.Process(pid).send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    first = finish(process)
    before = {key: record for key, record in whole(study).items() if record["status"] == "ok"}
    if kind == "server":
        # A server is replaced, and its work done again.
        assert first.code == 0, first
    if kind == "cell" and first.code == 1:
        assert "killed from outside (SIGKILL)" in first.out
        assert "1 failed, 0 missing" in first.out.splitlines()[-1]
    again = finish(start(*sweep))
    assert again.code == 0, again
    assert f"{CELLS} of {CELLS} cells ok" in again.out.splitlines()[-1]
    after = whole(study)
    assert len(after) == CELLS
    assert all(after[key] == record for key, record in before.items())
    assert [path for path in records.folder(study).iterdir() if path.suffix != ".json"] == []


@pytest.mark.parametrize("sweeps", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_sweeps_at_once_share_a_study(tmp_path, sweeps):
    def command(first):
        seeds = f"seed=range({first},{first + 4})"
        return ["-m", *TINY, "train.steps=40", seeds, f"results={tmp_path}"]

    running = [start(*command(n)) for n in range(sweeps)]
    ended = [finish(process) for process in running]
    assert [one.code for one in ended] == [0] * sweeps, ended
    assert all("4 of 4 cells ok" in one.out.splitlines()[-1] for one in ended)
    assert len(whole(tmp_path / "default")) == 3 + sweeps
    # No cell was done by two: each was told as finished once by the sweep that did it.
    assert records.running(tmp_path / "default") == []
