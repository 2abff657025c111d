"""What a variant costs: time, memory and operations of one cell.

Time and memory are read in passes of their own, so that neither shows in the other. How each is
read, and why so, is in ``spanwise.timing``, ``spanwise.memory``, ``spanwise.operations`` and
docs/measuring.md.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from typing import Any

import torch

from spanwise.errors import ConfigError, nearest
from spanwise.generation import Generation, build_generation
from spanwise.memory import measure_peak, saved_bytes, tensor_bytes
from spanwise.operations import Products
from spanwise.statistics import Estimate
from spanwise.timing import (
    Calibration,
    CpuStopwatch,
    CudaStopwatch,
    Effort,
    Timing,
    clock_for,
    interleave,
)
from spanwise.workload import SCOPES, Part, Workload, build_workload

DTYPES = ("float32", "float64", "bfloat16", "float16")
Row = dict[str, Any]


def measure(
    variant: Any,
    *,
    scope: str = "layer",
    batch: int = 1,
    budget_seconds: float = 5.0,
    interval: float = 0.03,
    least: int = 3,
    most: int = 400,
    memory: bool = True,
    decode: bool = False,
    length: int,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    seed: int = 0,
    **model: Any,
) -> tuple[Row, dict[str, Any]]:
    """Measure ``variant`` (a factory) and return the columns of a row, and the samples behind.

    scope: "op" (q, k, v to out), "layer" (one mixing layer with its projections; of a stack the
    mean over its pattern) or "model" (forward with logits everywhere, and a training step with
    the optimiser); no columns of training where a layer has no backward pass on the device.
    ``model``: the model's keywords (d_model, n_heads, causal, vocab_size ...).
    Timing ends when every 95% interval of a median ratio lies within ``interval`` of it, or after
    ``budget_seconds``, or ``most`` repetitions, and never before ``least``. memory: also read
    peaks. decode: also time generation with a cache at the end of the sequence, one layer's
    whatever the scope; no columns where the variant does not generate. threads: None takes every
    core that this process may use.

    Times are milliseconds by the wall, memory bytes; ``x_calibration_*`` and ``x_floor_*`` are
    taken in the steadier ``clock`` of ``spanwise.timing.clock_for``; a column is None where the
    variant does not know its operations. Whoever calls holds ``spanwise.locks.exclusive()``.
    Raises ConfigError for bad arguments, and whatever the variant raises.
    """
    effort = _effort(budget_seconds, interval, least, most)
    if batch < 1 or length < 1:
        raise ConfigError(f"batch and length: found {batch} and {length}; allowed: at least 1")
    if dtype not in DTYPES:
        raise ConfigError(
            f"dtype: found {dtype!r}; allowed: {', '.join(DTYPES)}.{nearest(dtype, DTYPES)}"
        )
    before = torch.get_num_threads()
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    try:
        place, precision = torch.device(device), getattr(torch, dtype)
        given = model | {"length": length, "batch": batch, "seed": seed}
        given |= {"device": place, "dtype": precision}
        calibration = Calibration(place, precision)
        stopwatch = CudaStopwatch() if place.type == "cuda" else CpuStopwatch()
        row: Row = {"scope": scope, "batch": batch, "threads": torch.get_num_threads()}
        work = build_workload(variant, scope, **given)
        if memory:
            row |= memory_row(work, place)
        passes = {"forward": work.infer}
        if work.trains:
            passes["train"] = work.train
        clock = clock_for(place, torch.get_num_threads())
        timing = interleave(passes, calibration, effort, stopwatch, clock)
        for part in work.parts:
            part.drop_gradients()
        row |= time_row(timing, len(work.parts)) | floor_row(timing, work, calibration)
        with Products() as done:
            outputs_finite = all(bool(part.infer().isfinite().all()) for part in work.parts)
        if not outputs_finite:
            raise ValueError("forward: returned NaN or infinity; allowed: finite numbers")
        row["flops_computed"] = done.operations / len(work.parts)
        detail = _detail(timing, 1 / len(work.parts))
        generation = build_generation(variant, **given) if decode else None
        if generation is not None:
            passes = {"decode": generation.run}
            timing = interleave(passes, calibration, effort, stopwatch, clock)
            share = 1 / len(generation.parts) / generation.tokens
            row |= generation_row(timing, generation)
            detail["decode"] = _detail(timing, share)["decode"]
        row["rss_peak_bytes"] = _resident_peak()
        return row, detail
    finally:
        torch.set_num_threads(before)


def check_settings(
    *,
    scope: str = "layer",
    batch: int = 1,
    budget_seconds: float = 5.0,
    interval: float = 0.03,
    least: int = 3,
    most: int = 400,
    memory: bool = True,
    decode: bool = False,
) -> None:
    """Raise ConfigError for settings of `measure` that it would refuse, before anything runs."""
    try:
        if scope not in SCOPES:
            raise ConfigError(
                f"scope: found {scope!r}; allowed: {', '.join(SCOPES)}." + nearest(scope, SCOPES)
            )
        if batch < 1:
            raise ConfigError(f"batch: found {batch}; allowed: a whole number of at least 1")
        _effort(budget_seconds, interval, least, most)
    except ConfigError as error:
        raise ConfigError(f"cost.{error}") from None


def _effort(budget_seconds: float, interval: float, least: int, most: int) -> Effort:
    if not budget_seconds > 0:
        raise ConfigError(f"budget_seconds: found {budget_seconds}; allowed: above 0")
    if not 0 < interval < 1:
        raise ConfigError(f"interval: found {interval}; allowed: between 0 and 1")
    if not 1 <= least <= most:
        raise ConfigError(f"least and most: found {least} and {most}; allowed: 1 <= least <= most")
    return Effort(seconds=budget_seconds, share=interval, least=least, most=most)


def memory_row(work: Workload, device: torch.device) -> Row:
    """Return the memory columns, in bytes, of the mean part of ``work``.

    Peaks are what a pass allocates beyond parameters and inputs, in its second run: what the
    first run leaves behind for good (a cached mask) is ``kept_bytes`` and part of every peak.
    """
    gc.collect()  # what earlier work left must not be freed in the middle of this one's
    parts = [_memory_of_part(part, device, work.trains) for part in work.parts]
    return {name: round(sum(part[name] for part in parts) / len(parts)) for name in parts[0]}


def _memory_of_part(part: Part, device: torch.device, trains: bool) -> dict[str, int]:
    def train() -> None:
        part.train()
        part.drop_gradients()

    part.drop_gradients()
    kept_forward = measure_peak(part.infer, device).kept
    forward = measure_peak(part.infer, device).peak
    parameters = tensor_bytes(part.parameters())
    if not trains:
        return {
            "forward_peak_bytes": forward + kept_forward,
            "kept_bytes": kept_forward,
            "parameter_bytes": parameters,
        }
    kept = kept_forward + measure_peak(train, device).kept - tensor_bytes(part.state())
    trained = measure_peak(train, device).peak
    return {
        "forward_peak_bytes": forward + kept_forward,
        "train_peak_bytes": trained + kept,
        "saved_bytes": saved_bytes(part.forward, part.alive),
        "kept_bytes": kept,
        "parameter_bytes": parameters,
    }


def _columns(name: str, estimate: Estimate, scale: float = 1.0) -> Row:
    return {
        name: estimate.value * scale,
        f"{name}_low": estimate.low * scale,
        f"{name}_high": estimate.high * scale,
    }


def time_row(timing: Timing, parts: int) -> Row:
    """Return the time columns of one of ``parts`` equal shares of the work."""
    row: Row = {}
    for name, series in timing.series.items():
        row |= _columns(f"{name}_ms", series.milliseconds(), 1 / parts)
        row |= _columns(f"x_calibration_{name}", series.ratio(), 1 / parts)
    load = timing.load
    return row | {
        "calibration_ms": timing.calibration().value,
        "repetitions": timing.repetitions,
        "stopped_by": timing.stopped_by,
        "clock": timing.clock,
        "contended": None if load is None else load.contended,
        "other_cores": None if load is None else round(load.other_cores, 3),
    }


def generation_row(timing: Timing, generation: Generation) -> Row:
    """Return the columns of generation: time a token of one layer, and its cache's bytes."""
    series, layers = timing.series["decode"], len(generation.parts)
    row = _columns("decode_ms", series.milliseconds(), 1 / layers / generation.tokens)
    row |= _columns("x_calibration_decode", series.ratio(), 1 / layers / generation.tokens)
    return row | {"cache_bytes": sum(part.cache.nbytes for part in generation.parts) / layers}


