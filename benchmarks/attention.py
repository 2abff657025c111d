"""The attention kernels side by side, as ratios in one run: python -m benchmarks.attention

    python -m benchmarks.attention                              window 256 at 8,192, 4 heads of 64
    python -m benchmarks.attention --lengths 1024,8192 --rules window,local_global --batch 1,8
    python -m benchmarks.attention --flex --write               and keep the table
    python -m benchmarks.attention --device cuda --dtype bfloat16

Every time stands between two runs of a 1024-cubed float32 product (on CUDA 4096-cubed in the
measured precision), contenders in turn. ``x_floor`` is time over the time that the product's rate
would need for the pairs really seen: 4 * batch * heads * pairs * head_dim operations forward, 3.5
times that with the backward pass. ``x_full`` says how many times faster than torch's fused full
attention, ``over_best`` how many times slower than the fastest exact kernel for the rule. Settings
of more than 2**36 operations in a training pass are left out, and so are contenders that would
need more than 2**38. ``full`` and ``dense mask`` are torch's scaled_dot_product_attention, causal
and with the rule as an L x L mask; ``flex`` is torch's flex_attention, compiled (no backward on the
CPU). Planning is measured by benchmarks.reach.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from spanwise import locks
from spanwise.attention import kernel_flops, plan, rule_attention
from spanwise.attention.choice import choose
from spanwise.cell import machine
from spanwise.timing import (
    Calibration,
    CpuStopwatch,
    CudaStopwatch,
    Effort,
    Timing,
    clock_for,
    interleave,
)

Rule = Callable[[Any, Any], Any]
Work = Callable[[], object]
OUT = Path(__file__).parents[1] / "results" / "reference" / "speed"
GLOBALS = 16
DENSE_MASK_PAIRS = 1 << 27  # the L x L mask is left out beyond these
MOST_OPERATIONS = 1 << 36  # of a setting's training pass; a second or two on two cores
MOST_OF_A_CONTENDER = 1 << 38


def rules(window: int) -> dict[str, tuple[Rule, bool]]:
    """Return the measured rules by name, each with whether it is causal."""
    before, after = (window - 1) // 2, window // 2

    def around(q: Any, k: Any) -> Any:
        return (q - k <= before) & (k - q <= after)

    return {
        "window": (lambda q, k: q - k < window, True),
        "chunked": (lambda q, k: q // window == k // window, True),
        "local_global": (lambda q, k: (q - k < window) | (k < GLOBALS) | (q < GLOBALS), True),
        "window_both_ways": (around, False),
        "local_global_both_ways": (
            lambda q, k: around(q, k) | (k < GLOBALS) | (q < GLOBALS),
            False,
        ),
    }


@dataclass(frozen=True)
class Setting:
    """One row's inputs: a rule by name, and the shape (batch, heads, length, head_dim) of q."""

    rule: str
    length: int
    head_dim: int
    batch: int
    heads: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of q, k and v."""
        return self.batch, self.heads, self.length, self.head_dim

    def operations(self, pairs: float, phase: str) -> float:
        """Return the operations that a pass over so many pairs needs."""
        return kernel_flops(pairs, self.heads, self.head_dim, self.batch, train=phase == "train")


def contenders(
    setting: Setting, sees: Rule, causal: bool, options: argparse.Namespace
) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Return kernel name -> attention function of q, k, v."""

    def ours(kernel: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        return lambda q, k, v: rule_attention(q, k, v, sees, causal, kernel=kernel)

    pairs = setting.length**2
    found = {"auto": ours("auto")}
    if options.device == "cpu":
        found["blocks"] = ours("blocks")
    if setting.operations(pairs / (1 + causal), "train") <= MOST_OF_A_CONTENDER:
        found["full"] = lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=causal)
        if pairs * setting.batch <= DENSE_MASK_PAIRS:
            found["dense mask"] = ours("fused")
    if options.flex or options.device != "cpu":
        found["flex"] = ours("flex")
    if options.kernels is None:
        return found
    return {name: found[name] for name in found if name in options.kernels}


