"""Other people's local attention beside ours, as ratios in one run: python -m benchmarks.peers

    python -m benchmarks.peers                              windows of 256 at 1,024 to 16,384 tokens
    python -m benchmarks.peers --lengths 8192               one length, printed only

The whole table is kept as results/reference/speed/peers.csv with the machine's facts, one of other
options only where --write names it.

Each peer is measured in its own setting, and ours beside it with as many keys per query:
``causal``, q, k, v to out; and ``layer``, both ways, with the four projections. At each length all
contenders and passes are timed in turn, each time between two runs of a 1024-cubed float32 product.
``x_spanwise`` is how many times longer than ours a contender takes (paired, with its 95%
interval), ``x_inside`` the same after the projections' own time is taken off, ``x_floor`` the time
over what the operations on the pairs seen would take at the product's rate, peaks the exact bytes
of live tensors. ``keys_measured`` is counted by disturbing
keys, ``keys_per_query`` follows from the rule that each is said to apply. What runs out of
``--memory-gib``, has no backward pass, or takes longer than ``--longest`` is left out, with the
reason.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import psutil
import torch

from benchmarks.attention import timed
from benchmarks.options import (
    Parser,
    at_least,
    check_memory,
    even,
    names_of,
    number,
    several,
    threads,
)
from benchmarks.table import add_write, check_kept, command_line, kept_as, show, write
from spanwise import influence
from spanwise.cost import memory_row
from spanwise.operations import Operations
from spanwise.statistics import median_interval
from spanwise.timing import Calibration, Timing
from spanwise.workload import Workload, build_workload
from variants.interface import AttentionVariant
from variants.peers import DenseMask, FlexAttention, LocalAttention, Longformer
from variants.windowed import Windowed

OURS, PROJECTIONS = "spanwise", "projections alone"
PHASES = ("forward", "train")


class Projections(AttentionVariant):
    """The four projections of a layer, and nothing between them but two sums."""

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the sum of q, k, v (B, H, L, D)."""
        return q + k + v

    def keys_per_query(self, length: int) -> float:
        """Return 0: nothing is scored."""
        return 0.0


