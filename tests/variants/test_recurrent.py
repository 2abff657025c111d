"""The recurrent variants against torch's recurrence run one sequence at a time."""

from __future__ import annotations

import pytest
import torch

from spanwise.model import build_layer, n_params
from variants.full import Full
from variants.gru import GRU
from variants.lstm import LSTM

RECURRENT = [GRU, LSTM]


def layer_of(variant, causal, d_model=16, **own):
    return build_layer(
        lambda **keywords: variant(**own, **keywords), seed=1, d_model=d_model, causal=causal
    ).double()


@pytest.mark.parametrize("variant", RECURRENT)
@pytest.mark.parametrize("causal", [True, False])
def test_padded_batch_equals_each_sequence_alone(variant, causal):
    layer = layer_of(variant, causal)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 9, 16, dtype=torch.float64, generator=generator)
    lengths = torch.tensor([9, 4, 1, 0])
    spoiled = x.clone()
    for row, length in enumerate(lengths):
        spoiled[row, length:] = float("nan")
    out = layer(spoiled, lengths)
    for row, length in enumerate(lengths.tolist()):
        if length:
            alone, _ = layer.recurrence(x[row : row + 1, :length])
            torch.testing.assert_close(out[row, :length], layer.W_o(alone)[0])
        assert (out[row, length:] == 0).all()


@pytest.mark.parametrize("variant", RECURRENT)
def test_state_reaches_back_and_never_ahead(variant):
    x = torch.randn(1, 12, 16, dtype=torch.float64, requires_grad=True)
    for causal, seen in ((True, 6), (False, 12)):
        (gradient,) = torch.autograd.grad(layer_of(variant, causal)(x)[0, 5].sum(), x)
        assert gradient[0].abs().sum(-1).nonzero().flatten().tolist() == list(range(seen))


@pytest.mark.parametrize("variant", RECURRENT)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("d_model", [32, 64, 128])
def test_default_state_gives_the_parameters_of_attention(variant, causal, d_model):
    attention = n_params(build_layer(Full, d_model=d_model, n_heads=1))
    found = n_params(layer_of(variant, causal, d_model))
    assert attention == 4 * d_model**2
    assert found == pytest.approx(attention, rel=0.04)


def test_gru_follows_its_equations():
    """h' = (1 - z) n + z h with torch's gate order r, z, n, written out by hand."""
    layer = layer_of(GRU, True, d_model=3, state=2)
    x = torch.randn(1, 4, 3, dtype=torch.float64)
    w_i, w_h, b_i, b_h = (p.detach() for p in layer.recurrence.parameters())
    h = torch.zeros(2, dtype=torch.float64)
    for t in range(4):
        i, r_h = w_i @ x[0, t] + b_i, w_h @ h + b_h
        r, z = torch.sigmoid(i[:2] + r_h[:2]), torch.sigmoid(i[2:4] + r_h[2:4])
        n = torch.tanh(i[4:] + r * r_h[4:])
        h = (1 - z) * n + z * h
        torch.testing.assert_close(layer(x)[0, t], layer.W_o(h))


@pytest.mark.parametrize("variant", RECURRENT)
def test_bad_state_is_named(variant):
    with pytest.raises(ValueError, match="state: found 0"):
        variant(state=0, d_model=8)
    with pytest.raises(ValueError, match="positions: found 'rotary'"):
        variant(d_model=8, positions="rotary")
