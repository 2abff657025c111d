"""Records are whole or absent, an ok one is never lost, and no file is trusted."""

import json
import multiprocessing
import os
import signal
import time

import pytest

from spanwise import records

KEY = "ab" * 32


def record(key=KEY, status="ok", **more):
    return {
        "version": 1,
        "key": key,
        "study": "s",
        "status": status,
        "row": {"accuracy": 0.5},
    } | more


def put(study, text, key=KEY):
    path = records.path_of(study, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_what_is_written_is_read(tmp_path):
    import numpy as np

    row = {"accuracy": np.float32(0.5), "n": np.int64(3), "loss": float("nan"), "name": "<b>\udc80"}
    records.write(tmp_path, record(row=row, detail={"curve": [(1, 2.5), (2, float("inf"))]}))
    read = records.read(records.path_of(tmp_path, KEY))
    assert read["row"] == {"accuracy": 0.5, "n": 3, "loss": None, "name": "<b>\udc80"}
    assert read["detail"] == {"curve": [[1, 2.5], [2, None]]}


def test_a_failed_record_never_replaces_an_ok_one(tmp_path):
    records.write(tmp_path, record(status="error"))
    records.write(tmp_path, record())
    records.write(tmp_path, record(status="oom"))
    assert records.is_ok(tmp_path, KEY)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not a whole JSON file"),
        (json.dumps(record())[:-7], "not a whole JSON file"),
        (b"\xff\xfe\x00", "not a whole JSON file"),
        ("[" * 100_000, "not a whole JSON file"),
        ("[]", "not a record"),
        ('{"version": "1"}', "not a record"),
        (json.dumps(record(version=2)), "newer program"),
        (json.dumps(record(key="cd" * 32)), "another cell"),
        (json.dumps(record(status="fine")), "unknown status"),
        (json.dumps(record(status=["ok"])), "status is not a text"),
        (json.dumps(record(row=[1])), "row is not a table"),
        (json.dumps(record(row={"accuracy": [1]})), "'accuracy' is not a single value"),
        (json.dumps(record(config=None)), "config is not a table"),
    ],
)
def test_what_is_no_record_is_kept_and_reported(tmp_path, text, told):
    path = put(tmp_path, text)
    records.write(tmp_path, record(key="cd" * 32))
    loaded = records.load(tmp_path)
    assert [r["key"] for r in loaded.records] == ["cd" * 32]
    assert len(loaded.problems) == 1
    assert told in loaded.problems[0]
    assert "\n" not in loaded.problems[0]
    assert path.exists()
    assert not records.is_ok(tmp_path, KEY)


def test_a_huge_file_is_not_read(tmp_path):
    path = put(tmp_path, "")
    os.truncate(path, records.MAX_BYTES + 1)
    with pytest.raises(records.BadRecord, match="more than any record"):
        records.read(path)


def test_a_damaged_file_is_moved_aside_when_its_cell_is_done_again(tmp_path):
    put(tmp_path, "{half")
    records.write(tmp_path, record())
    assert records.is_ok(tmp_path, KEY)
    assert records.path_of(tmp_path, KEY).with_suffix(".json.damaged").read_text() == "{half"


def test_a_newer_record_is_not_replaced(tmp_path):
    path = put(tmp_path, json.dumps(record(version=99)))
    records.write(tmp_path, record())
    assert json.loads(path.read_text())["version"] == 99


def test_nothing_is_left_where_the_disk_is_full(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        records.write(tmp_path, record())
    assert list(records.folder(tmp_path).iterdir()) == []


def _write_forever(study):
    n = 0
    while True:
        n += 1
        records.write(study, record(row={"n": n, "text": "x" * 100_000}))


def test_a_reader_never_sees_half_a_record(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_forever, args=(tmp_path,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        path = records.path_of(tmp_path, KEY)
        while not path.exists():
            time.sleep(0.01)
        for _ in range(100):
            assert records.read(path)["row"]["text"] == "x" * 100_000
    finally:
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
    assert records.load(tmp_path).problems == []
    records.sweep_temporary(tmp_path)
    assert [p.name for p in records.folder(tmp_path).iterdir()] == [f"{KEY}.json"]


def _claim_and_wait(study, held):
    with records.claim(study, KEY) as mine:
        held.put(mine)
        time.sleep(60)


def test_a_claim_is_exclusive_and_ends_with_its_holder(tmp_path):
    context = multiprocessing.get_context("fork")
    held = context.Queue()
    holder = context.Process(target=_claim_and_wait, args=(tmp_path, held))
    holder.start()
    assert held.get(timeout=10) is True
    with records.claim(tmp_path, KEY) as mine:
        assert not mine
    assert records.running(tmp_path) == [KEY]
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert records.running(tmp_path) == []
    with records.claim(tmp_path, KEY) as mine:
        assert mine


def test_a_stamp_changes_whenever_the_record_does(tmp_path, monkeypatch):
    assert records.stamp(tmp_path, KEY) is None
    records.write(tmp_path, record(status="error"))
    first = records.stamp(tmp_path, KEY)
    path = records.path_of(tmp_path, KEY)
    stat = path.stat()
    records.write(tmp_path, record(status="error"))
    # As after a clock that went backwards: the same time again.
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert records.stamp(tmp_path, KEY) != first
