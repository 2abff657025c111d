"""The textbook's laws of self-attention, on data drawn anew for every run."""

from __future__ import annotations

import math
import secrets

import pytest
import torch

from spanwise.model import build_layer
from variants.full import Full
from variants.full_map import FullMap
from variants.windowed import Windowed


@pytest.fixture
def generator():
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # shown when the test fails
    return torch.Generator().manual_seed(seed)


def normal(generator, *shape):
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def layer_of(variant, **keywords):
    return build_layer(variant, **{"n_heads": 1, "causal": False, **keywords}).double()


@pytest.mark.parametrize("d_k", [4, 64, 1024])
def test_variance_of_scores_is_d_k_unscaled_and_1_scaled(generator, d_k):
    """Read back from the layer's own weights: log w_i - log w_j is a difference of scores."""
    q, k = normal(generator, 2500, 1, 2, d_k), normal(generator, 2500, 1, 2, d_k)
    for scale, variance in ((1 / math.sqrt(d_k), 1), (0.01, 1e-4 * d_k)):
        weights = layer_of(FullMap, d_model=d_k, scale=scale).weights(q, k)
        gaps = weights[..., 0].log() - weights[..., 1].log()
        assert float(gaps.var()) / 2 == pytest.approx(variance, rel=0.1)
    assert layer_of(FullMap, d_model=d_k).scale == pytest.approx(1 / math.sqrt(d_k))


@pytest.mark.parametrize("variant", [Full, FullMap])
@pytest.mark.parametrize("n_heads", [1, 4])
def test_without_positions_attention_is_equivariant_to_permutation(generator, variant, n_heads):
    layer = layer_of(variant, d_model=32, n_heads=n_heads)
    x = normal(generator, 3, 40, 32)
    order = torch.randperm(40, generator=generator)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_with_positions_it_is_not(generator, positions):
    layer = layer_of(FullMap, d_model=32, n_heads=4, positions=positions)
    x = normal(generator, 1, 40, 32)
    order = torch.arange(40).roll(7)
    assert (layer(x[:, order]) - layer(x)[:, order]).abs().max() > 1e-3


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_every_row_of_the_softmax_sums_to_1(generator, causal, size):
    for variant in (Full, FullMap, lambda **k: Windowed(window=5, **k)):
        layer = layer_of(variant, d_model=16, n_heads=2, causal=causal)
        weights = layer.attention_weights(size * normal(generator, 2, 33, 16))
        assert (weights >= 0).all()
        torch.testing.assert_close(
            weights.sum(-1), torch.ones(2, 2, 33, dtype=torch.float64), rtol=0, atol=1e-12
        )


def test_without_the_scale_hardly_any_gradient_passes_the_softmax(generator):
    """Standard normal q and k, 64 keys, d_k = 1,024: the medians of what autograd finds."""
    d_k = 1024
    q, k = normal(generator, 512, d_k), normal(generator, 64, d_k)
    upstream = normal(generator, 512, 64)
    medians = []
    for scale in (1 / math.sqrt(d_k), 1.0):
        scores = (q @ k.T * scale).requires_grad_()
        (gradient,) = torch.autograd.grad((scores.softmax(-1) * upstream).sum(), scores)
        medians.append(float(gradient.norm(dim=-1).median()))
    assert medians[0] / medians[1] >= 50


@pytest.mark.parametrize("causal", [True, False])
def test_multi_head_output_is_each_head_alone_concatenated_and_projected(generator, causal):
    layer = layer_of(Full, d_model=24, n_heads=3, causal=causal)
    x = normal(generator, 9, 24)
    with torch.no_grad():
        found = layer(x[None])[0]
    w_q, w_k, w_v, w_o = (getattr(layer, f"W_{n}").weight.detach().tolist() for n in "qkvo")
    rows = x.tolist()

    def through(w, row, outputs):
        return [sum(w[o][i] * row[i] for i in range(24)) for o in outputs]

    for i in range(9):
        joined = []
        for head in range(3):
            mine = range(8 * head, 8 * head + 8)
            query = through(w_q, rows[i], mine)
            seen = range(i + 1) if causal else range(9)
            scores = [
                sum(a * b for a, b in zip(query, through(w_k, rows[j], mine), strict=True))
                / math.sqrt(8)
                for j in seen
            ]
            powers = [math.exp(score - max(scores)) for score in scores]
            values = [through(w_v, rows[j], mine) for j in seen]
            joined += [
                sum(p / sum(powers) * v[d] for p, v in zip(powers, values, strict=True))
                for d in range(8)
            ]
        want = [sum(w_o[o][d] * joined[d] for d in range(24)) for o in range(24)]
        torch.testing.assert_close(found[i].tolist(), want, rtol=1e-9, atol=1e-9)
