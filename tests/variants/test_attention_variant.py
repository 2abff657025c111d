"""Projections, heads, scale and dropout, against explicit loops and torch's own module."""

import math

import pytest
import torch
from torch import nn

from variants.chunked import Chunked
from variants.full import Full
from variants.full_map import FullMap
from variants.local_global import LocalGlobal
from variants.windowed import Windowed

EVERY = [Full, FullMap, lambda **k: Windowed(4, **k), lambda **k: Chunked(4, **k)]
EVERY += [lambda **k: LocalGlobal(3, 2, **k)]


@torch.no_grad()
def by_loops(layer, x, seen):
    """Multi-head attention one number at a time; ``seen(i, j)`` says who sees whom."""
    batch, length, _ = x.shape
    out = torch.zeros_like(x)
    d, shared = layer.head_dim, layer.n_heads // layer.kv_heads
    for b in range(batch):
        heads = []
        for h in range(layer.n_heads):
            rows, kv = slice(h * d, h * d + d), slice(h // shared * d, h // shared * d + d)
            q, k, v = (
                x[b] @ W.weight[part].T
                for W, part in ((layer.W_q, rows), (layer.W_k, kv), (layer.W_v, kv))
            )
            head = torch.zeros(length, d, dtype=x.dtype)
            for i in range(length):
                keys = [j for j in range(length) if seen(i, j)]
                scores = [math.exp(float(q[i] @ k[j]) * layer.scale) for j in keys]
                for j, score in zip(keys, scores, strict=True):
                    head[i] += score / sum(scores) * v[j]
            heads.append(head)
        out[b] = torch.cat(heads, dim=1) @ layer.W_o.weight.T
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [None, 1, 2])
@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (Full, lambda i, j, causal: True),
        (FullMap, lambda i, j, causal: True),
        (EVERY[2], lambda i, j, causal: i - 4 < j <= i if causal else i - 1 <= j <= i + 2),
        (EVERY[3], lambda i, j, causal: i // 4 == j // 4),
        (
            EVERY[4],
            lambda i, j, causal: min(i, j) < 2 or (i - 3 < j if causal else abs(i - j) < 2),
        ),
    ],
    ids=["full", "full_map", "windowed", "chunked", "local_global"],
)
def test_equals_attention_by_loops(make, allowed, causal, kv_heads):
    torch.manual_seed(0)
    layer = make(d_model=12, n_heads=4, causal=causal, kv_heads=kv_heads).double()
    x = torch.randn(2, 11, 12, dtype=torch.float64)
    expected = by_loops(layer, x, lambda i, j: allowed(i, j, causal) and (j <= i or not causal))
    torch.testing.assert_close(layer(x).detach(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("make", [Full, FullMap])
def test_equals_torch_multihead_attention_with_the_same_weights(make):
    layer = make(d_model=16, n_heads=4, causal=False).double()
    peer = nn.MultiheadAttention(16, 4, bias=False, batch_first=True).double()
    with torch.no_grad():
        weights = (layer.W_q.weight, layer.W_k.weight, layer.W_v.weight)
        peer.in_proj_weight.copy_(torch.cat(weights))
        peer.out_proj.weight.copy_(layer.W_o.weight)
    x = torch.randn(3, 9, 16, dtype=torch.float64)
    lengths = torch.tensor([9, 5, 1])
    padded = torch.arange(9) >= lengths[:, None]
    expected = peer(x, x, x, key_padding_mask=padded, need_weights=False)[0]
    torch.testing.assert_close(layer(x, lengths)[~padded], expected[~padded], rtol=0, atol=1e-10)


@pytest.mark.parametrize("make", EVERY)
def test_weights_times_values_are_the_output(make):
    layer = make(d_model=12, n_heads=3, positions="alibi").double()
    x, lengths = torch.randn(2, 10, 12, dtype=torch.float64), torch.tensor([10, 6])
    weights = layer.attention_weights(x, lengths)
    assert weights.shape == (2, 3, 10, 10)
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(3, 10, dtype=torch.float64))
    assert not weights[1, :, 6:].any()
    assert not weights[1, :, :, 6:].any()
    values = layer.W_v(x).unflatten(-1, (3, 4)).transpose(1, 2)
    expected = layer.W_o((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, lengths), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", ["none", "rotary", "alibi"])
def test_padding_is_never_seen_and_outputs_zero(make, causal, positions):
    layer = make(d_model=8, n_heads=2, causal=causal, positions=positions).double()
    x, lengths = torch.randn(3, 9, 8, dtype=torch.float64), torch.tensor([9, 4, 1])
    hostile = x.clone()
    hostile[1, 4:], hostile[2, 1:] = float("nan"), float("inf")
    out = layer(hostile, lengths)
    assert not out[1, 4:].any()
    assert not out[2, 1:].any()
    torch.testing.assert_close(out[1, :4], layer(x[1:2, :4])[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(out[2, :1], layer(x[2:3, :1])[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_as_long_as_the_sequence_is_full_attention(causal):
    x = torch.randn(2, 13, 8, dtype=torch.float64)
    full = Full(d_model=8, n_heads=2, causal=causal).double()
    window = 13 if causal else 26  # bidirectional: the last query looks half a window back
    for make in (Windowed, Chunked):
        layer = make(window, d_model=8, n_heads=2, causal=causal).double()
        layer.load_state_dict(full.state_dict())
        torch.testing.assert_close(layer(x), full(x), rtol=0, atol=1e-10)


def test_scale_multiplies_the_scores():
    unscaled = Full(d_model=8, n_heads=2, scale=1.0).double()
    scaled = Full(d_model=8, n_heads=2).double()
    scaled.load_state_dict(unscaled.state_dict())
    with torch.no_grad():
        scaled.W_q.weight *= 2  # sqrt(head_dim)
    x = torch.randn(1, 7, 8, dtype=torch.float64)
    torch.testing.assert_close(unscaled(x), scaled(x))


def test_dropout_acts_in_training_only():
    layer = Full(d_model=8, n_heads=2, dropout=0.5)
    x = torch.randn(4, 16, 8)
    share = float((layer(x) == 0).float().mean())
    assert 0.35 < share < 0.65
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_operations_are_counted_from_the_pairs_seen():
    layer = Chunked(4, d_model=8, n_heads=2)
    # Chunks of 4 under causality: 1 + 2 + 3 + 4 pairs each; scores and sums, 2 operations each.
    assert layer.attend_flops(12, batch=3) == 3 * 4 * (3 * 10) * 8
    assert layer.flops(12, batch=3) == 3 * 4 * (3 * 10) * 8 + 3 * 4 * 2 * 12 * 8 * 8
    assert Chunked(4, d_model=8, n_heads=2, causal=False).keys_per_query(12) == 4


@pytest.mark.parametrize(
    ("make", "keywords", "named", "allowed"),
    [
        (Windowed, {"window": 0}, "window", "at least 1"),
        (Windowed, {"window": True}, "window", "at least 1"),
        (Windowed, {"window": 2.0}, "window", "at least 1"),
        (Windowed, {"window": "8"}, "window", "at least 1"),
        (Chunked, {"window": -1}, "window", "at least 1"),
        (LocalGlobal, {"window": 2, "global_tokens": -1}, "global_tokens", "at least 0"),
        (Full, {"n_heads": 3}, "n_heads", "divisor of d_model 8"),
        (Full, {"n_heads": 0}, "n_heads", "at least 1"),
        (Full, {"kv_heads": 3}, "kv_heads", "divisor of n_heads 2"),
        (Full, {"d_model": 0}, "d_model", "at least 1"),
        (Full, {"dropout": 1.0}, "dropout", "below 1"),
        (Full, {"scale": 0}, "scale", "above 0"),
        (Full, {"scale": float("nan")}, "scale", "above 0"),
        (Full, {"causal": 1}, "causal", "True or False"),
        (Full, {"positions": "rotry"}, "positions", "Did you mean 'rotary'?"),
        (Full, {"positions": "rotary", "d_model": 6}, "positions", "even"),
        (Full, {"positions": "alibi", "n_heads": 1, "causal": False}, "positions", "at least 2"),
    ],
)
def test_a_bad_argument_is_named(make, keywords, named, allowed):
    with pytest.raises(ValueError, match=rf"^{named}: found .*{allowed}") as error:
        make(**{"d_model": 8, "n_heads": 2, **keywords}) if named else None
    assert "\n" not in str(error.value)


def test_a_variant_describes_itself():
    shared = {"d_model": 8, "n_heads": 2}
    assert Windowed(16, **shared).describe() == "Windowed 16"
    assert Full(**shared).describe() == "Full"
    named = LocalGlobal(16, 2, **shared)
    assert named.describe() == "Local + global, window 16, global tokens 2"
    assert named.own_parameters() == {"window": 16, "global_tokens": 2}
