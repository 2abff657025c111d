"""The attention kernels side by side, as ratios in one run: python -m benchmarks.attention

    python -m benchmarks.attention                  the tables window_8192 and auto
    python -m benchmarks.attention wide             every rule, length, head_dim and batch, slow
    python -m benchmarks.attention --lengths 512 --rules window,local_global --batch 1,8
    python -m benchmarks.attention --device cuda --dtype bfloat16 --write cuda

A table measured as it is defined is kept under results/reference/speed/ with the machine's facts;
with options of your own only where --write names it.

Every time stands between two runs of a 1024-cubed float32 product (on CUDA 4096-cubed in the
measured precision), contenders in turn. ``x_floor`` is time over the time that the product's rate
would need for the pairs really seen: 4 * batch * heads * pairs * head_dim operations forward, 3.5
times that with the backward pass. ``x_full`` says how many times faster than torch's fused full
attention, ``over_best`` how many times slower than the fastest exact kernel for the rule, round by
round. ``takes`` says which kernel auto took, forward / in training (of ``interleaved``, for its
window); where that is the fastest too, ``over_best`` is the noise of two readings of one thing.

``interleaved`` runs a layer of the window and a full one. ``full`` and ``dense mask`` are torch's
scaled_dot_product_attention, causal and with the rule as an L x L mask; ``flex`` is torch's
flex_attention, compiled (no backward on the CPU). Settings of more than 2**39 operations in a
training pass are left out, and so are contenders that would need more than 2**38. Planning is
measured by benchmarks.reach.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch

from benchmarks.contenders import MOST_OPERATIONS, Setting, Work, beyond, contenders, rules, works
from benchmarks.options import (
    Parser,
    at_least,
    check_memory,
    device,
    name_of,
    names_of,
    number,
    several,
    threads,
)
from benchmarks.table import (
    add_write,
    altered,
    check_kept,
    command_line,
    kept_as,
    progress,
    show,
    write,
)
from spanwise import locks
from spanwise.attention import plan
from spanwise.attention.choice import choose
from spanwise.attention.dispatch import fastest
from spanwise.statistics import median_interval
from spanwise.timing import (
    Calibration,
    CpuStopwatch,
    CudaStopwatch,
    Effort,
    Timing,
    clock_for,
    interleave,
)

EVERY = ["window", "chunked", "local_global", "interleaved", "window_both_ways"]
EVERY += ["local_global_both_ways"]
TABLES: dict[str, dict[str, Any]] = {
    "window_8192": {"rules": ["window"], "lengths": [8192], "repetitions": 15}
    | {"kernels": None, "head_dim": [64], "batch": [1], "seconds": 25.0},
    "auto": {"rules": EVERY, "lengths": [64, 128, 256, 512, 1024, 2048], "repetitions": 9}
    | {"kernels": ["auto", "blocks", "dense mask"], "head_dim": [64], "batch": [1], "seconds": 2.0},
    "wide": {"rules": EVERY, "lengths": [1024, 4096, 16384, 65536], "repetitions": 3}
    | {"kernels": ["auto"], "head_dim": [32, 64, 128], "batch": [1, 8], "seconds": 1.5},
}
"""What each named table measures; ``wide`` takes half an hour and more."""


def measure(setting: Setting, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time every contender in one setting; one row each."""
    layers, causal = rules(options.window)[setting.rule]
    pairs = sum(plan(sees, setting.length, causal).pairs_seen for sees in layers)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    generator = torch.Generator().manual_seed(setting.length)
    q, k, v, grad = (
        torch.randn(setting.shape, generator=generator).to(device, dtype).requires_grad_(i < 3)
        for i in range(4)
    )
    todo: dict[str, Work] = {}
    for kernel, attends in contenders(setting, layers, causal, options).items():
        made = works(attends, q, k, v, grad)
        if kernel == "flex" and options.device == "cpu":
            del made["train"]
        todo |= {f"{kernel}/{phase}": work for phase, work in made.items()}
    timing, calibration = timed(todo, options)
    with torch.no_grad():
        takes = fastest(q, k, v, layers[0], causal)[0]
    takes += " / " + fastest(q, k, v, layers[0], causal)[0]
    entries = setting.batch * setting.heads
    choice = choose(layers[0], setting.length, causal, entries, setting.head_dim)
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
            "takes": takes if kernel == "auto" else "",
            "keys_per_query": round(pairs / setting.length / len(layers), 3),
            "tiles_forward": choice.forward.tile if kernel == "blocks" else "",
            "tiles_train": choice.backward.tile if kernel == "blocks" else "",
            "repetitions": timing.repetitions,
            "calibration_ms": round(timing.calibration().value, 3),
        }
        for phase in ("forward", "train"):
            if f"{kernel}/{phase}" in timing.series:
                products = setting.operations(pairs, phase) / calibration.operations
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
        name.partition("/")[0]: other
        for name, other in timing.series.items()
        if name.endswith(f"/{phase}")
    }
    if "full" in others:
        columns[f"x_full_{phase}"] = round(others["full"].ratio().value / ratio.value, 3)
    exact = [other for name, other in others.items() if name != "full"]
    if kernel != "full" and len(exact) > 1:
        best = min(exact, key=lambda other: other.ratio().value)
        pairs = zip(series.ratios, best.ratios, strict=True)
        over = median_interval([one / other for one, other in pairs])
        columns[f"over_best_{phase}"] = round(over.value, 3)
        columns[f"over_best_{phase}_low"] = round(over.low, 3)
        columns[f"over_best_{phase}_high"] = round(over.high, 3)
    return columns


