"""Which figure of a timing survives a noisy machine? The same cell in many fresh processes.

    python -m benchmarks.noise                      both conditions, the table, and the samples
    python -m benchmarks.noise --conditions quiet   one of them

Each condition (quiet: nothing else; loaded: a matrix product competing on every core) measures
the same cells in fresh processes. For every estimator of a cell's time the table shows its spread
over the processes (interquartile range over median) and, for loaded, how far load moved its
median. docs/measuring.md draws the conclusions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import Parser, at_least, check_folder, number, threads
from spanwise import locks, records
from spanwise.errors import one_line
from spanwise.statistics import spread

Sample = dict[str, Any]
CONDITIONS = ("quiet", "loaded")

COMPETITOR = """
import numpy
a = numpy.random.default_rng(0).standard_normal((256, 256))
while True:
    a @ a
"""


def quantile(share: float) -> Callable[[Any], float]:
    """Return the estimator "the value that ``share`` of the samples lie below"."""
    return lambda values: float(np.quantile(values, share))


def _paired(sample: Sample, kind: str, sides: str = "both") -> np.ndarray:
    """Return each repetition over the calibration runs beside it."""
    work = np.asarray(sample[kind])
    yardstick = np.asarray(sample["calibration_" + kind])
    # Calibrations stand between repetitions of all works: this one's are offset by its turn.
    turn, turns = sample["turn"], sample["turns"]
    before = yardstick[turn::turns][: len(work)]
    after = yardstick[turn + 1 :: turns][: len(work)]
    return work / (before if sides == "before" else (before + after) / 2)


def _unpaired(sample: Sample, kind: str, of: Callable[[Any], float]) -> float:
    return of(sample[kind]) / of(sample["calibration_" + kind])


ESTIMATORS: dict[str, Callable[[Sample], float]] = {
    "raw ms, median": lambda s: quantile(0.5)(s["ms"]),
    "raw ms, 10% quantile": lambda s: quantile(0.1)(s["ms"]),
    "raw ms, least": lambda s: min(s["ms"]),
    "raw cpu ms, median": lambda s: quantile(0.5)(s["cpu_ms"]),
    "ratio, median, paired before and after": lambda s: quantile(0.5)(_paired(s, "ms")),
    "ratio, median, paired before": lambda s: quantile(0.5)(_paired(s, "ms", "before")),
    "ratio of medians": lambda s: _unpaired(s, "ms", quantile(0.5)),
    "ratio of means": lambda s: _unpaired(s, "ms", np.mean),
    "ratio of 10% quantiles": lambda s: _unpaired(s, "ms", quantile(0.1)),
    "ratio of leasts": lambda s: _unpaired(s, "ms", min),
    "to a softmax, ratio of medians": lambda s: np.median(s["ms"]) / np.median(s["softmax_ms"]),
    "to an attention, ratio of medians": lambda s: (
        np.median(s["ms"]) / np.median(s["attention_ms"])
    ),
    "cpu ratio, median, paired": lambda s: quantile(0.5)(_paired(s, "cpu_ms")),
    "cpu ratio of medians": lambda s: _unpaired(s, "cpu_ms", quantile(0.5)),
    "cpu ratio of 10% quantiles": lambda s: _unpaired(s, "cpu_ms", quantile(0.1)),
}


def cells() -> dict[str, tuple[Any, int]]:
    """Return the cells that are measured: many small operators, and few large ones."""
    from variants.full import Full
    from variants.windowed import Windowed

    return {
        "windowed 256": (partial(Windowed, window=32), 256),
        "windowed 2048": (partial(Windowed, window=32), 2048),
        "full 1024": (partial(Full), 1024),
    }


def yardsticks() -> dict[str, Callable[[], Any]]:
    """Return other work of fixed size that a time could be compared with."""
    import torch

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2048, 1024, generator=generator)
    q, k, v = (torch.randn(1, 4, 768, 64, generator=generator) for _ in range(3))
    attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    return {"softmax": lambda: scores.softmax(-1), "attention": lambda: attend(q, k, v)}


def measure_here(threads: int, seconds: float, fill: float) -> dict[str, Any]:
    """Measure every cell in this process and return the samples."""
    import torch

    from spanwise.timing import Calibration, CpuStopwatch, Effort, interleave
    from spanwise.workload import build_workload

    torch.set_num_threads(threads)
    cpu = torch.device("cpu")
    result = {}
    for name, (variant, length) in cells().items():
        work = build_workload(
            variant,
            "layer",
            length=length,
            batch=1,
            seed=0,
            device=cpu,
            dtype=torch.float32,
            d_model=64,
            n_heads=4,
            causal=True,
        )
        works = {"forward": work.infer, "train": work.train} | yardsticks()
        effort = Effort(seconds=seconds, share=0.0, least=6, most=10**6, fill=fill)
        timing = interleave(works, Calibration(cpu, torch.float32), effort, CpuStopwatch())
        others = {f"{y}_ms": timing.series[y].ms for y in yardsticks()}
        for turn, (kind, series) in enumerate(timing.series.items()):
            if f"{kind}_ms" in others:
                continue
            result[f"{name} {kind}"] = {
                "turn": turn,
                "turns": len(timing.series),
                "calls": series.calls,
                "ms": series.ms,
                "cpu_ms": series.cpu_ms,
                "calibration_ms": timing.calibration_ms,
                "calibration_cpu_ms": timing.calibration_cpu_ms,
                "load": timing.load and timing.load.as_detail(),
            } | others
    return result


@contextlib.contextmanager
def competing(count: int) -> Iterator[None]:
    """Keep ``count`` single-threaded processes at work meanwhile."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    rivals = [
        subprocess.Popen([sys.executable, "-c", COMPETITOR], env=environment) for _ in range(count)
    ]
    try:
        yield
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()


