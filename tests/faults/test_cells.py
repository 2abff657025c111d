"""What a cell, a disk and a stranger may do to a sweep, each a row or a line and nothing lost."""

import json
import os
import resource
import subprocess

import pytest
from commands import TINY, finish, start

from spanwise import records


def by_variant(study):
    loaded = records.load(study)
    return {record["choices"]["variant"]: record for record in loaded.records}


def test_each_fault_of_a_variant_is_a_row(command, third_party):
    ended = command.tiny(
        "-m",
        third_party,
        "variant=full,allocatesbackward,wrongshape,leaveschildren,infinite,segfaults,ignoresterm",
        "limits.memory_gib=1",
        "limits.seconds=20",
    )
    assert ended.code == 1, ended.err
    rows = by_variant(command.results / "default")
    assert {name: row["status"] for name, row in rows.items()} == {
        "full": "ok",
        "allocatesbackward": "oom",
        "wrongshape": "error",
        "leaveschildren": "ok",
        "infinite": "diverged",
        "segfaults": "error",
        "ignoresterm": "timeout",
    }
    assert "SIGSEGV" in rows["segfaults"]["message"]
    assert all("\n" not in row["message"] for row in rows.values())
    pids = [int(word) for word in rows["leaveschildren"]["detail"]["output"]["accuracy"].split()]
    assert pids
    assert not any(_alive(pid) for pid in pids)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_task_that_eats_all_memory_is_oom(command, third_party):
    folder = command.folder / "third_party" / "task"
    folder.mkdir()
    (folder / "hungry.yaml").write_text("_target_: third_party_tasks.Hungry\n")
    search = [third_party, "task=hungry", "length=16", "report=null"]
    ended = command("-m", *search, "seed=0,1", "limits.memory_gib=1", "train.steps=2")
    assert ended.code == 1, ended.err
    loaded = records.load(command.results / "default")
    assert [record["status"] for record in loaded.records] == ["oom", "oom"]


def test_a_full_disk_leaves_no_half_record(tmp_path):
    sweep = ["-m", *TINY, "seed=0,1", f"results={tmp_path}"]

    def limited():
        # Smaller than a record, larger than study.json: as a disk that fills up.
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))

    ended = finish(start(*sweep, preexec_fn=limited))
    assert ended.code == 1, ended
    assert "File too large" in ended.err
    assert "0 of 2 cells ok, 0 failed, 2 missing" in ended.out.splitlines()[-1]
    assert list(records.folder(tmp_path / "default").iterdir()) == []
    assert finish(start(*sweep)).code == 0


def test_a_read_only_file_system_is_bad_input(tmp_path, command):
    place = tmp_path / "mounted"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(place)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs more rights")
    try:
        ended = command(*TINY, f"results={place}/results", results=False)
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert ended.code == 2
    assert "Read-only file system" in ended.err
    assert len(ended.err.splitlines()) == 1


HOSTILE = {
    "truncated": '{"version": 1, "key": "',
    "empty": "",
    "foreign": "[1, 2]",
    "newer": json.dumps({"version": 99}),
    "types": json.dumps({"version": 1, "key": 3, "status": {}, "row": "x"}),
    "columns": json.dumps(
        {
            "version": 1,
            "key": "columns",
            "status": "ok",
            "choices": {"variant": "<script>alert(1)</script>", "task": "recall"},
            "config": {"length": 16, "seed": 0},
            "row": {"<b>": 1, "nothing_known": 2, "accuracy": 0.5},
        }
    ),
    "long": json.dumps({"version": 1, "key": "long", "status": "ok", "message": "x" * 10**7}),
}


def test_hostile_records_neither_stop_a_sweep_nor_are_lost(command):
    study = command.results / "default"
    records.folder(study).mkdir(parents=True)
    for name, text in HOSTILE.items():
        (records.folder(study) / f"{name}.json").write_text(text)
    with (records.folder(study) / "huge.json").open("wb") as file:
        file.truncate(100 * 2**20)
    tiny = [text for text in TINY if text != "report=null"]
    ended = command(*tiny)
    assert ended.code == 0, ended.err
    for name, text in HOSTILE.items():
        assert (records.folder(study) / f"{name}.json").read_text() == text
    assert "<script>alert" not in (study / "index.html").read_text()
    assert "Traceback" not in ended.err


def test_a_newer_record_of_a_planned_cell_is_kept_and_told(command):
    assert command.tiny().code == 0
    (path,) = records.folder(command.results / "default").iterdir()
    newer = json.loads(path.read_text()) | {"version": 99}
    path.write_text(json.dumps(newer))
    ended = command.tiny()
    assert ended.code == 1
    assert "newer program" in ended.out
    assert json.loads(path.read_text()) == newer
