"""Bad options of every benchmark: one line, exit code 2, before anything is measured or written.

Each line is a benchmark and its options and, after ``->``, what its message must say.
"""

import json
import shlex

import pytest
import torch

from benchmarks import attention, noise, overhead, pages, peers, reach, table
from benchmarks.options import check_memory

MODULES = {module.__name__.partition(".")[2]: module for module in (attention, noise, overhead)}
MODULES |= {module.__name__.partition(".")[2]: module for module in (pages, peers, reach)}

TABLE = """
attention --lengths 0 -> --lengths: found '0'|a whole number from 1
attention --lengths -5 -> --lengths
attention --lengths 64,x -> --lengths: found 'x'|a whole number from 1
attention --lengths 64, -> --lengths: found ''
attention --lengths 1.5 -> --lengths: found '1.5'
attention --lengths 99999999999 -> --lengths|to 16777216
attention --lengths 16777216 --heads 4096 -> GiB needed|of this machine
attention --lengths 4194304 --window 4194304 -> nothing to measure|operations
attention --lengths 65536 --kernels 'dense mask' -> nothing to measure|too large for dense mask
attention --heads 0 -> --heads: found '0'
attention --head-dim 0,64 -> --head-dim: found '0'
attention --window 0 -> --window: found '0'
attention --window 999999999999999999999999 -> --window
attention --batch 0 -> --batch: found '0'
attention --threads 0 -> --threads: found '0'|from 1 to
attention --threads -1 -> --threads
attention --threads 99999 -> --threads: found '99999'
attention --repetitions 0 -> --repetitions: found '0'
attention --repetitions many -> --repetitions: found 'many'
attention --seconds 0 -> --seconds: found '0'|a number above 0
attention --seconds -1 -> --seconds
attention --seconds nan -> --seconds: found 'nan'
attention --seconds inf -> --seconds: found 'inf'
attention --rules windw -> --rules: found 'windw'|chunked|Did you mean 'window'
attention --rules window,, -> --rules: found ''
attention --kernels blks -> --kernels: found 'blks'|dense mask|Did you mean 'blocks'
attention --dtype float31 -> --dtype: found 'float31'|Did you mean 'float32'
attention --device gpu -> --device: found 'gpu'|cpu, cuda
attention --write a/b -> --write: found 'a/b'|a name of letters
attention --write ../a -> --write: found '../a'
attention --write '' -> --write
attention --lenghts 64 -> --lenghts: no such option|Did you mean '--lengths'
attention window_8129 -> tables: found 'window_8129'|wide|Did you mean 'window_8192'
attention auto wide --write mine -> --write names one table
peers --lengths 0 -> --lengths
peers --windows=64 -> --windows: no such option|Did you mean '--window'
peers 64 -> unrecognized arguments: 64
peers --settings layr -> --settings: found 'layr'|causal, layer|Did you mean 'layer'
peers --window 0 -> --window: found '0'
peers --window 3 -> --window: found '3'|an even number
peers --heads 0 -> --heads
peers --heads 4096 --head-dim 4096 -> GiB needed
peers --head-dim x -> --head-dim
peers --batch 0 -> --batch
peers --threads 0 -> --threads
peers --repetitions 0 -> --repetitions
peers --seconds nan -> --seconds
peers --memory-gib 0 -> --memory-gib|above 0
peers --longest -1 -> --longest
peers --keys-seconds -1 -> --keys-seconds|of at least 0
peers --write a/b -> --write
reach --length 0 -> --length
reach --length 1e6 -> --length: found '1e6'
reach --length 16777216 --heads 4096 -> a step at 16,777,216 tokens|GiB needed
reach --window 99999 -> a step at 1,048,576 tokens, window 99,999|operations
reach --window 0 -> --window
reach --heads 0 -> --heads
reach --head-dim 0 -> --head-dim
reach --write /tmp/x -> --write: found '/tmp/x'
noise --processes 0 -> --processes: found '0'
noise --seconds nan -> --seconds
noise --threads 0 -> --threads
noise --threads 99999 -> --threads
noise --fill 0 -> --fill
noise --conditions laoded -> --conditions: found 'laoded'|quiet, loaded|Did you mean 'loaded'
noise --samples /dev/null/x -> --samples: cannot write to /dev/null
noise --samples . -> --samples: . holds other than samples
overhead --cells 0 -> --cells: found '0'
overhead --cells 1e9 -> --cells
pages 0 -> records: found '0'
pages many -> records: found 'many'
pages 10401 -> records: found '10401'|to 10400
"""
ROWS = [line for line in TABLE.splitlines() if line]


