"""Wrapped functions and modules against direct calls of them, and what is measured of them."""

import functools

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from spanwise.check import check_variant
from spanwise.influence import keys_per_query, sight
from variants.external import Function, Module
from variants.wrapper import unpadded

SDPA = "torch.nn.functional.scaled_dot_product_attention"
LAYER = {"d_model": 8, "n_heads": 2}


def banded(q, k, v, reach, causal=False):
    """Softmax over the ``reach`` keys before a query, itself, and as many after (not if causal)."""
    place = torch.arange(q.shape[2])
    far = place[:, None] - place
    seen = (far <= reach) & (far >= (0 if causal else -reach))
    return scaled_dot_product_attention(q, k, v, attn_mask=seen)


class Averages(torch.nn.Module):
    """Each position's average with the one before it, and a state that nobody asked for."""

    def __init__(self, width, weight=0.5):
        super().__init__()
        self.keep = torch.nn.Parameter(torch.full((width,), weight))

    def reset_parameters(self):
        self.keep.data.fill_(0.5)

    def forward(self, x):
        before = torch.cat([x[:, :1], x[:, :-1]], 1)
        return self.keep * x + (1 - self.keep) * before, "state"


class Tempered(torch.nn.Module):
    """Attention with weights of its own: a learned temperature for each head."""

    def __init__(self, n_heads):
        super().__init__()
        self.temperature = torch.nn.Parameter(torch.ones(n_heads, 1, 1))

    def forward(self, q, k, v):
        return scaled_dot_product_attention(q * self.temperature, k, v, is_causal=True)


def heads(batch=2, length=10, dtype=torch.float64):
    return torch.randn(3, batch, 2, length, 4, dtype=dtype)


