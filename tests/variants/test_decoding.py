"""Token by token equals all at once, with no more kept than the rule needs."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spanwise.attention import dense_mask, lookup, plan
from spanwise.attention.retention import keys_of_queries, last_query
from variants.chunked import Chunked
from variants.decoding import KeyValueCache, allot
from variants.full import Full
from variants.full_map import FullMap
from variants.gru import GRU
from variants.interface import RuleAttention, Variant
from variants.linear import Linear
from variants.local_global import LocalGlobal
from variants.lstm import LSTM
from variants.windowed import Windowed


class Dilated(RuleAttention):
    """Every third key of the last twelve: at each step the cache holds keys not to be seen."""

    def sees(self, q: Any, k: Any) -> Any:
        return (q - k < 12) & ((q - k) % 3 == 0)


class Sparse(RuleAttention):
    """By a table: some keys are never seen, and some queries see nothing."""

    def __init__(self, **attention: Any) -> None:
        super().__init__(**attention)
        self.table = torch.tensor([0, 1, 2, 3, 1, 0, 2] * 100)

    def sees(self, q: Any, k: Any) -> Any:
        return (lookup(self.table, q) == 2) & (lookup(self.table, k) == 1) & (q - k < 20)


VARIANTS: dict[str, Any] = {
    "full": Full,
    "full_map": FullMap,
    "windowed": partial(Windowed, window=8),
    "window of one": partial(Windowed, window=1),
    "chunked": partial(Chunked, window=8),
    "local_global": partial(LocalGlobal, window=8, global_tokens=3),
    "dilated": Dilated,
    "sparse": Sparse,
    "gru": GRU,
    "lstm": LSTM,
}
MODEL: dict[str, Any] = {"d_model": 16, "n_heads": 4, "causal": True}


def by_steps(layer: Variant, x: Tensor, prompt: int) -> Tensor:
    cache = layer.cache(x.shape[1], batch=x.shape[0])
    assert cache is not None
    if prompt:
        layer.prefill(x[:, :prompt], cache)
    return torch.cat([layer.decode(x[:, i : i + 1], cache) for i in range(prompt, x.shape[1])], 1)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("prompt", [0, 1, 30])
def test_every_step_equals_the_full_forward(name: str, prompt: int) -> None:
    layer = VARIANTS[name](**MODEL).double()
    x = torch.randn(2, 47, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = layer(x)[:, prompt:]
        torch.testing.assert_close(by_steps(layer, x, prompt), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["full", "windowed", "local_global", "dilated"])
@pytest.mark.parametrize("positions", ["rotary", "alibi"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_positions_and_shared_heads(name: str, positions: str, kv_heads: int) -> None:
    layer = VARIANTS[name](**MODEL, positions=positions, kv_heads=kv_heads).double()
    x = torch.randn(1, 40, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(by_steps(layer, x, 11), layer(x)[:, 11:], atol=1e-9, rtol=0)


@pytest.mark.parametrize("positions", ["none", "rotary", "alibi"])
def test_in_single_precision_within_1e_5(positions: str) -> None:
    layer = LocalGlobal(window=8, global_tokens=2, positions=positions, **MODEL)
    x = torch.randn(1, 60, 16, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(by_steps(layer, x, 20), layer(x)[:, 20:], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "entries"),
    [("windowed", 8), ("window of one", 1), ("local_global", 11), ("chunked", 8), ("full", 300)],
)
def test_the_cache_holds_no_more_than_the_rule_needs(name: str, entries: int) -> None:
    layer = VARIANTS[name](**MODEL, kv_heads=2)
    cache = layer.cache(300, batch=3)
    assert isinstance(cache, KeyValueCache)
    # Keys and values of two heads of four numbers, three sequences, four bytes a number.
    assert cache.nbytes == entries * 2 * (2 * 4) * 3 * 4


def test_a_windows_ring_has_one_size_at_every_length() -> None:
    layer = Windowed(window=8, **MODEL)
    sizes = set()
    for horizon in (64, 1000, 5000):
        cache = layer.cache(horizon)
        assert cache is not None
        sizes.add(cache.nbytes)
    assert len(sizes) == 1
    for variant in (GRU, LSTM):
        one, other = (variant(**MODEL).cache(n, batch=2) for n in (64, 5000))
        assert one.nbytes == other.nbytes


def test_the_slots_of_a_window_by_hand() -> None:
    slots = allot(lambda q, k: q - k < 3, 7)
    assert slots.slot == [0, 1, 2, 0, 1, 2, 0]
    assert slots.used == [1, 2, 3, 3, 3, 3, 3]
    assert all(slots.whole)  # a ring's keys are all seen: no mask at any step
    assert slots.last.tolist() == [2, 3, 4, 5, 6, 6, 6]


def test_a_key_that_nobody_sees_has_no_slot() -> None:
    slots = allot(lambda q, k: (k % 2 == 0) & (q - k < 4), 6)
    assert slots.slot == [0, -1, 1, -1, 0, -1]


@pytest.mark.parametrize("length", [1, 31, 64, 100])
@pytest.mark.parametrize(
    "rule",
    [
        None,
        lambda q, k: q - k < 9,
        lambda q, k: (q - k) % 5 == 0,
        lambda q, k: (k < 3) | (q // 7 == k // 7),
        lambda q, k: q - k > 1000,
    ],
)
def test_retention_is_what_the_dense_mask_says(rule: Any, length: int) -> None:
    mask = dense_mask(rule, length, True).numpy()
    known = plan(rule, length, True, tile=16)
    expected = np.where(mask.any(0), length - 1 - mask[::-1].argmax(0), -1)
    assert last_query(known).tolist() == expected.tolist()
    assert keys_of_queries(known).tolist() == mask.sum(1).tolist()


def test_past_the_horizon_and_looking_ahead_are_refused() -> None:
    layer = Windowed(window=4, **MODEL)
    cache = layer.cache(3)
    with torch.no_grad():
        layer.prefill(torch.zeros(1, 3, 16), cache)
        with pytest.raises(ValueError, match="up to 3"):
            layer.decode(torch.zeros(1, 1, 16), cache)
    assert Windowed(window=4, d_model=16, n_heads=4, causal=False).cache(3) is None
    assert GRU(d_model=16, causal=False).cache(3) is None


@pytest.mark.parametrize("kind", [Windowed, Linear, GRU])
def test_one_token_at_a_time_and_none_past_the_horizon(kind: type) -> None:
    layer = kind(**MODEL) if kind is not Windowed else Windowed(window=4, **MODEL)
    cache = layer.cache(2)
    with torch.no_grad():
        with pytest.raises(ValueError, match=r"\(1, 2, 16\); allowed: .*one token"):
            layer.decode(torch.zeros(1, 2, 16), cache)
        assert cache.length == 0
        for _ in range(2):
            layer.decode(torch.zeros(1, 1, 16), cache)
        with pytest.raises(ValueError, match="up to 2"):
            layer.decode(torch.zeros(1, 1, 16), cache)