@pytest.fixture(autouse=True)
def _nothing_is_measured_or_written(tmp_path, monkeypatch):
    def no(*_, **__):
        raise AssertionError("bad options came as far as the measurement")

    monkeypatch.setattr(table, "OUT", tmp_path / "out")
    monkeypatch.setattr(attention, "timed", no)
    monkeypatch.setattr(peers, "tried", no)
    monkeypatch.setattr(reach, "planning", no)
    monkeypatch.setattr(noise, "measure_apart", no)
    monkeypatch.setattr(overhead, "sweep", no)
    monkeypatch.setattr(pages, "made", no)
    monkeypatch.chdir(tmp_path)


def refused(capsys, module, *arguments):
    with pytest.raises(SystemExit) as caught:
        module.main(list(arguments))
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert caught.value.code == 2
    assert out == ""
    assert line.startswith("error: ")
    assert len(line) < 400
    return line


@pytest.mark.parametrize("row", ROWS)
def test_bad_options_are_one_line(row, capsys, tmp_path):
    text, _, told = row.rpartition(" -> ")
    name, *arguments = shlex.split(text)
    line = refused(capsys, MODULES[name], *arguments)
    for part in told.split("|"):
        assert part in line
    assert list(tmp_path.iterdir()) == []


def test_cuda_is_refused_where_there_is_none(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = refused(capsys, attention, "--device", "cuda")
    assert "--device: found 'cuda'" in line
    assert "allowed: cpu" in line


def test_blocks_is_refused_on_cuda(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    line = refused(capsys, attention, "--device", "cuda", "--kernels", "auto,blocks")
    assert "--kernels: blocks runs on the CPU" in line


@pytest.mark.parametrize("name", ["attention", "peers", "reach"])
def test_a_folder_that_cannot_be_written_is_told_before_the_measurement(name, capsys, monkeypatch):
    from pathlib import Path

    monkeypatch.setattr(table, "OUT", Path("/dev/null/out"))
    line = refused(capsys, MODULES[name])
    assert "argument --write: cannot write to /dev/null/out" in line
    line = refused(capsys, MODULES[name], "--window", "32", "--write", "mine")
    assert "argument --write: cannot write to /dev/null/out" in line


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ("{", "Expecting"),
        ("[]", "no table of conditions"),
        ('{"quiet": 3}', "no table of conditions"),
        ('{"silent": []}', "a condition 'silent'"),
        ('{"quiet": [{"other": {}}]}', "a run of other cells"),
        (None, "a run without turn"),
    ],
)
def test_a_file_of_other_samples_is_not_replaced(kept, message, capsys, tmp_path):
    if kept is None:
        run = {f"{name} {kind}": {} for name in noise.cells() for kind in ("forward", "train")}
        kept = json.dumps({"quiet": [run]})
    (tmp_path / "samples.json").write_text(kept)
    line = refused(capsys, noise, "--samples", "samples.json")
    assert "--samples: samples.json holds other than samples of this study" in line
    assert message in line
    assert (tmp_path / "samples.json").read_text() == kept


def test_a_flex_that_is_asked_for_by_name_is_a_contender(monkeypatch):
    asked = []

    def stop(todo, options):
        asked.extend(todo)
        raise InterruptedError

    monkeypatch.setattr(attention, "timed", stop)
    with pytest.raises(InterruptedError):
        attention.main(["--lengths", "32", "--kernels", "flex"])
    assert asked == ["flex/forward"]


def test_what_is_left_out_is_said_and_the_rest_is_measured(capsys, monkeypatch):
    measured = []

    def measure(setting, options):
        measured.append(setting.length)
        return [{"length": setting.length}]

    monkeypatch.setattr(attention, "measure", measure)
    attention.main(["--lengths", "64,65536,128", "--kernels", "dense mask"])
    assert measured == [64, 128]
    left = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert len(left) == 1
    assert "65536" in left[0]


def test_every_contender_may_be_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    made = set()
    for arguments in (["--flex"], ["--device", "cuda"]):
        parsed = []
        monkeypatch.setattr(attention, "measure", lambda s, o, parsed=parsed: parsed.append((s, o)))
        with pytest.raises(TypeError):  # nothing measured is nothing to show
            attention.main(["--lengths", "64", *arguments])
        setting, options = parsed[0]
        made |= set(
            attention.contenders(setting, *attention.rules(options.window)[setting.rule], options)
        )
    assert made == set(attention.CONTENDERS)


def test_what_fits_is_let_through(capsys):
    from benchmarks.options import Parser

    check_memory(Parser(""), "a byte", 1)
    assert capsys.readouterr() == ("", "")
