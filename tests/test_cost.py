import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from spanwise.cost import measure, memory_row
from spanwise.errors import ConfigError
from spanwise.generation import build_generation
from spanwise.operations import Operations, Products
from spanwise.statistics import scaling_exponent
from spanwise.workload import build_workload
from variants.full import Full
from variants.full_map import FullMap
from variants.interface import Stack, Variant
from variants.windowed import Windowed

MODEL: dict[str, Any] = {
    "d_model": 32,
    "n_heads": 2,
    "causal": True,
    "positions": "none",
    "vocab_size": 50,
    "n_classes": 50,
}
CPU = torch.device("cpu")


def quick(variant: Any, **keywords: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return measure(
        variant,
        **{"length": 64, "budget_seconds": 1e-6, "least": 1, "threads": 1, **MODEL, **keywords},
    )


def peaks(variant: Any, length: int, batch: int = 1, **model: Any) -> dict[str, Any]:
    work = build_workload(
        variant,
        "layer",
        length=length,
        batch=batch,
        seed=0,
        device=CPU,
        dtype=torch.float32,
        **{**MODEL, **model},
    )
    return memory_row(work, CPU)


class Recurrent(Variant):
    """What is no attention: no pairs, so no operations to count."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.gru = nn.GRU(self.d_model, self.d_model, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.gru(x)[0]


class Watched(Variant):
    """Notes what it is given and when."""

    log: list[tuple[bool, bool, float]]
    gradients: list[Tensor]

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.weight = nn.Parameter(torch.eye(self.d_model))
        self.log, self.gradients = [], []
        made.append(self)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.log.append((self.training, torch.is_grad_enabled(), float(x.detach().std())))
        y = x @ self.weight
        if y.requires_grad:
            y.register_hook(self.gradients.append)
        return y


made: list[Watched] = []


class CachesItsMask(Variant):
    """Keeps an L x L mask between calls, where a measurement of one call would miss it."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.weight = nn.Parameter(torch.ones(1))
        self.mask: Tensor | None = None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if self.mask is None:
            self.mask = torch.ones(x.shape[1], x.shape[1])
        return x * self.weight


def test_the_floor_by_hand() -> None:
    batch, length, d_model = 3, 64, 32
    row, _ = quick(Full, batch=batch)
    pairs = batch * length * (length + 1) // 2
    attention = 4 * pairs * d_model
    projections = 4 * 2 * batch * length * d_model**2
    assert row["flops_forward"] == attention + projections
    rate = 2 * 1024**3 / row["calibration_ms"]
    assert row["floor_ms"] == pytest.approx((attention + projections) / rate)
    assert row["floor_train_ms"] == pytest.approx((3.5 * attention + 3 * projections) / rate)
    # One repetition: its ratio over the operations' share of a calibration run.
    share = 2 * 1024**3 / row["flops_forward"]
    assert row["x_floor_forward"] == pytest.approx(row["x_calibration_forward"] * share)


def test_an_op_has_no_projections() -> None:
    row, _ = quick(partial(Windowed, window=8), scope="op")
    keys = (8 * 64 - 8 * 7 / 2) / 64
    assert row["flops_forward"] == pytest.approx(4 * 64 * keys * 32)


def test_what_is_no_attention_is_measured_too() -> None:
    row, detail = quick(Recurrent)
    assert row["forward_ms"] > 0
    assert row["train_peak_bytes"] > row["forward_peak_bytes"] > 0
    for column in ("flops_forward", "floor_ms", "x_floor_forward", "x_floor_train"):
        assert row[column] is None
    assert len(detail["train"]["ms"]) == row["repetitions"]
    with pytest.raises(ConfigError, match="Recurrent has no attention"):
        quick(Recurrent, scope="op")


def test_a_stack_is_the_mean_of_its_pattern() -> None:
    local = partial(Windowed, window=4)
    stack = Stack([local, local, FullMap])
    peaks(local, 128)  # its plan is cached for good; the next must not pay for it again
    mean = peaks(stack, 128)
    one, other = peaks(local, 128), peaks(FullMap, 128)
    for column in ("forward_peak_bytes", "train_peak_bytes", "saved_bytes", "parameter_bytes"):
        assert mean[column] == round((2 * one[column] + other[column]) / 3)
    row, detail = quick(stack, decode=True)
    # The repetitions are in the row's units: a layer, a token.
    for name in ("forward", "train", "decode"):
        assert detail[name]["ms"] == [pytest.approx(row[f"{name}_ms"], rel=1e-4)]
        assert detail[name]["ratios"] == [pytest.approx(row[f"x_calibration_{name}"], rel=1e-4)]
    flops = [quick(variant)[0]["flops_forward"] for variant in (local, FullMap)]
    assert row["flops_forward"] == pytest.approx((2 * flops[0] + flops[1]) / 3)


def test_the_mean_of_operations_is_none_where_one_is_unknown() -> None:
    assert Operations.mean([Operations(1, 2), None]) is None
    assert Operations.mean([Operations(1, 2), Operations(3, 4)]) == Operations(2, 3)


def test_what_is_computed_counts_tiles_and_halves_causal_kernels() -> None:
    length, d_model = 128, 32
    projections = 4 * 2 * length * d_model**2
    formed, _ = quick(FullMap, length=length, memory=False)
    assert formed["flops_computed"] == projections + 4 * length**2 * d_model
    local, _ = quick(partial(Windowed, window=8), length=length, memory=False)
    # Each query needs 8 keys; tiles give it more, and far fewer than all.
    keys = (local["flops_computed"] - projections) / (4 * length * d_model)
    assert 8 <= keys <= 128
    q = torch.randn(1, 2, length, 16)
    with Products() as done:
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert done.operations == 4 * length * (length + 1) / 2 * 32


def test_a_cached_mask_counts_in_every_peak() -> None:
    length = 256
    row = peaks(CachesItsMask, length)
    assert row["kept_bytes"] == 4 * length**2
    assert row["forward_peak_bytes"] == 4 * length**2 + 4 * length * 32
    assert row["train_peak_bytes"] > 4 * length**2


def test_real_input_in_the_right_mode_and_a_gradient_for_every_output() -> None:
    made.clear()
    quick(Watched, memory=False)
    (watched,) = made
    assert {(training, grad) for training, grad, _ in watched.log} == {(False, False), (True, True)}
    assert all(0.9 < std < 1.1 for _, _, std in watched.log)
    assert watched.gradients
    assert all(0.9 < float(gradient.std()) < 1.1 for gradient in watched.gradients)


def test_equal_seeds_give_equal_inputs_to_every_variant() -> None:
    seen = []
    for variant in (Full, partial(Windowed, window=4)):
        work = build_workload(
            variant,
            "layer",
            length=16,
            batch=2,
            seed=5,
            device=CPU,
            dtype=torch.float64,
            **MODEL,
        )
        seen.append(work.parts[0].alive)
    for one, other in zip(*seen, strict=True):
        assert torch.equal(one, other)


def test_a_model_step_trains_and_counts_its_head() -> None:
    length, d_model = 64, 32
    keywords = {"n_layers": 2, "mlp_ratio": 2}
    row, _ = quick(Full, scope="model", **keywords)
    layer, _ = quick(Full)
    perceptron = 2 * 2 * length * 2 * d_model**2
    head = 2 * length * d_model * 50
    assert row["flops_forward"] == 2 * (layer["flops_forward"] + perceptron) + head
    tied, _ = quick(Full, scope="model", tied=True, **keywords)
    assert tied["flops_forward"] == row["flops_forward"]
    # The optimiser's state is there from the first step on and is no peak of any.
    assert row["kept_bytes"] < row["parameter_bytes"] / 2

    work = build_workload(
        Full,
        "model",
        length=length,
        batch=1,
        seed=0,
        device=CPU,
        dtype=torch.float32,
        **MODEL,
        **keywords,
    )
    before = [parameter.detach().clone() for parameter in work.parts[0].parameters()]
    work.train()
    after = work.parts[0].parameters()
    assert all(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_generation_has_a_flat_cache_where_the_window_is_one() -> None:
    sizes = {}
    for name, variant in {"window": partial(Windowed, window=8), "full": Full}.items():
        rows = [quick(variant, length=n, decode=True, memory=False)[0] for n in (64, 128)]
        assert all(row["decode_ms"] > 0 for row in rows)
        sizes[name] = [row["cache_bytes"] for row in rows]
    entry = 2 * 32 * 4
    assert sizes == {"window": [8 * entry, 8 * entry], "full": [64 * entry, 128 * entry]}
    stack = Stack([partial(Windowed, window=8), Full])
    assert quick(stack, decode=True, memory=False)[0]["cache_bytes"] == (8 + 64) / 2 * entry


def test_what_cannot_generate_has_no_columns_of_it() -> None:
    assert "decode_ms" not in quick(Full, causal=False, decode=True, memory=False)[0]
    assert "decode_ms" not in quick(Recurrent, decode=True, memory=False)[0]


def test_generation_is_timed_from_the_same_place_each_time() -> None:
    generation = build_generation(
        partial(Windowed, window=8),
        length=50,
        batch=1,
        seed=0,
        device=CPU,
        dtype=torch.float32,
        **MODEL,
    )
    assert generation is not None
    for _ in range(2):
        generation.run()
        assert generation.parts[0].cache.length == 50


def test_a_wrong_shape_is_said() -> None:
    class Short(CachesItsMask):
        def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
            return x[:, 1:]

    with pytest.raises(ValueError, match=r"returned a shape of \(1, 63, 32\)"):
        quick(Short)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"scope": "layr"}, "Did you mean 'layer'"),
        ({"dtype": "float31"}, "Did you mean 'float32'"),
        ({"batch": 0}, "at least 1"),
        ({"budget_seconds": 0}, "above 0"),
        ({"interval": 1.5}, "between 0 and 1"),
        ({"least": 5, "most": 4}, "least <= most"),
    ],
)
def test_bad_arguments(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        quick(Full, **keywords)


def test_threads_are_set_recorded_and_given_back() -> None:
    before = torch.get_num_threads()
    row, _ = quick(Full, threads=2, memory=False)
    assert row["threads"] == 2
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_precisions(dtype: str) -> None:
    row, _ = quick(partial(Windowed, window=8), dtype=dtype)
    size = {"float64": 8, "bfloat16": 2}[dtype]
    assert row["parameter_bytes"] == 4 * 32 * 32 * size


def test_every_shipped_config_names_keywords_of_measure() -> None:
    allowed = inspect.signature(measure).parameters
    files = sorted(Path("configs/cost").glob("*.yaml"))
    assert files
    for file in files:
        assert set(yaml.safe_load(file.read_text())) <= set(allowed)


@pytest.mark.parametrize(
    ("variant", "exponent", "lengths"),
    [
        (FullMap, 2.0, (1024, 2048)),
        (Full, 1.0, (1024, 2048)),
        # A slice of the blocks kernel may always take 1.5 MiB: as much as q at 1,024.
        (partial(Windowed, window=32), 1.0, (2048, 4096)),
    ],
)
def test_memory_grows_as_the_variant_promises(
    variant: Any, exponent: float, lengths: tuple[int, ...]
) -> None:
    # A batch of 4 outweighs the fused kernel's scratch, which has one size whatever the length.
    rows = [peaks(variant, length, batch=4, d_model=64, n_heads=1) for length in lengths]
    for column in ("forward_peak_bytes", "train_peak_bytes"):
        fitted = scaling_exponent(lengths, [row[column] for row in rows])
        assert fitted.value == pytest.approx(exponent, abs=0.1), column


def test_numbers_that_are_not_finite_are_no_measurement():
    class Infinite(Full):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Any) -> Tensor:
            return super().attend(q, k, v, lengths) / 0

    with pytest.raises(ValueError, match="forward: returned NaN or infinity"):
        quick(Infinite)
