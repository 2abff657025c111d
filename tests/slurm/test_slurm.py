"""A sweep on a real Slurm cluster of one node: `make test-slurm`. Skips without root or Slurm.

Twelve cells as an array; one job is killed, and is told as missing; the same command again does
only that one; the table equals the one that a serial run gives, bit for bit.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import TINY, finish, start

from spanwise import records

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="starting a cluster needs root"),
    pytest.mark.skipif(shutil.which("slurmctld") is None, reason="needs Debian's slurm-wlm"),
]
CLUSTER = Path(__file__).with_name("cluster.sh")
SWEEP = ["-m", *TINY, "variant=full,windowed", "seed=range(6)", "train.steps=20"]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    folder = tmp_path / "cluster"
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    subprocess.run([CLUSTER, "start", folder], check=True)
    yield
    subprocess.run(["scancel", "--user=root"], check=False)
    subprocess.run([CLUSTER, "stop", folder], check=True)


def accuracies(study):
    loaded = records.load(study)
    assert loaded.problems == []
    return {record["key"]: record["row"]["accuracy"] for record in loaded.records}


def kill_a_job(study):
    """Kill the process of the first job that runs a cell, as the kernel does for want of memory."""
    while True:
        for process in psutil.process_iter(["exe", "cmdline"]):
            words = process.info["cmdline"] or []
            ours = "submitit.core._submit" in words and any(str(study) in word for word in words)
            if ours and words[0] == sys.executable and records.running(study):
                process.kill()
                return
        time.sleep(0.1)


def test_a_cluster_gives_what_a_serial_run_gives(cluster, tmp_path):
    on_cluster = [*SWEEP, "hydra/launcher=slurm", f"results={tmp_path / 'slurm'}"]
    study = tmp_path / "slurm" / "default"
    process = start(*on_cluster)
    kill_a_job(study)
    ended = finish(process, timeout=900)
    assert ended.code == 1, ended
    assert "11 of 12 cells ok, 0 failed, 1 missing" in ended.out.splitlines()[-1]
    before = accuracies(study)
    assert len(before) == 11
    ended = finish(start(*on_cluster), timeout=900)
    assert ended.code == 0, ended
    assert "11 of 12 cells were done before" in ended.out
    ended = finish(start(*SWEEP, f"results={tmp_path / 'serial'}"), timeout=900)
    assert ended.code == 0, ended
    assert accuracies(study) == accuracies(tmp_path / "serial" / "default")
    assert before.items() <= accuracies(study).items()
