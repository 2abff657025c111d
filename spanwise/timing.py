"""Time that survives a noisy machine: work alternates with a yardstick in the same process.

Every repetition of the work stands between two runs of a calibration (a fixed matrix product).
Both feel the same clock rate, neighbours and scheduler, so their ratio travels between machines
and moments where milliseconds do not. docs/measuring.md shows the evidence.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch

from spanwise import contention
from spanwise.memory import collector_at_rest
from spanwise.seeds import torch_generator
from spanwise.statistics import Estimate, median_interval

Work = Callable[[], object]


class Reading(NamedTuple):
    """Seconds that a piece of work took: by the wall, and of all this process's threads."""

    wall: float
    cpu: float


Clock = Literal["wall", "cpu"]


def clock_for(device: torch.device, threads: int) -> Clock:
    """Return the clock in which ratios vary least from process to process.

    One CPU thread's processor time leaves out what others were given of its core. Of several
    threads it says little: those that wait for the others spin, and spinning counts.
    """
    return "cpu" if device.type == "cpu" and threads == 1 else "wall"


class Stopwatch(Protocol):
    """What times a piece of work; a test injects one that needs no waiting."""

    def time(self, work: Work, calls: int) -> Reading:
        """Run ``work`` ``calls`` times and return what they took together."""

    def now(self) -> float:
        """Return seconds since some fixed moment."""


class CpuStopwatch:
    """Wall and processor time of work that is done when it returns."""

    def time(self, work: Work, calls: int) -> Reading:
        """Run ``work`` ``calls`` times and return what they took together."""
        cpu = time.process_time()
        began = time.perf_counter()
        for _ in range(calls):
            work()
        wall = time.perf_counter() - began
        return Reading(wall, time.process_time() - cpu)

    def now(self) -> float:
        """Return seconds since some fixed moment."""
        return time.perf_counter()


class CudaStopwatch(CpuStopwatch):
    """Time between two events on the device's stream, after everything before has ended."""

    def time(self, work: Work, calls: int) -> Reading:
        """Run ``work`` ``calls`` times and return what they took together."""
        cpu = time.process_time()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        torch.cuda.synchronize()
        return Reading(begin.elapsed_time(end) / 1e3, time.process_time() - cpu)


