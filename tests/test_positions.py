import math

import pytest
import torch

from spanwise.positions import alibi_slopes, rotate, sinusoidal
from variants.full import Full
from variants.full_map import FullMap
from variants.windowed import Windowed


def test_sinusoidal_table_by_hand():
    table = sinusoidal(50, 6, torch.float64)
    for position in (0, 1, 49):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
    assert sinusoidal(4, 5, torch.float32).shape == (4, 5)


def test_rotary_turns_each_pair_by_its_angle():
    x = torch.zeros(1, 1, 8, 6, dtype=torch.float64)
    x[..., 2] = 1.0  # the second pair
    turned = rotate(x)[0, 0, 7]
    angle = 7 * 10000 ** (-2 / 6)
    expected = [0, 0, math.cos(angle), math.sin(angle), 0, 0]
    torch.testing.assert_close(turned, torch.tensor(expected, dtype=torch.float64))


def test_rotary_scores_depend_on_distance_only():
    torch.manual_seed(0)
    q, k = torch.randn(2, 8, dtype=torch.float64)
    q_LD, k_LD = rotate(q.expand(1, 1, 40, 8))[0, 0], rotate(k.expand(1, 1, 40, 8))[0, 0]
    scores = q_LD @ k_LD.T
    for distance in (0, 1, 5, -3):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert abs(scores[5, 0] - scores[6, 0]) > 1e-3


def test_rotary_angles_are_exact_far_out():
    x = torch.zeros(1, 1, 100_001, 2)
    x[..., 0] = 1.0
    turned = rotate(x)[0, 0, 100_000]
    assert turned[0].item() == pytest.approx(math.cos(100_000), abs=1e-6)
    assert turned[1].item() == pytest.approx(math.sin(100_000), abs=1e-6)


@pytest.mark.parametrize(
    ("n_heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (3, [4, 8, 2]),  # two heads' slopes, then the first of four heads'
        (6, [2, 4, 6, 8, 1, 3]),
    ],
)
def test_alibi_slopes_are_the_papers(n_heads, exponents):
    assert alibi_slopes(n_heads).tolist() == [2.0**-e for e in exponents]


def alibi_by_bias(layer, x, bias_HLL, allowed_HLL):
    """Attention with a dense additive bias: the form of the paper."""
    q, k, v = (
        W(x).unflatten(-1, (layer.n_heads, layer.head_dim)).transpose(1, 2)
        for W in (layer.W_q, layer.W_k, layer.W_v)
    )
    scores = q @ k.transpose(-2, -1) * layer.scale + bias_HLL
    weights = scores.masked_fill(~allowed_HLL, -torch.inf).softmax(-1)
    return layer.W_o((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("make", [Full, FullMap, lambda **k: Windowed(7, **k)])
@pytest.mark.parametrize("n_heads", [1, 4, 3])
def test_causal_alibi_equals_a_dense_bias(make, n_heads):
    layer = make(d_model=12, n_heads=n_heads, positions="alibi").double()
    x = torch.randn(2, 21, 12, dtype=torch.float64)
    distance = torch.arange(21)[:, None] - torch.arange(21)
    bias = -alibi_slopes(n_heads)[:, None, None] * distance
    allowed = (distance >= 0) & (distance < (7 if hasattr(layer, "window") else 99))
    torch.testing.assert_close(
        layer(x), alibi_by_bias(layer, x, bias, allowed[None]), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("make", [Full, FullMap, lambda **k: Windowed(7, **k)])
@pytest.mark.parametrize("n_heads", [2, 4, 3])
def test_bidirectional_alibi_looks_back_with_half_its_heads_and_ahead_with_the_others(
    make, n_heads
):
    layer = make(d_model=12, n_heads=n_heads, positions="alibi", causal=False).double()
    x = torch.randn(2, 21, 12, dtype=torch.float64)
    distance = torch.arange(21)[:, None] - torch.arange(21)
    back = n_heads // 2
    slopes = torch.cat((alibi_slopes(back), alibi_slopes(n_heads - back)))
    bias = -slopes[:, None, None] * distance.abs()
    near = distance.abs() <= (3 if hasattr(layer, "window") else 99)
    allowed = torch.stack([distance >= 0] * back + [distance <= 0] * (n_heads - back)) & near
    torch.testing.assert_close(layer(x), alibi_by_bias(layer, x, bias, allowed), rtol=0, atol=1e-10)
    assert layer.visibility(21).equal(near)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_alibi_holds_at_long_lengths_in_low_precision(dtype, error):
    torch.manual_seed(0)
    layer = Full(d_model=16, n_heads=2, positions="alibi").double()
    x = torch.randn(1, 1500, 16, dtype=torch.float64)
    exact = layer(x)
    assert (layer.to(dtype)(x.to(dtype)).double() - exact).abs().max() < error


def test_alibi_forms_nothing_of_size_length_squared():
    length = 4096
    layer = Windowed(8, d_model=8, n_heads=2, positions="alibi")
    q, k, v = layer.project(torch.randn(1, length, 8))
    assert q.shape == k.shape == (1, 2, length, 5)
    assert v.shape == (1, 2, length, 4)