def floor_row(timing: Timing, work: Workload, calibration: Calibration) -> Row:
    """Return operations, the time they take at the calibration's rate, and how far off we are."""
    names = ("flops_forward", "floor_ms", "floor_train_ms")
    row: Row = dict.fromkeys((*names, "x_floor_forward", "x_floor_train"))
    operations = work.operations
    if operations is None:
        return row
    runs = {  # the operations of each kind of pass, in calibration runs
        "forward": operations.forward / calibration.operations,
        "train": operations.train / calibration.operations,
    }
    row |= {
        "flops_forward": operations.forward,
        "floor_ms": runs["forward"] * timing.calibration().value,
        "floor_train_ms": runs["train"] * timing.calibration().value,
    }
    for name, series in timing.series.items():
        if runs[name] > 0:
            row[f"x_floor_{name}"] = series.ratio().value / len(work.parts) / runs[name]
    return row


def _detail(timing: Timing, share: float) -> dict[str, Any]:
    """Return every repetition, in the units of the row: ``share`` of the work is one part."""

    def short(values: list[float], scale: float = 1.0) -> list[float]:
        return [float(f"{value * scale:.5g}") for value in values]

    series = {
        name: {
            "calls": one.calls,
            "ms": short(one.ms, share),
            "cpu_ms": short(one.cpu_ms, share),
            "ratios": short(one.ratios, share),
            "confidence": one.ratio().confidence,
        }
        for name, one in timing.series.items()
    }
    return series | {
        "calibration_ms": short(timing.calibration_ms),
        "calibration_cpu_ms": short(timing.calibration_cpu_ms),
        "seconds": round(timing.seconds, 3),
        "load": None if timing.load is None else timing.load.as_detail(),
    }


def _resident_peak() -> int:
    """Return this process's largest resident size so far, in bytes: a rough second opinion.

    Whole process, interpreter and libraries included, and blind to memory that is used again.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