def measure_apart(condition: str, processes: int, arguments: list[str]) -> Iterator[Any]:
    """Yield what each of ``processes`` fresh processes measured under ``condition``."""
    rivals = len(os.sched_getaffinity(0)) if condition == "loaded" else 0
    with competing(rivals):
        for _ in range(processes):
            with locks.exclusive():
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.noise", "--child", *arguments],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
            yield json.loads(done.stdout)


def table(samples: dict[str, list[dict[str, Any]]]) -> str:
    """Return the spread of every estimator under every condition, in per cent, over all cells."""
    conditions = list(samples)
    names = list(samples[conditions[0]][0])
    head = "".join(f"{c:>9} {'worst':>6}" for c in conditions)
    lines = [f"{'estimator':<42}{head}" + ("  moved by load" if "loaded" in samples else "")]
    for estimator, estimate in ESTIMATORS.items():
        cells_, line = {}, f"{estimator:<42}"
        for condition in conditions:
            values = {n: [estimate(run[n]) for run in samples[condition]] for n in names}
            spreads = [spread(v) for v in values.values()]
            line += f"{np.median(spreads):>9.1%} {max(spreads):>6.0%}"
            cells_[condition] = {n: np.median(v) for n, v in values.items()}
        if len(conditions) == 2:
            moved = [cells_["loaded"][n] / cells_["quiet"][n] for n in names]
            line += f"  x{np.median(moved):.2f} ({min(moved):.2f} to {max(moved):.2f})"
        lines.append(line)
    return "\n".join(lines)


FIELDS = (
    "turn", "turns", "ms", "cpu_ms", "calibration_ms", "calibration_cpu_ms", "softmax_ms",
    "attention_ms",
)  # fmt: skip


def read_samples(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the samples kept in a file, none where there is no file yet.

    Raises ValueError for a file of anything else: measuring goes on in it, and would replace it.
    """
    if not path.exists():
        return {}
    known = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(known, dict) or not all(isinstance(runs, list) for runs in known.values()):
        raise ValueError("no table of conditions")
    expected = {f"{name} {kind}" for name in cells() for kind in ("forward", "train")}
    for condition, runs in known.items():
        if condition not in CONDITIONS:
            raise ValueError(f"a condition {condition!r}")
        for run in runs:
            if not isinstance(run, dict) or set(run) != expected:
                raise ValueError("a run of other cells")
            if not all(isinstance(one, dict) and {*FIELDS} <= {*one} for one in run.values()):
                raise ValueError(f"a run without {', '.join(FIELDS)}")
    return known


def main(arguments: list[str] | None = None) -> None:
    """Run the study and print its table."""
    parser = Parser(__doc__)
    parser.add_argument("--processes", type=at_least(1), default=10, help="of each condition")
    parser.add_argument("--seconds", type=number(), default=2.0, help="of timing a cell")
    parser.add_argument("--threads", type=threads, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--fill", type=number(), default=0.01, help="seconds of a repetition")
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=CONDITIONS)
    parser.add_argument(
        "--samples", type=Path, help="file that keeps the samples; one begun is continued"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        print(json.dumps(measure_here(given.threads, given.seconds, given.fill)))
        return
    known: dict[str, list[dict[str, Any]]] = {}
    if given.samples:
        check_folder(parser, "--samples", given.samples.parent)
        try:
            known = read_samples(given.samples)
        except (OSError, ValueError) as error:
            parser.error(
                f"argument --samples: {given.samples} holds other than samples of this study "
                f"({one_line(str(error))}); allowed: a file of them, or a new one"
            )
    passed = [f"--{name}={getattr(given, name)}" for name in ("seconds", "threads", "fill")]
    for condition in given.conditions:
        runs = known.setdefault(condition, [])
        for run in measure_apart(condition, given.processes - len(runs), passed):
            runs.append(run)
            if given.samples:
                records.write_text(given.samples, json.dumps(known))
    print(f"{given.processes} processes, {given.threads} threads, repetitions of {given.fill} s")
    print(table(known))


if __name__ == "__main__":
    main()
