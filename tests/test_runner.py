"""The command: what it does, says and leaves, from one cell to a sweep that is killed."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from commands import REPOSITORY, TINY, finish, start

from spanwise import records
from spanwise.errors import ConfigError


def read(study):
    loaded = records.load(study)
    assert loaded.problems == []
    return loaded.records


def test_one_cell_is_one_record(command):
    ended = command.tiny("variant=windowed", "variant.window=4", "seed=3", "study=one")
    assert ended.code == 0, ended.err
    assert "1 of 1 cells ok" in ended.out
    (record,) = read(command.results / "one")
    assert record["status"] == "ok"
    assert record["choices"]["variant"] == "windowed"
    assert record["config"]["variant"]["window"] == 4
    assert record["config"]["seed"] == 3
    assert 0 <= record["row"]["accuracy"] <= 1
    assert record["row"]["n_params"] > 0
    # Causal, window 4, length 16: 1 + 2 + 3 + 13 * 4 keys over 16 queries.
    assert record["row"]["keys_per_query"] == pytest.approx(58 / 16)
    assert record["row"]["train_threads"] == 1
    assert record["visibility"]["layers"][0][4].startswith("011110")
    assert record["machine"]["torch"]
    assert record["started"] < record["ended"]


def test_cost_and_accuracy_make_one_record(command):
    ended = command.tiny("measure=both", "cost=quick", "cost.budget_seconds=0.1", "threads=1")
    assert ended.code == 0, ended.err
    (record,) = read(command.results / "default")
    assert record["row"]["forward_ms"] > 0
    assert record["row"]["accuracy"] is not None
    assert {"train", "cost"} <= set(record["detail"])


def test_a_sweep_is_the_product_and_is_not_done_twice(command):
    sweep = ["-m", "variant=full,windowed", "seed=0,1"]
    assert command.tiny(*sweep).code == 0
    study = command.results / "default"
    first = {record["key"]: record for record in read(study)}
    assert len(first) == 4
    ended = command.tiny(*sweep)
    assert ended.code == 0
    assert "4 of 4 cells were done before" in ended.out
    ended = command.tiny("-m", "variant=full,windowed", "seed=0,1,2")
    assert "6 of 6 cells ok" in ended.out
    second = {record["key"]: record for record in read(study)}
    assert len(second) == 6
    assert all(second[key] == record for key, record in first.items())


def test_hydra_leaves_nothing_of_its_own(command):
    command.tiny("-m", "seed=0,1")
    assert [path.name for path in command.folder.iterdir()] == ["results"]
    study = command.results / "default"
    assert {path.name for path in study.iterdir()} == {"records", "claims", "study.json"}
    assert list((study / "claims").iterdir()) == []
    assert "runner.py" in json.loads((study / "study.json").read_text())["command"]


def test_failed_cells_are_rows_and_the_code_is_1(command, third_party):
    ended = command.tiny(
        "-m",
        third_party,
        "hydra.sweeper.parts=[{variant:'full,raises,allocates,leaves,prints,nans,killed'},"
        "{variant:sleeps,limits.seconds:2}]",
        "limits.memory_gib=1",
    )
    assert ended.code == 1
    by_variant = {r["choices"]["variant"]: r for r in read(command.results / "default")}
    statuses = {name: record["status"] for name, record in by_variant.items()}
    assert statuses == {
        "full": "ok",
        "raises": "error",
        "allocates": "oom",
        "sleeps": "timeout",
        "leaves": "error",
        "prints": "ok",
        "nans": "diverged",
        "killed": "error",
    }
    assert by_variant["raises"]["message"] == "attend cannot do this"
    assert "third_party.py" in by_variant["raises"]["traceback"]
    assert "SIGKILL" in by_variant["killed"]["message"]
    assert "a word from the variant" in by_variant["prints"]["detail"]["output"]["accuracy"]
    assert "a word from the variant" not in ended.out + ended.err
    for name in ("raises", "allocates", "sleeps", "leaves", "nans", "killed"):
        assert f"failed: {statuses[name]} {name} recall" in ended.out
    assert "2 of 8 cells ok, 6 failed, 0 missing" in ended.out.splitlines()[-1]


def test_workers_account_for_every_cell(command, third_party):
    ended = command.tiny(
        "-m", third_party, "hydra/launcher=workers", "variant=full,raises", "seed=0,1"
    )
    assert ended.code == 1, ended.err
    assert "2 of 4 cells ok, 2 failed, 0 missing" in ended.out.splitlines()[-1]
    assert len(read(command.results / "default")) == 4


def test_a_job_that_a_launcher_loses_is_missing(command, monkeypatch):
    from hydra._internal.core_plugins.basic_launcher import BasicLauncher

    whole = BasicLauncher.launch

    def loses_the_last(self, job_overrides, initial_job_idx):
        whole(self, job_overrides[:-1], initial_job_idx)
        raise RuntimeError("a worker\nwas killed")

    with monkeypatch.context() as patch:
        patch.setattr(BasicLauncher, "launch", loses_the_last)
        ended = command.tiny("-m", "seed=0,1,2")
    assert ended.code == 1
    assert "the launcher stopped: a worker" in ended.err
    assert "missing: full recall length=16 seed=2 accuracy" in ended.out
    assert "2 of 3 cells ok, 0 failed, 1 missing" in ended.out
    assert command.tiny("-m", "seed=0,1,2").code == 0


def test_a_record_that_cannot_be_written_is_missing_and_told(command, monkeypatch):
    def full(study, record):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(records, "write", full)
        ended = command.tiny("-m", "seed=0,1")
    assert ended.code == 1
    assert "No space left on device" in ended.err
    assert "0 of 2 cells ok, 0 failed, 2 missing" in ended.out


def test_parts_are_a_union_and_the_command_line_wins(command):
    parts = "[{variant:'full,windowed',seed:[0,1]},{variant:full,length:'16,32'}]"
    ended = command.tiny("-m", f"hydra.sweeper.parts={parts}", "seed=1")
    assert ended.code == 0, ended.err
    cells = {
        (r["choices"]["variant"], r["config"]["length"], r["config"]["seed"])
        for r in read(command.results / "default")
    }
    # TINY's own length=16 replaces the part's lengths.
    assert cells == {("full", 16, 1), ("windowed", 16, 1)}


def test_a_new_variant_is_two_small_files(command):
    package = command.folder / "their"
    (package / "configs" / "variant").mkdir(parents=True)
    (package / "their_variants.py").write_text(
        "from variants.interface import RuleAttention\n\n\n"
        "class EveryOther(RuleAttention):\n"
        "    label = 'Every other'\n\n"
        "    def sees(self, q, k):\n"
        "        return (q - k) % 2 == 0\n"
    )
    (package / "configs" / "variant" / "every_other.yaml").write_text(
        "# Keys at an even distance.\n_target_: their_variants.EveryOther\n"
    )
    environment = {"PYTHONPATH": str(package)}
    search_path = f"hydra.searchpath=[file://{package / 'configs'}]"
    sweep = [*TINY, search_path, f"results={command.results}"]
    ended = finish(start("-m", *sweep, "variant=full,every_other", env=environment))
    assert ended.code == 0, ended.err
    rows = {r["choices"]["variant"]: r for r in read(command.results / "default")}
    assert rows["every_other"]["display"]["variant"]["label"] == "Every other"
    assert rows["every_other"]["row"]["keys_per_query"] == pytest.approx(72 / 16)
    ended = finish(start("action=list", search_path, env=environment))
    assert "variant=every_other" in ended.out
    assert "Keys at an even distance." in ended.out


def test_a_killed_sweep_goes_on_where_it_was(command):
    sweep = ["-m", *TINY, "train.steps=30", f"results={command.results}", "seed=range(6)"]
    study = command.results / "default"
    process = start(*sweep)
    while len(list(records.folder(study).glob("*.json"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = {r["key"]: r for r in read(study)}
    assert 2 <= len(before) < 6
    ended = finish(start(*sweep))
    assert ended.code == 0, ended.err
    after = {r["key"]: r for r in read(study)}
    assert len(after) == 6
    assert all(after[key] == record for key, record in before.items())
    assert [p.name for p in records.folder(study).iterdir() if p.suffix != ".json"] == []


def test_an_interrupt_says_how_to_go_on(command):
    sweep = ["-m", *TINY, "train.steps=100", f"results={command.results}", "seed=range(20)"]
    study = command.results / "default"
    process = start(*sweep)
    while not list(records.folder(study).glob("*.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    ended = finish(process)
    assert ended.code == 130, ended.err
    assert "interrupted: " in ended.out.splitlines()[-1]
    assert "goes on from here" in ended.out.splitlines()[-1]
    assert "Traceback" not in ended.err
    assert 1 <= len(read(study)) < 20
    assert records.running(study) == []


def test_an_interrupt_while_libraries_load_is_no_traceback():
    process = start("seed=0,1", "-m", env={"PYTHONPROFILEIMPORTTIME": "1"})
    for line in process.stderr:
        if "omegaconf" in line:
            break
    process.send_signal(signal.SIGINT)
    ended = finish(process)
    assert ended.code == 130
    assert "interrupted" in ended.err
    assert "Traceback" not in ended.err


def test_an_interrupt_that_a_library_makes_its_own_error_is_an_interrupt(command, monkeypatch):
    import runner

    def job():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ConfigError("defaults: 'NoneType' object has no attribute") from None

    monkeypatch.setattr(runner, "job", job)
    ended = command()
    assert (ended.code, ended.err) == (130, "interrupted\n")


def test_workers_end_with_their_runner(tmp_path):
    sweep = ["-m", "hydra/launcher=workers", *TINY, "train.steps=200", f"results={tmp_path}"]
    process = start(*sweep, "seed=range(20)")
    study = tmp_path / "default"
    while not list(records.folder(study).glob("*.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    finish(process)
    gone, alive = psutil.wait_procs(below, timeout=20)
    assert gone
    assert alive == []
    assert len(read(study)) < 20


def test_help_and_list_do_without_torch():
    program = (
        "import sys; sys.argv[1:] = sys.argv[1:]; import runner\n"
        "try: runner.main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    for argument in ("--help", "action=list", "variant=windwed"):
        done = subprocess.run(
            [sys.executable, "-c", program, argument],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == "False False", argument


def test_list_has_a_line_for_every_option(command):
    ended = command("action=list", results=False)
    assert ended.code == 0
    lines = ended.out.splitlines()
    for group in ("variant", "task", "model", "train", "cost", "experiment"):
        folder = REPOSITORY / "configs" / group
        for path in folder.rglob("*.yaml"):
            option = f"{group}={path.relative_to(folder).with_suffix('')} "
            (line,) = [text for text in lines if text.startswith(option)]
            assert line.removeprefix(option).strip(), f"{path}: says nothing"


def test_a_sweep_of_actions_is_one(command):
    ended = command("-m", "action=list", "seed=0,1", results=False)
    assert ended.code == 0
    assert ended.out.count("action=run") == 1
