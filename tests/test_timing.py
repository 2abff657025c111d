"""The logic of timing, with a clock that tests turn by hand: nothing here waits or times."""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

from spanwise.contention import Counters, judge, read_counters
from spanwise.statistics import Estimate
from spanwise.timing import (
    Calibration,
    Clock,
    CpuStopwatch,
    Effort,
    Reading,
    Stopwatch,
    clock_for,
    interleave,
    settled,
)


class FakeStopwatch(Stopwatch):
    """Time passes only as work says, through ``spend``; ``overhead`` is lost at every reading."""

    def __init__(self, overhead: float = 0.0) -> None:
        self.at = 0.0
        self.overhead = overhead
        self.log: list[tuple[str, int]] = []

    def spend(self, name: str, seconds: Callable[[], float]) -> Callable[[], None]:
        def work() -> None:
            if not self.log or self.log[-1][0] != name or self.log[-1][1] == 0:
                self.log.append((name, 0))
            self.log[-1] = (name, self.log[-1][1] + 1)
            self.at += seconds()

        return work

    def time(self, work: Callable[[], object], calls: int) -> Reading:
        began = self.at
        self.log.append(("", 0))
        for _ in range(calls):
            work()
        self.at += self.overhead
        return Reading(self.at - began, self.at - began)

    def now(self) -> float:
        return self.at

    def order(self) -> list[tuple[str, int]]:
        return [entry for entry in self.log if entry[1]]


def steady(seconds: float) -> Callable[[], float]:
    return lambda: seconds


def test_each_work_stands_between_two_calibrations() -> None:
    watch = FakeStopwatch()
    works = {"forward": watch.spend("f", steady(0.1)), "train": watch.spend("t", steady(0.3))}
    effort = Effort(seconds=1e9, share=0.03, least=3, most=6, warm_up=2)
    timing = interleave(works, watch.spend("c", steady(0.02)), effort, watch)
    order = watch.order()
    warm = [("f", 1), ("f", 1), ("t", 1), ("t", 1), ("c", 2)]
    assert order[: len(warm)] == warm
    round_ = [("f", 1), ("c", 1), ("t", 1), ("c", 1)]
    assert order[len(warm) :] == [("c", 1), *round_ * 6]
    assert timing.repetitions == 6
    assert timing.series["train"].milliseconds().value == pytest.approx(300)
    assert timing.series["train"].ratio().value == pytest.approx(15)


def test_a_machine_that_slows_down_changes_milliseconds_and_not_the_ratio() -> None:
    watch = FakeStopwatch()
    slow = [1.0]

    def work_seconds() -> float:
        slow[0] *= 1.02
        return 0.05 * slow[0]

    timing = interleave(
        {"forward": watch.spend("f", work_seconds)},
        watch.spend("c", lambda: 0.02 * slow[0]),
        Effort(seconds=1e9, share=0.0, least=3, most=40, warm_up=1),
        watch,
    )
    milliseconds, ratio = timing.series["forward"].milliseconds(), timing.series["forward"].ratio()
    assert milliseconds.high / milliseconds.low > 1.2
    assert ratio.value == pytest.approx(2.5, rel=0.02)
    assert ratio.high / ratio.low < 1.001


@pytest.mark.parametrize("clock", ["cpu", "wall"])
def test_processor_time_leaves_out_what_others_took(clock: Clock) -> None:
    stolen = iter([1.0, 1.7, 3.1, 1.2, 2.6] * 1000)

    class Preempted(FakeStopwatch):
        def time(self, work: Callable[[], object], calls: int) -> Reading:
            reading = super().time(work, calls)
            return Reading(reading.wall * next(stolen), reading.cpu)

    watch = Preempted()
    effort = Effort(seconds=1e9, share=0.0, least=3, most=20)
    works = {"forward": watch.spend("f", steady(0.1))}
    timing = interleave(works, watch.spend("c", steady(0.02)), effort, watch, clock)
    ratio = timing.series["forward"].ratio()
    assert timing.clock == clock
    if clock == "cpu":
        assert ratio[:3] == pytest.approx((5, 5, 5))
    else:
        assert ratio.high > 1.5 * ratio.low


def test_one_thread_goes_by_processor_time() -> None:
    assert clock_for(torch.device("cpu"), 1) == "cpu"
    assert clock_for(torch.device("cpu"), 2) == "wall"
    assert clock_for(torch.device("cuda"), 1) == "wall"


def test_tiny_work_is_batched_until_the_timer_does_not_show() -> None:
    watch = FakeStopwatch(overhead=1e-4)
    timing = interleave(
        {"forward": watch.spend("f", steady(5e-6))},
        watch.spend("c", steady(0.02)),
        Effort(seconds=1e9, least=6, most=6, fill=0.02),
        watch,
    )
    series = timing.series["forward"]
    assert series.calls > 1000
    # A single call would have read 105 microseconds for 5.
    assert series.milliseconds().value == pytest.approx(5e-3, rel=0.05)


