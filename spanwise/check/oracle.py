"""The oracle: softmax attention written out densely in float64, from a layer's weights and rule.

It shares nothing with the layers' own forward pass but the weights, the rule as an exact mask, and
the slopes. Vaswani et al. 2017, section 3.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spanwise.attention import dense_mask
from spanwise.check.subject import Skipped
from spanwise.positions import alibi_slopes
from variants.interface import AttentionVariant, Variant


def softmax_layer(layer: Variant) -> AttentionVariant:
    """Return the layer if it is softmax attention under a rule; skip the check where it is not."""
    if not isinstance(layer, AttentionVariant):
        raise Skipped("the variant is no attention")
    if not layer.is_softmax:
        raise Skipped("the variant is no softmax attention")
    return layer


def oracle(
    layer: AttentionVariant, x: Tensor, lengths: Tensor | None = None, rule: Any = "its own"
) -> Tensor:
    """Return what the layer must output, (B, L, d_model), for x (B, L, d_model)."""
    batch, length, _ = x.shape
    heads, shared = layer.n_heads, layer.n_heads // layer.kv_heads
    q = torch.einsum("blm,hdm->bhld", x, layer.W_q.weight.unflatten(0, (heads, -1)))
    k, v = (
        torch.einsum("blm,hdm->bhld", x, W.weight.unflatten(0, (layer.kv_heads, -1)))[
            :, torch.arange(heads) // shared
        ]
        for W in (layer.W_k, layer.W_v)
    )
    if layer.positions == "rotary":
        q, k = _turned(q), _turned(k)
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * layer.scale
    place = torch.arange(length)
    distance = place[:, None] - place
    seen = dense_mask(layer.rule if rule == "its own" else rule, length, False)
    seen = seen.expand(batch, heads, length, length).clone()
    if layer.causal:
        seen &= distance >= 0
    if layer.positions == "alibi":
        scores = scores + _alibi(layer, distance, seen)
    if lengths is not None:
        valid = place < lengths[:, None]
        seen &= valid[:, None, None, :] & valid[:, None, :, None]
    peak = scores.detach().masked_fill(~seen, -torch.inf).amax(-1, keepdim=True)
    weights = torch.where(seen, scores - peak.clamp_min(-1e300), -torch.inf).exp()
    total = weights.sum(-1, keepdim=True)
    out = (weights / total.where(total > 0, 1)) @ v
    return torch.einsum("bhld,mhd->blm", out, layer.W_o.weight.unflatten(1, (heads, -1)))


def _turned(x: Tensor) -> Tensor:
    """Rotary positions as a product of complex numbers (Su et al. 2021, section 3.4.2)."""
    length, width = x.shape[-2:]
    rates = 10000.0 ** (-torch.arange(0, width, 2).double() / width)
    angles = torch.arange(length)[:, None] * rates
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def _alibi(layer: AttentionVariant, distance: Tensor, seen: Tensor) -> Tensor:
    """The dense bias; without causality half of the heads look back and half ahead."""
    if layer.causal:
        return -alibi_slopes(layer.n_heads)[:, None, None] * distance
    back = layer.n_heads // 2
    seen[:, :back] &= distance >= 0
    seen[:, back:] &= distance <= 0
    slopes = torch.cat((alibi_slopes(back), alibi_slopes(layer.n_heads - back)))
    return -slopes[:, None, None] * distance.abs()
