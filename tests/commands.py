"""The command as tests run it: in this process, or in one of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

TINY = [
    "report=null",
    "length=16",
    "task.pairs=1",
    "task.test_size=8",
    "task.validation_size=8",
    "train.steps=2",
    "train.batch=2",
    "model.d_model=8",
    "model.n_heads=1",
    "model.n_layers=1",
]
"""A cell that is done in a blink, and makes no page."""


@dataclass
class Ended:
    code: int
    out: str
    err: str


class Command:
    """Runs `runner.main` in this process, in a folder of its own, which it may not litter."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        self.results = folder / "results"
        monkeypatch.chdir(folder)
        # What the command sets for itself is undone after the test.
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")

    def __call__(self, *arguments, results=True):
        import runner

        given = [*arguments, f"results={self.results}"] if results else list(arguments)
        self.monkeypatch.setattr(sys, "argv", ["runner.py", *given])
        self.capsys.readouterr()
        try:
            code = runner.main()
        except SystemExit as leaving:
            code = leaving.code
        out, err = self.capsys.readouterr()
        return Ended(code, out, err)

    def tiny(self, *arguments):
        return self(*TINY, *arguments)


def start(*arguments, **options):
    """Start the command in a process of its own."""
    environment = dict(os.environ, OMP_NUM_THREADS="1") | options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, str(REPOSITORY / "runner.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def finish(process, timeout=180):
    out, err = process.communicate(timeout=timeout)
    return Ended(process.returncode, out, err)