def works(attend: Callable, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> dict[str, Work]:
    """Return the forward pass, and forward and backward, as works to be timed."""

    def forward() -> object:
        with torch.no_grad():
            return attend(q, k, v)

    def train() -> object:
        return torch.autograd.grad(attend(q, k, v), (q, k, v), grad)

    return {"forward": forward, "train": train}


def measure(setting: Setting, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time every contender in one setting; one row each, none where it would take too long."""
    sees, causal = rules(options.window)[setting.rule]
    made_plan = plan(sees, setting.length, causal)
    if setting.operations(made_plan.pairs_seen, "train") > MOST_OPERATIONS:
        return []
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    generator = torch.Generator().manual_seed(setting.length)
    q, k, v, grad = (
        torch.randn(setting.shape, generator=generator).to(device, dtype).requires_grad_(i < 3)
        for i in range(4)
    )
    todo: dict[str, Work] = {}
    for kernel, attend in contenders(setting, sees, causal, options).items():
        made = works(attend, q, k, v, grad)
        if kernel == "flex" and options.device == "cpu":
            del made["train"]
        todo |= {f"{kernel}/{phase}": work for phase, work in made.items()}
    timing, calibration = timed(todo, options)
    choice = choose(sees, setting.length, causal, setting.batch * setting.heads, setting.head_dim)
    rows = []
    for kernel in dict.fromkeys(name.partition("/")[0] for name in todo):
        row: dict[str, Any] = {
            "rule": setting.rule,
            "causal": causal,
            "length": setting.length,
            "batch": setting.batch,
            "heads": setting.heads,
            "head_dim": setting.head_dim,
            "window": options.window,
            "dtype": options.dtype,
            "device": options.device,
            "threads": torch.get_num_threads(),
            "kernel": kernel,
            "keys_per_query": round(made_plan.keys_per_query, 3),
            "tiles_forward": choice.forward.tile if kernel == "blocks" else "",
            "tiles_train": choice.backward.tile if kernel == "blocks" else "",
            "repetitions": timing.repetitions,
            "calibration_ms": round(timing.calibration().value, 3),
        }
        for phase in ("forward", "train"):
            if f"{kernel}/{phase}" in timing.series:
                products = setting.operations(made_plan.pairs_seen, phase) / calibration.operations
                row |= _times(timing, kernel, phase, products)
        rows.append(row)
    return rows


def timed(todo: dict[str, Work], options: argparse.Namespace) -> tuple[Timing, Calibration]:
    """Time works in turn, alone on this machine; with the product that they are compared to."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    calibration = Calibration(device, dtype)
    effort = Effort(options.seconds, share=0.02, least=options.repetitions, most=200, fill=0.005)
    stopwatch = CudaStopwatch() if device.type == "cuda" else CpuStopwatch()
    clock = clock_for(device, torch.get_num_threads())
    with locks.exclusive():
        return interleave(todo, calibration, effort, stopwatch, clock), calibration


def _times(timing: Timing, kernel: str, phase: str, products: float) -> dict[str, float]:
    """Return one phase's columns. products: the least work, in products of the calibration."""
    series = timing.series[f"{kernel}/{phase}"]
    ratio = series.ratio()
    columns = {
        f"{phase}_ms": round(series.milliseconds().value, 3),
        f"x_floor_{phase}": round(ratio.value / products, 3),
        f"x_floor_{phase}_low": round(ratio.low / products, 3),
        f"x_floor_{phase}_high": round(ratio.high / products, 3),
    }
    others = {
        name.partition("/")[0]: other.ratio().value
        for name, other in timing.series.items()
        if name.endswith(f"/{phase}")
    }
    if "full" in others:
        columns[f"x_full_{phase}"] = round(others["full"] / ratio.value, 3)
    exact = [value for name, value in others.items() if name != "full"]
    if kernel != "full" and len(exact) > 1:
        columns[f"over_best_{phase}"] = round(ratio.value / min(exact), 3)
    return columns


def show(rows: list[dict[str, Any]], title: str) -> None:
    """Print rows as a table; a column that is the same throughout goes to the title."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    same = [c for c in columns if len(rows) > 1 and len({str(row.get(c)) for row in rows}) == 1]
    table = Table(title=title, caption=", ".join(f"{c} {rows[0][c]}" for c in same))
    shown = [c for c in columns if c not in same and not c.endswith(("_low", "_high"))]
    for column in shown:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(_cell(row, column) for column in shown))
    Console(width=max(110, 13 * len(shown))).print(table)


def _cell(row: dict[str, Any], column: str) -> str:
    value = row.get(column, "")
    if isinstance(value, float) and not math.isnan(value):
        value = f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if f"{column}_low" in row:
        value += f" [{row[f'{column}_low']:.2f}, {row[f'{column}_high']:.2f}]"
    return str(value)


def write(name: str, rows: list[dict[str, Any]], command: str) -> None:
    """Write rows as CSV, and beside it the command and the machine's facts."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    facts = {"command": command, "machine": machine()}
    (OUT / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and with --write keep the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    parser.add_argument("--rules", default="window", help=f"of {', '.join(rules(1))}")
    parser.add_argument("--lengths", type=numbers, default=[8192])
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=numbers, default=[64])
    parser.add_argument("--batch", type=numbers, default=[1])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--kernels", type=lambda text: text.split(","), help="only these")
    parser.add_argument("--flex", action="store_true", help="also flex on the CPU: long compiling")
    parser.add_argument("--repetitions", type=int, default=9, help="the fewest")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each rule and length")
    parser.add_argument("--write", nargs="?", const="attention", help="keep the tables, so named")
    options = parser.parse_args(arguments)
    unknown = set(options.rules.split(",")) - set(rules(1))
    if unknown:
        parser.error(f"--rules {','.join(sorted(unknown))}: allowed are {', '.join(rules(1))}")
    if options.threads:
        torch.set_num_threads(options.threads)
    settings = [
        Setting(rule, length, head_dim, batch, options.heads)
        for rule in options.rules.split(",")
        for head_dim in options.head_dim
        for batch in options.batch
        for length in options.lengths
    ]
    rows = [row for setting in settings for row in measure(setting, options)]
    show(rows, "attention kernels")
    if options.write:
        command = " ".join(["python -m benchmarks.attention", *(arguments or sys.argv[1:])])
        write(options.write, rows, command)


def numbers(text: str) -> list[int]:
    """Return the numbers of a list such as 1024,8192."""
    return [int(part) for part in text.split(",")]


class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the description's lines and shows defaults."""


if __name__ == "__main__":
    main()