def test_a_function_gets_what_it_is_given():
    given = [{"is_causal": "causal"}, "scale"]
    layer = Function(SDPA, given=given, causal=True, scale=0.3, **LAYER).double()
    q, k, v = heads()
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    torch.testing.assert_close(layer.attend(q, k, v, None), expected, rtol=0, atol=0)
    x = torch.randn(2, 10, 8, dtype=torch.float64)
    q, k, v = (
        W(x).unflatten(-1, (2, 4)).transpose(1, 2) for W in (layer.W_q, layer.W_k, layer.W_v)
    )
    out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    torch.testing.assert_close(layer(x), layer.W_o(out.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("given", [["causal"], {"causal": "causal"}, "causal"])
def test_keywords_reach_the_function(given):
    layer = Function(f"{__name__}.banded", {"reach": 3}, given, causal=True, **LAYER)
    q, k, v = heads(dtype=torch.float32)
    assert torch.equal(layer.attend(q, k, v, None), banded(q, k, v, 3, causal=True))


def test_a_class_is_built_once_and_the_first_result_is_the_output():
    layer = Module(
        f"{__name__}.Averages", {"weight": 0.25}, {"width": "d_model"}, "causal", **LAYER
    )
    x = torch.randn(2, 5, 8)
    expected = 0.25 * x + 0.75 * torch.cat([x[:, :1], x[:, :-1]], 1)
    torch.testing.assert_close(layer(x), expected)
    assert [name for name, _ in layer.named_parameters()] == ["module.keep"]
    # Every position but the first sees the one before it, and itself.
    assert layer.keys_per_query(5) == (1 + 2 * 4) / 5


def test_a_function_may_have_weights_of_its_own():
    layer = Function(f"{__name__}.Tempered", given=["n_heads"], direction="causal", **LAYER)
    layer(torch.randn(1, 6, 8)).sum().backward()
    assert layer.function.temperature.grad.shape == (2, 1, 1)
    assert layer.keys_per_query(6) == 3.5


def test_a_module_of_torch_passes_the_suite():
    factory = functools.partial(
        Module,
        target="torch.nn.GRU",
        keywords={"batch_first": True},
        given=[{"input_size": "d_model"}, {"hidden_size": "d_model"}],
        direction="causal",
    )
    results = check_variant(factory)
    assert not [r for r in results if r.status not in ("passed", "skipped")]
    assert factory(causal=True, **LAYER).keys_per_query(40) == 20.5


def test_sight_of_a_function_is_measured_not_believed():
    layer = Function(
        f"{__name__}.banded", {"reach": 2}, direction="bidirectional", causal=False, **LAYER
    )
    place = torch.arange(20)
    expected = (place[:, None] - place).abs() <= 2
    assert torch.equal(layer.visibility(20), expected)
    # 20 queries see 5 keys each, but for 2 + 1 missing at either end.
    assert layer.keys_per_query(20) == (20 * 5 - 6) / 20
    # At 1,000 tokens from a sample: the stretches' ends fall within the band at the end only.
    assert layer.keys_per_query(1000) == pytest.approx((1000 * 5 - 6) / 1000, rel=0.005)
    assert layer.visibility(1000) is None


def test_a_function_that_looks_ahead_is_caught():
    def factory(**model):
        return Function(f"{__name__}.banded", {"reach": 2}, direction="causal", **model)

    (result,) = check_variant(factory, ["check_causality"])
    assert result.status == "failed"
    assert "position 0 changes" in result.message


@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_never_seen(causal):
    layer = Function(SDPA, given={"is_causal": "causal"}, causal=causal, **LAYER).double()
    x = torch.randn(4, 9, 8, dtype=torch.float64)
    lengths = torch.tensor([9, 4, 0, 4])
    y = layer(x.masked_fill(torch.arange(9)[:, None] >= lengths[:, None, None], torch.nan), lengths)
    for i, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(y[i, :n], layer(x[i : i + 1, :n])[0] if n else y[i, :0])
        assert not y[i, n:].any()


def test_sequences_of_one_length_run_together():
    seen = []

    def run(x):
        seen.append(tuple(x.shape))
        return 2 * x

    x = torch.randn(5, 7, 3)
    lengths = torch.tensor([7, 2, 7, 0, 2])
    out = unpadded(run, (x,), lengths, causal=False)
    assert seen == [(2, 2, 3), (2, 7, 3)]
    assert torch.equal(out, 2 * x * (torch.arange(7) < lengths[:, None])[..., None])


def test_a_sample_of_keys_counts_windows_chunks_and_leading_tokens():
    def counted(rule, length):
        q = torch.arange(length)
        seen = rule(q[:, None], q).double()
        x = torch.randn(1, length, 1, dtype=torch.float64)
        found = keys_per_query(lambda x: seen @ x, [x], [x + 1], 1e-9)
        return found, float(seen.sum()) / length

    def window(q, k):
        return (q - k < 100) & (k <= q)

    found, exact = counted(window, 1024)
    assert found == pytest.approx(exact, rel=0.001)
    found, exact = counted(lambda q, k: window(q, k) | (k < 8), 1024)
    assert found == pytest.approx(exact, rel=0.001)
    found, exact = counted(lambda q, k: (q // 64 == k // 64) & (k <= q), 2048)
    assert found == pytest.approx(exact, rel=0.1)
    for length in (1, 7, 256):
        found, exact = counted(window, length)
        assert found == exact


def test_sight_follows_two_inputs_of_several_heads():
    place = torch.arange(6)
    q, k, v, k_other, v_other = torch.randn(5, 1, 2, 6, 4, dtype=torch.float64)
    strict = torch.where(place[:, None] > place, 0.0, -torch.inf)
    strict[0] = 0  # the first has nobody before it: it sees all

    def run(k, v):
        return scaled_dot_product_attention(q.expand_as(k), k, v, attn_mask=strict.double())

    expected = place[:, None] > place
    expected[0] = True
    assert torch.equal(sight(run, [k, v], [k_other, v_other]), expected)


def test_a_scale_that_the_function_does_not_take_is_refused():
    with pytest.raises(
        ValueError, match=r"scale: found 0.5, but .* is not given it; allowed: null"
    ):
        Function(SDPA, given={"is_causal": "causal"}, scale=0.5, **LAYER)


def test_a_shape_that_is_no_attention_is_told():
    layer = Function("torch.cat", {}, direction="causal", **LAYER)
    layer.function = lambda q, k, v: v[:, :, :1]
    with pytest.raises(ValueError, match=r"target: torch.cat returned a shape of \(2, 2, 1, 4\)"):
        layer(torch.zeros(2, 5, 8))