CONTENDERS = ("auto", "blocks", "full", "dense mask", "flex")


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and keep the tables."""
    parser = Parser(__doc__)
    names = f"of {', '.join(TABLES)}; all but wide if none"
    parser.add_argument("tables", nargs="*", type=name_of(TABLES), help=names)
    parser.add_argument("--rules", type=names_of(EVERY), help=f"of {', '.join(EVERY)}")
    parser.add_argument("--lengths", type=several(at_least(1)))
    parser.add_argument("--window", type=at_least(1), default=256)
    parser.add_argument("--heads", type=at_least(1), default=4)
    parser.add_argument("--head-dim", type=several(at_least(1)))
    parser.add_argument("--batch", type=several(at_least(1)))
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    parser.add_argument("--device", type=device, default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=threads, default=None)
    only = f"only these, of {', '.join(CONTENDERS)}"
    parser.add_argument("--kernels", type=names_of(CONTENDERS), help=only)
    parser.add_argument("--flex", action="store_true", help="also flex on the CPU: long compiling")
    parser.add_argument("--repetitions", type=at_least(1), help="the fewest")
    parser.add_argument("--seconds", type=number(), help="for each rule and length")
    add_write(parser)
    options = parser.parse_args(arguments)
    if options.kernels and options.device != "cpu" and "blocks" in options.kernels:
        parser.error("argument --kernels: blocks runs on the CPU; allowed on cuda: the others")
    options.flex |= "flex" in (options.kernels or [])
    if options.threads:
        torch.set_num_threads(options.threads)
    ordinary = ["window_8192"] if altered(parser, options, "tables") else list(TABLES)[:-1]
    tables = options.tables or ordinary
    if len(tables) > 1 and options.write:
        parser.error("--write names one table; say first which of them")
    asked = {table: defined(table, options) for table in tables}
    for table, (settings, shaped) in asked.items():
        check_kept(parser, kept_as(parser, options, table, "tables"))
        asked[table] = possible(parser, settings, shaped), shaped
    for table, (settings, shaped) in asked.items():
        kept = kept_as(parser, options, table, "tables")
        rows: list[dict[str, Any]] = []
        for count, setting in enumerate(settings, 1):
            rows += measure(setting, shaped)
            progress(f"{table}: {count} of {len(settings)}")
            if kept is not None:  # at once: the next may take long, or be stopped
                write(kept, rows, command_line("benchmarks.attention", arguments))
        show(rows, table)


def defined(table: str, options: argparse.Namespace) -> tuple[list[Setting], argparse.Namespace]:
    """Return a table's settings, each option as given or else as the table defines it."""
    shape = {
        key: value if getattr(options, key) is None else getattr(options, key)
        for key, value in TABLES[table].items()
    }
    options = argparse.Namespace(**vars(options) | shape)
    settings = [
        Setting(rule, length, head_dim, batch, options.heads)
        for rule in options.rules
        for head_dim in options.head_dim
        for batch in options.batch
        for length in options.lengths
    ]
    return settings, options


def possible(parser: Parser, settings: list[Setting], options: argparse.Namespace) -> list[Setting]:
    """Return the settings that can be measured, say which cannot, and end where none is left."""
    found, why = [], ""
    for setting in settings:
        where = f"{setting.rule}, (batch, heads, length, head_dim) = {setting.shape}"
        inputs = 4 * getattr(torch, options.dtype).itemsize * math.prod(setting.shape)
        check_memory(parser, where, inputs)
        layers, causal = rules(options.window)[setting.rule]
        if beyond(setting, layers, causal):
            why = f"{where}: more than {MOST_OPERATIONS:,} operations"
        elif not contenders(setting, layers, causal, options):
            why = f"{where}: too large for {', '.join(options.kernels)}"
        else:
            found.append(setting)
            continue
        if found or setting is not settings[-1]:
            progress(f"left out: {why}")
    if not found:
        parser.error(f"nothing to measure: {why}; allowed: less, or other kernels")
    return found


if __name__ == "__main__":
    main()
