import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spanwise.memory import measure_peak, replay, saved_bytes, tensor_bytes

KiB = 1024


def block(kib: int) -> torch.Tensor:
    return torch.empty(kib * KiB, dtype=torch.uint8)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def nested() -> None:
    a = block(64)
    b = block(128)  # 192
    del a  # 128
    c = block(32)  # 160
    del b, c


def rising() -> None:
    held = [block(size) for size in (8, 16, 32)]  # 56
    held.pop(0)  # 48
    held.append(block(4))  # 52


def interleaved() -> list[torch.Tensor]:
    a, b, c = block(10), block(20), block(30)  # 60
    del b  # 40
    d = block(25)  # 65: the peak is not where most blocks lived
    del a, d
    return [c]


@pytest.mark.parametrize(
    ("work", "peak"), [(nested, 192), (rising, 56), (interleaved, 65), (lambda: None, 0)]
)
def test_known_orders_are_read_exactly(work: Callable[[], object], peak: int, threads: int) -> None:
    measured = measure_peak(work)
    assert measured == (peak * KiB, 0)


def test_what_lived_before_neither_counts_nor_makes_room() -> None:
    before = [block(512)]

    def work() -> None:
        before.clear()
        before.append(block(100))
        before.append(block(50))

    assert measure_peak(work) == (150 * KiB, 150 * KiB)


def test_what_is_left_is_told() -> None:
    cache: list[torch.Tensor] = []

    def work() -> None:
        cache.append(block(40))
        block(60)

    assert measure_peak(work) == (100 * KiB, 40 * KiB)


def test_an_operator_on_every_thread_counts_once(threads: int) -> None:
    a = torch.randn(512, 512)
    assert measure_peak(lambda: a @ a) == (512 * 512 * 4, 0)
    # Scores, scaled scores and weights of the textbook form: three maps at once.
    assert measure_peak(lambda: ((s := a @ a.T), (s / 8).softmax(-1) @ a)).peak == 3 * 512 * 512 * 4


def test_backward_counts_gradients_and_temporaries(threads: int) -> None:
    w = torch.randn(256, 256, requires_grad=True)
    x = torch.randn(64, 256)
    gradient = torch.randn(64, 256)

    def train() -> None:
        w.grad = None
        (x @ w).backward(gradient)

    # The output dies with the graph; then only the gradient of w is new.
    measured = measure_peak(train)
    assert measured.kept == 256 * 256 * 4
    assert 256 * 256 * 4 <= measured.peak <= 256 * 256 * 4 + 64 * 256 * 4


def test_many_events_stay_cheap() -> None:
    def work() -> None:
        for _ in range(20_000):
            block(1)

    assert measure_peak(work) == (KiB, 0)


def test_replay() -> None:
    assert replay([4, 8, -4, 2, -8, -2]) == (12, 0)


def test_saved_storages_count_once_and_not_the_inputs() -> None:
    w = torch.randn(100, 100, requires_grad=True)
    x = torch.randn(50, 100, requires_grad=True)

    def forward() -> torch.Tensor:
        h = x @ w  # saves x and w, both alive anyway
        return torch.exp(h) + torch.exp(h.T).T  # saves the two results

    assert saved_bytes(forward, [w, x]) == 2 * 50 * 100 * 4
    # A view keeps its whole storage, and two views of one storage keep it once.
    big = torch.randn(1000, 100)
    assert saved_bytes(lambda: (x[:5] * big[:5]) * big[5:10], [w, x]) == 1000 * 100 * 4


def test_a_dropped_graph_keeps_nothing() -> None:
    x = torch.randn(10, 10, requires_grad=True)

    def forward() -> torch.Tensor:
        torch.exp(x)
        return x.sum()

    assert saved_bytes(forward, [x]) == 0


def test_saved_bytes_leave_no_graph_behind() -> None:
    x = torch.randn(100, 100, requires_grad=True)
    saved_bytes(lambda: torch.exp(x), [x])
    assert measure_peak(lambda: saved_bytes(lambda: torch.exp(x), [x])).kept == 0


def test_parameters_that_are_tied_count_once() -> None:
    one, other = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)
    other.weight = one.weight
    assert tensor_bytes([one.weight, other.weight, torch.zeros(3)]) == 400 + 12


def test_the_map_is_seen_and_fused_attention_has_none() -> None:
    q = torch.randn(1, 1, 1024, 64)
    with torch.no_grad():
        formed = measure_peak(lambda: (q @ q.mT).softmax(-1) @ q).peak
        fused = measure_peak(lambda: F.scaled_dot_product_attention(q, q, q)).peak
    assert formed >= 2 * 1024 * 1024 * 4
    assert fused < 2 * 1024 * 1024


def test_the_profiler_stays_silent() -> None:
    script = (
        "import torch; from spanwise.memory import measure_peak;"
        "print(measure_peak(lambda: torch.empty(256, dtype=torch.uint8)).peak)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        check=True,
    )
    assert done.stdout.strip() == "256"
    assert done.stderr == ""
