"""Each peer against softmax attention written out with the keys that it is said to see."""

import shutil

import pytest
import torch

from spanwise.attention import rule_attention
from spanwise.cost import measure
from spanwise.influence import keys_per_query
from variants.peers import DenseMask, FlexAttention, LocalAttention, Longformer

LAYER = {"d_model": 8, "n_heads": 2}


def softmax_over(scores, seen, v):
    return torch.where(seen, scores, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize(("window", "back"), [(4, 1), (2, 3), (1, 1)])
def test_local_attention_keeps_one_key_more_than_its_window(window, back):
    layer = LocalAttention(window, look_backward=back, **LAYER).double()
    q, k, v = torch.randn(3, 1, 2, 21, 4, dtype=torch.float64)
    place = torch.arange(21)
    far = place[:, None] - place
    expected = softmax_over(q @ k.mT / 2, (far >= 0) & (far <= window * back), v)
    torch.testing.assert_close(layer.attend(q, k, v, None), expected)
    # Of 21 queries, the first sees 1 key, the next 2, and so on up to the whole window.
    whole = window * back + 1
    assert layer.keys_per_query(21) == (21 * whole - whole * (whole - 1) / 2) / 21


def test_local_attention_sees_the_keys_of_its_peers_directly():
    from local_attention import LocalAttention as Theirs

    theirs = Theirs(window_size=8, causal=True, exact_windowsize=True)
    q, k, v, k_other, v_other = torch.randn(5, 1, 2, 64, 4, dtype=torch.float64)
    counted = keys_per_query(
        lambda k, v: theirs(q.expand_as(k), k, v), [k, v], [k_other, v_other], 1e-11
    )
    assert counted == LocalAttention(8, **LAYER).keys_per_query(64) == (64 * 9 - 36) / 64


@pytest.mark.parametrize("length", [3, 12, 21])
def test_longformer_equals_attention_with_its_weights(length):
    layer = Longformer(4, causal=False, **LAYER)
    x = torch.randn(2, length, 8)
    inner = layer.module
    q, k, v = (
        W(x).unflatten(-1, (2, 4)).transpose(1, 2) for W in (inner.query, inner.key, inner.value)
    )
    place = torch.arange(length)
    out = softmax_over(q @ k.mT / 2, (place[:, None] - place).abs() <= 2, v)
    torch.testing.assert_close(layer(x), layer.W_o(out.transpose(1, 2).flatten(2)))
    # 5 keys, but for 2 + 1 missing at either end.
    assert Longformer(4, causal=False, **LAYER).keys_per_query(12) == (12 * 5 - 6) / 12


def test_longformer_gradients_are_those_of_attention_with_its_weights():
    layer = Longformer(4, causal=False, **LAYER).double()
    x = torch.randn(1, 10, 8, dtype=torch.float64, requires_grad=True)
    toward = torch.randn_like(x)
    (found,) = torch.autograd.grad(layer(x), x, toward)
    inner, place = layer.module, torch.arange(10)
    q, k, v = (
        W(x).unflatten(-1, (2, 4)).transpose(1, 2) for W in (inner.query, inner.key, inner.value)
    )
    out = softmax_over(q @ k.mT / 2, (place[:, None] - place).abs() <= 2, v)
    out = layer.W_o(out.transpose(1, 2).flatten(2))
    (expected,) = torch.autograd.grad(out, x, toward)
    # Its softmax is float32 in float64 too, which is what its expected failure says.
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_longformer_counts_its_projections_and_pairs():
    layer = Longformer(4, causal=False, **LAYER)
    assert layer.attend_flops(12) == 4 * (12 * 5 - 6) * 8
    assert layer.flops(12) == layer.attend_flops(12) + 2 * 12 * 8 * (4 * 8)
    # What serves global tokens only is left out; biases are its own.
    assert sum(p.numel() for p in layer.parameters()) == 4 * 8 * 8 + 3 * 8


@pytest.mark.parametrize("kind", [DenseMask, FlexAttention])
@pytest.mark.parametrize("causal", [True, False])
def test_torch_kernels_with_a_mask_equal_the_rule(kind, causal):
    layer = kind(5, causal=causal, **LAYER)
    q, k, v = torch.randn(3, 2, 2, 23, 4)
    lengths = torch.tensor([23, 11])
    expected = rule_attention(q, k, v, layer.sees, causal, lengths, kernel="dense")
    found = layer.attend(q, k, v, lengths)
    inside = (torch.arange(23) < lengths[:, None])[:, None, :, None]
    torch.testing.assert_close(found * inside, expected)


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++")
def test_flex_attention_compiled_equals_the_rule_and_is_measured_forward_only():
    layer = FlexAttention(40, compiled_from=128, **LAYER)
    q, k, v = torch.randn(3, 1, 2, 256, 32)
    with torch.no_grad():
        found = layer.attend(q, k, v, None)
    torch.testing.assert_close(
        found, rule_attention(q, k, v, layer.sees, True, scale=layer.scale, kernel="dense")
    )
    from functools import partial

    row, _ = measure(
        partial(FlexAttention, window=40),
        length=64,
        budget_seconds=1e-6,
        least=1,
        threads=1,
        causal=True,
        **LAYER,
    )
    assert row["forward_ms"] > 0
    assert row["forward_peak_bytes"] > 0
    assert "train_ms" not in row
    assert "train_peak_bytes" not in row


def test_a_layer_that_does_not_train_says_so():
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        FlexAttention(5, **LAYER)(torch.randn(1, 9, 8))