def test_it_stops_by_interval_when_the_interval_is_narrow() -> None:
    watch = FakeStopwatch()
    timing = interleave(
        {"forward": watch.spend("f", steady(0.1))},
        watch.spend("c", steady(0.02)),
        Effort(seconds=1e9, share=0.01, least=3, most=100),
        watch,
    )
    # Below six values there is no 95% interval of a median, however equal they are.
    assert (timing.stopped_by, timing.repetitions) == ("interval", 6)


def test_it_stops_by_budget_and_not_before_the_least() -> None:
    noise = iter([0.1, 0.9] * 100)
    for seconds, repetitions in ((0.0, 4), (5.0, 10)):
        watch = FakeStopwatch()
        timing = interleave(
            {"forward": watch.spend("f", lambda: next(noise))},
            watch.spend("c", steady(1e-6)),
            Effort(seconds=seconds, share=0.01, least=4, most=100),
            watch,
        )
        assert (timing.stopped_by, timing.repetitions) == ("budget", repetitions)


def test_it_stops_by_repetitions() -> None:
    noise = iter([0.1, 0.9] * 100)
    watch = FakeStopwatch()
    timing = interleave(
        {"forward": watch.spend("f", lambda: next(noise))},
        watch.spend("c", steady(1e-6)),
        Effort(seconds=1e9, share=0.01, least=3, most=12),
        watch,
    )
    assert (timing.stopped_by, timing.repetitions) == ("repetitions", 12)


def test_every_work_must_settle() -> None:
    noise = iter([0.1, 0.9] * 100)
    watch = FakeStopwatch()
    timing = interleave(
        {"forward": watch.spend("f", steady(0.1)), "train": watch.spend("t", lambda: next(noise))},
        watch.spend("c", steady(0.02)),
        Effort(seconds=1e9, share=0.01, least=3, most=20),
        watch,
    )
    assert timing.stopped_by == "repetitions"


def test_settled_looks_at_both_sides() -> None:
    assert settled(Estimate(100, 98, 102, 9), 0.02)
    assert not settled(Estimate(100, 97, 101, 9), 0.02)
    assert not settled(Estimate(100, 99, 103, 9), 0.02)
    assert not settled(Estimate(100, 100, 100, 3, confidence=0.75), 0.02)


def test_the_collector_rests_while_timing_and_works_again_after() -> None:
    watch = FakeStopwatch()
    seen: list[bool] = []

    def work() -> float:
        seen.append(gc.isenabled())
        return 0.1

    effort = Effort(seconds=0, least=1, warm_up=1)
    interleave({"forward": watch.spend("f", work)}, watch.spend("c", steady(0.1)), effort, watch)
    assert seen[-1] is False
    assert gc.isenabled()

    def fail() -> float:
        if not gc.isenabled():
            raise ArithmeticError
        return 0.1

    with pytest.raises(ArithmeticError):
        interleave(
            {"forward": watch.spend("f", fail)}, watch.spend("c", steady(0.1)), effort, watch
        )
    assert gc.isenabled()


def test_calibration_is_the_product_it_says() -> None:
    calibration = Calibration(torch.device("cpu"), torch.bfloat16)
    assert calibration.operations == 2 * 1024**3
    calibration()
    assert calibration._out.dtype == torch.float32
    assert torch.equal(calibration._out, calibration._a @ calibration._b)


def test_cpu_stopwatch_calls_as_often_as_asked_and_reads_both_clocks() -> None:
    calls: Iterator[int] = iter(range(1000))

    def work() -> None:
        next(calls)

    reading = CpuStopwatch().time(work, 7)
    assert next(calls) == 7
    assert reading.wall > 0
    assert reading.cpu >= 0


def at(wall: float, busy: float, own: float, stolen: float = 0.0, switches: int = 0) -> Counters:
    return Counters(wall=wall, busy=busy, stolen=stolen, own=own, switches=switches)


def test_our_own_work_is_not_contention() -> None:
    load = judge(at(0, 100, 10), at(10, 120, 30, switches=50), [2, 2], cores=2)
    assert not load.contended
    assert load.other_cores == 0
    assert load.switches_per_second == 5
    assert load.running == 2


def test_other_peoples_work_is() -> None:
    # Two cores for ten seconds, of which we had 12 core-seconds and others 8.
    load = judge(at(0, 100, 10), at(10, 120, 22), [3], cores=2)
    assert load.contended
    assert load.other_cores == pytest.approx(0.8)
    assert "others kept 0.80 of 2 cores busy" in load.why


def test_stolen_time_is() -> None:
    load = judge(at(0, 0, 0), at(10, 10, 10, stolen=2), [], cores=2)
    assert load.stolen_share == pytest.approx(0.1)
    assert "hypervisor took 10%" in load.why


def test_a_tick_of_doubt_in_a_short_span_is_not_contention() -> None:
    assert not judge(at(0, 0, 0), at(0.1, 0.04, 0.0), [], cores=2).contended


def test_the_kernels_own_file_is_read() -> None:
    now = read_counters()
    later = read_counters()
    if now is None or later is None:
        pytest.skip("no /proc/stat here")
    assert later.wall >= now.wall
    assert later.busy >= now.busy > 0