class Calibration:
    """The yardstick: one square matrix product of a fixed size, always on the same values.

    1,024 wide in float32 on the CPU (some 20 ms on two cores: long beside a timer, short beside
    a neighbour's burst). On CUDA 4,096 wide in the cell's own precision, since a device's rate
    differs by a factor of ten between precisions.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        on_cpu = device.type == "cpu"
        self.side = 1024 if on_cpu else 4096
        self.dtype = torch.float32 if on_cpu else dtype
        generator = torch_generator(0, "calibration")
        self._a, self._b = (
            torch.randn(self.side, self.side, generator=generator).to(device, self.dtype)
            for _ in range(2)
        )
        self._out = torch.empty_like(self._a)

    @property
    def operations(self) -> float:
        """Floating-point operations of one run (a multiplication and an addition count two)."""
        return 2.0 * self.side**3

    def __call__(self) -> None:
        """Run it once."""
        torch.mm(self._a, self._b, out=self._out)


@dataclass(frozen=True)
class Effort:
    """How long to go on.

    Until every work's 95% interval lies within ``share`` of its median, or ``seconds`` have gone
    by, or ``most`` repetitions are done; never fewer than ``least``. A repetition holds as many
    calls as fill ``fill`` seconds, so that timer and loop do not show in small work.
    """

    seconds: float = 5.0
    share: float = 0.03
    least: int = 3
    most: int = 400
    fill: float = 0.01
    warm_up: int = 2


@dataclass
class Series:
    """The repetitions of one work; ``ratios`` are to the calibration runs beside each."""

    calls: int
    ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    def milliseconds(self) -> Estimate:
        """Return the median milliseconds of one call."""
        return median_interval(self.ms)

    def ratio(self) -> Estimate:
        """Return the median time of one call, in calibration runs."""
        return median_interval(self.ratios)


@dataclass
class Timing:
    """All series of one interleaved measurement."""

    series: dict[str, Series]
    calibration_ms: list[float]
    calibration_cpu_ms: list[float]
    stopped_by: str
    seconds: float
    load: contention.Load | None
    clock: Clock = "wall"

    def calibration(self) -> Estimate:
        """Return the median milliseconds of the calibration."""
        return median_interval(self.calibration_ms)

    @property
    def repetitions(self) -> int:
        """Return how often each work was timed."""
        return min(len(series.ms) for series in self.series.values())


def settled(estimate: Estimate, share: float) -> bool:
    """Return whether both 95% bounds lie within ``share`` of the value."""
    reach = max(estimate.high - estimate.value, estimate.value - estimate.low)
    return estimate.confidence >= 0.95 and reach <= share * estimate.value


def interleave(
    works: Mapping[str, Work],
    calibration: Work,
    effort: Effort,
    stopwatch: Stopwatch,
    clock: Clock = "wall",
) -> Timing:
    """Time each work in turn, every one between two calibration runs, until ``effort`` ends.

    ``clock``: what ratios are taken in (``clock_for``). ``stopped_by`` is "interval" (settled),
    "budget" (time was up) or "repetitions". The caller holds the machine's timing lock.
    """
    series = {name: _warmed(work, effort, stopwatch) for name, work in works.items()}
    stopwatch.time(calibration, effort.warm_up)
    gc.collect()
    with collector_at_rest():
        before, queue = contention.read_counters(), []
        began = stopwatch.now()
        yardstick = [stopwatch.time(calibration, 1)]
        stopped_by = ""
        while not stopped_by:
            for name, work in works.items():
                one = series[name]
                reading = stopwatch.time(work, one.calls)
                yardstick.append(stopwatch.time(calibration, 1))
                around = (getattr(yardstick[-2], clock) + getattr(yardstick[-1], clock)) / 2
                one.ms.append(1e3 * reading.wall / one.calls)
                one.cpu_ms.append(1e3 * reading.cpu / one.calls)
                one.ratios.append(getattr(reading, clock) / one.calls / around)
            waiting = contention.run_queue()
            if waiting is not None:
                queue.append(waiting)
            stopped_by = _reason_to_stop(series, effort, stopwatch.now() - began)
        after = contention.read_counters()
    load = None
    if before is not None and after is not None:
        load = contention.judge(before, after, queue)
    return Timing(
        series=series,
        calibration_ms=[1e3 * reading.wall for reading in yardstick],
        calibration_cpu_ms=[1e3 * reading.cpu for reading in yardstick],
        stopped_by=stopped_by,
        seconds=stopwatch.now() - began,
        load=load,
        clock=clock,
    )


def _warmed(work: Work, effort: Effort, stopwatch: Stopwatch) -> Series:
    """Warm ``work`` up and return an empty series with the calls that fill a repetition."""
    # The first call builds caches and pages memory in; only a later one tells the real size.
    for _ in range(effort.warm_up - 1):
        stopwatch.time(work, 1)
    one = stopwatch.time(work, 1).wall
    if one >= 10 * effort.fill:
        return Series(calls=1)
    # The number of calls must not hang on one disturbed reading: a lone call after a calibration
    # finds cold caches, and processes that differ in it would differ in their figures.
    one = min(one, *(stopwatch.time(work, 1).wall for _ in range(4)))
    burst = max(1, min(100, math.ceil(effort.fill / max(one, 1e-7) / 4)))
    each = min(stopwatch.time(work, burst).wall / burst for _ in range(2))
    return Series(calls=max(1, math.ceil(effort.fill / max(each, 1e-7))))


def _reason_to_stop(series: Mapping[str, Series], effort: Effort, elapsed: float) -> str:
    n = min(len(one.ms) for one in series.values())
    if n < effort.least:
        return ""
    if all(settled(one.ratio(), effort.share) for one in series.values()):
        return "interval"
    if elapsed >= effort.seconds:
        return "budget"
    return "repetitions" if n >= effort.most else ""
