"""What a sweep costs beside its cells: ``python -m benchmarks.overhead``.

Prints, each from sweeps in a temporary folder:
- the seconds a cell takes beside its training, over many trivial cells one after another;
- the seconds to find 1,000 cells done, and to plan 1,000 and start the first;
- the throughput of 12 equal cells with workers on every core, over one after another.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.options import Parser, at_least

ROOT = Path(__file__).resolve().parents[1]
TRIVIAL = [
    "report=null",
    "length=16",
    "task.pairs=1",
    "task.test_size=8",
    "task.validation_size=8",
    "train.steps=1",
    "train.batch=2",
    "model.d_model=8",
    "model.n_heads=1",
    "model.n_layers=1",
]
EQUAL = [
    "report=null",
    "model=recall",
    "train=recall",
    "length=64",
    "task.pairs=4",
    "train.steps=600",
]


def sweep(results: Path, *overrides: str) -> float:
    """Run a sweep; return its seconds."""
    began = time.perf_counter()
    command = [sys.executable, str(ROOT / "runner.py"), "-m", f"results={results}", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def records(results: Path) -> Path:
    """Return the folder of the records of the default study."""
    return results / "default" / "records"


def beside_training(results: Path, cells: int) -> float:
    """Return the seconds of a cell beside its training, the start of the sweep not counted."""
    sweep(results, *TRIVIAL, f"seed=range({cells})")
    files = [json.loads(path.read_text()) for path in records(results).glob("*.json")]
    ends = sorted(path.stat().st_mtime for path in records(results).glob("*.json"))
    trained = sum(file["row"]["train_seconds"] for file in files) / cells
    return (ends[-1] - ends[0]) / (cells - 1) - trained


def finding_done(results: Path, cells: int) -> float:
    """Return the seconds of a sweep all of whose cells are done."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from spanwise import config
    from spanwise import records as store
    from spanwise.composition import Composer

    overrides = [*TRIVIAL, f"results={results}"]
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        composer = Composer(GlobalHydra.instance().config_loader(), "config", [])
        for seed in range(cells):
            values, choices = composer.compose([*overrides, f"seed={seed}"])
            key = config.key_of(values, choices)
            curve = [{"step": step, "loss": 1.0} for step in range(50)]
            record = {"version": 1, "key": key, "status": "ok", "config": values}
            store.write(results / "default", record | {"detail": {"train": {"curve": curve}}})
    return sweep(results, *TRIVIAL, f"seed=range({cells})")


def starting(results: Path, cells: int) -> float:
    """Return the seconds until the first of many cells has its record."""
    began = time.perf_counter()
    with subprocess.Popen(
        [
            sys.executable,
            str(ROOT / "runner.py"),
            "-m",
            f"results={results}",
            *TRIVIAL,
            f"seed=range({cells})",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while not any(records(results).glob("*.json")) and process.poll() is None:
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        process.send_signal(signal.SIGINT)
    return seconds


def speedup(folder: Path, cells: int) -> float:
    """Return the time of equal cells one after another over their time with workers."""
    seeds = f"seed=range({cells})"
    serial = sweep(folder / "serial", *EQUAL, seeds)
    return serial / sweep(folder / "workers", *EQUAL, seeds, "hydra/launcher=workers")


def main(arguments: list[str] | None = None) -> None:
    """Print the figures."""
    parser = Parser(__doc__)
    parser.add_argument(
        "--cells", type=at_least(1, 100_000), default=1000, help="cells of the large study"
    )
    cells = parser.parse_args(arguments).cells
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["SPANWISE_LOCKS"] = name
        print(f"beside training: {beside_training(folder / 'a', 30):.2f} s a cell")
        print(f"finding {cells} cells done: {finding_done(folder / 'b', cells):.1f} s")
        print(f"planning {cells} cells, to the first record: {starting(folder / 'c', cells):.1f} s")
        print(f"workers over serial, 12 equal cells: {speedup(folder / 'd', 12):.2f} times as fast")


if __name__ == "__main__":
    main()