def settings(window: int) -> dict[str, tuple[str, bool, dict[str, Callable[..., Any]]]]:
    """Return the settings by name: the scope, whether causal, and the contenders."""
    same: dict[str, Callable[..., Any]] = {
        OURS: partial(Windowed, window=window + 1),
        "SDPA, dense mask": partial(DenseMask, window=window + 1),
        "flex_attention": partial(FlexAttention, window=window + 1),
    }
    half = {"window_size": window // 2, "look_backward": 2}
    causal = same | {
        "local-attention": partial(LocalAttention, window_size=window),
        "local-attention, 2 windows": partial(LocalAttention, **half),
    }
    return {
        "causal": ("op", True, causal),
        "layer": (
            "layer",
            False,
            same
            | {
                "Longformer": partial(Longformer, attention_window=window),
                PROJECTIONS: Projections,
            },
        ),
    }


@dataclass
class Contender:
    """A contender at one length: what is run, its exact peaks, and why a pass is left out."""

    work: Workload
    peaks: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def passes(self) -> dict[str, Callable[[], object]]:
        """Return the passes to be timed."""
        both = {"forward": self.work.infer, "train": self.work.train}
        return {phase: both[phase] for phase in PHASES if phase not in self.left_out}


def measure(name: str, length: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every contender of a setting at one length; one row each, ours first."""
    torch.compiler.reset()
    scope, causal, kinds = settings(options.window)[name]
    found = {
        contender: tried(kind, scope, causal, length, options) for contender, kind in kinds.items()
    }
    todo = {
        f"{contender}/{phase}": work
        for contender, one in found.items()
        for phase, work in one.passes().items()
    }
    timing, calibration = timed(todo, options)
    rows = []
    for contender, one in found.items():
        layer = one.work.parts[0].module
        row: dict[str, Any] = {
            "setting": name,
            "length": length,
            "contender": contender,
            "keys_per_query": round(layer.keys_per_query(length), 2),  # type: ignore[operator]
            "keys_measured": "",
        }
        for phase in PHASES:
            row |= columns(contender, phase, one, timing, calibration)
        quick = 78 * row.get("forward_ms", torch.inf) < 1e3 * options.keys_seconds
        if contender != PROJECTIONS and quick:
            row["keys_measured"] = round(counted(one.work, scope, length, options), 2)
        row |= {
            "left_out": "; ".join(f"{phase}: {why}" for phase, why in one.left_out.items()),
            "window": options.window,
            "batch": options.batch,
            "heads": options.heads,
            "head_dim": options.head_dim,
            "threads": torch.get_num_threads(),
            "repetitions": timing.repetitions,
            "calibration_ms": round(timing.calibration().value, 3),
        }
        rows.append(row)
    return rows


def tried(
    kind: Callable[..., Any], scope: str, causal: bool, length: int, options: argparse.Namespace
) -> Contender:
    """Return a contender after its first passes: those read the peaks and find what fails."""
    work = build_workload(
        kind,
        scope,
        length=length,
        batch=options.batch,
        seed=0,
        device=torch.device("cpu"),
        dtype=torch.float32,
        d_model=options.heads * options.head_dim,
        n_heads=options.heads,
        causal=causal,
    )
    made = Contender(work)
    if not work.trains:
        made.left_out["train"] = "no backward pass on the CPU"
    for phase, once in made.passes().items():
        if "forward" in made.left_out:
            made.left_out["train"] = "as its forward pass"
            break
        try:
            with memory_limit(options.memory_gib):
                once()  # what it builds once, it builds here
                began = perf_counter()
                once()
                took = perf_counter() - began
                if took <= options.longest:
                    only = replace(work, trains=phase == "train")
                    made.peaks[phase] = memory_row(only, torch.device("cpu"))[f"{phase}_peak_bytes"]
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate" not in str(error):
                raise
            made.left_out[phase] = f"more than {options.memory_gib:g} GiB"
        else:
            if took > options.longest:
                made.left_out[phase] = f"{took:.0f} s a pass"
    for part in work.parts:
        part.drop_gradients()
    return made


@contextlib.contextmanager
def memory_limit(gib: float) -> Iterator[None]:
    """Let this process take at most ``gib`` more than it has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def columns(
    contender: str, phase: str, one: Contender, timing: Timing, calibration: Calibration
) -> dict[str, Any]:
    """Return a contender's columns of one pass."""
    row: dict[str, Any] = {}
    mine, ours = (timing.series.get(f"{who}/{phase}") for who in (contender, OURS))
    if mine is not None:
        row[f"{phase}_ms"] = round(mine.milliseconds().value, 3)
    if mine is not None and ours is not None:
        pairs = zip(mine.ratios, ours.ratios, strict=True)
        times = median_interval([theirs / own for theirs, own in pairs])
        row |= {
            f"x_spanwise_{phase}": round(times.value, 3),
            f"x_spanwise_{phase}_low": round(times.low, 3),
            f"x_spanwise_{phase}_high": round(times.high, 3),
        }
    between = timing.series.get(f"{PROJECTIONS}/{phase}")
    if mine is not None and ours is not None and between is not None and contender != PROJECTIONS:
        less = between.ratio().value
        inside = (mine.ratio().value - less) / (ours.ratio().value - less)
        row[f"x_inside_{phase}"] = round(inside, 3)
    operations = one.work.operations
    if mine is not None and isinstance(operations, Operations):
        products = getattr(operations, phase) / calibration.operations
        row[f"x_floor_{phase}"] = round(mine.ratio().value / products, 3)
    if phase in one.peaks:
        row[f"{phase}_peak_mib"] = round(one.peaks[phase] / 2**20, 3)
    return row


def counted(work: Workload, scope: str, length: int, options: argparse.Namespace) -> float:
    """Return the keys per query, found by disturbing keys (with their values, or all of x)."""
    layer: Any = work.parts[0].module.eval()
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(1, *shape, generator=generator)

    if scope == "layer":
        x, other = (normal(length, options.heads * options.head_dim) for _ in range(2))
        return influence.keys_per_query(layer, [x], [other])
    q, *rest = (normal(options.heads, length, options.head_dim) for _ in range(5))

    def run(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return layer.attend(q.expand_as(k), k, v, None)

    return influence.keys_per_query(run, rest[:2], rest[2:])


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """Return, for each pass, who is ahead: ours by how much at the least, or what peers win."""
    said = []
    for phase in PHASES:
        column = f"x_spanwise_{phase}"
        peers = [row for row in rows if row["contender"] not in (OURS, PROJECTIONS)]
        others = [row for row in peers if column in row]
        if not others:
            continue
        least = min(others, key=lambda row: row[column])
        said.append(
            f"{phase}: the nearest peer takes {least[column]:.2f} times as long as ours "
            f"({least['contender']}, {least['setting']}, {least['length']:,} tokens)"
        )
        won = [row for row in others if row[column] < 1]
        said += [
            f"{phase}: {row['contender']} is ahead of ours at {row['length']:,} tokens "
            f"({row['setting']}): {row[column]:.2f} times as long"
            for row in won
        ]
        far = [row for row in others if row["length"] >= 8192 and row[column] < 4]
        said += [
            f"{phase}: {row['contender']} takes less than 4 times as long as ours at "
            f"{row['length']:,} tokens ({row['setting']}): {row[column]:.2f} times"
            for row in far
        ]
    return said


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and keep the table."""
    parser = Parser(__doc__)
    parser.add_argument(
        "--lengths", type=several(at_least(1)), default=[1024, 2048, 4096, 8192, 16384]
    )
    every = list(settings(2))
    parser.add_argument("--settings", type=names_of(every), default=every, help="of these")
    parser.add_argument("--window", type=even, default=256, help="the peers' own; one key more")
    parser.add_argument("--heads", type=at_least(1), default=4)
    parser.add_argument("--head-dim", type=at_least(1), default=64)
    parser.add_argument("--batch", type=at_least(1), default=1)
    parser.add_argument("--threads", type=threads, default=None)
    parser.add_argument("--repetitions", type=at_least(1), default=9, help="the fewest")
    parser.add_argument("--seconds", type=number(), default=8.0, help="for a setting and length")
    parser.add_argument("--memory-gib", type=number(), default=6.0, help="for one pass")
    parser.add_argument("--longest", type=number(), default=5.0, help="seconds of a timed pass")
    parser.add_argument(
        "--keys-seconds", type=number(above=False), default=4.0, help="to count keys, at most"
    )
    add_write(parser)
    options = parser.parse_args(arguments)
    kept = kept_as(parser, options, "peers")
    options.device, options.dtype = "cpu", "float32"
    width = options.heads * options.head_dim
    for length in options.lengths:  # four projections, x, its gradient, and their outputs
        needed = 4 * (4 * width**2 + 6 * options.batch * length * width)
        check_memory(parser, f"{length:,} tokens, {width} wide", needed)
    check_kept(parser, kept)
    if options.threads:
        torch.set_num_threads(options.threads)
    command = command_line("benchmarks.peers", arguments)
    rows: list[dict[str, Any]] = []
    for name in options.settings:
        for length in options.lengths:
            measured = measure(name, length, options)
            show(measured, f"{name}, {length:,} tokens")
            rows += measured
            if kept:  # at once: the next length may take long, or be stopped
                write(kept, rows, command)
    print(*verdicts(rows), sep="\n")


if __name__ == "__main__":
    main()
