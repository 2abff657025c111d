"""What the scale of the scores does to the softmax: the case for dividing by sqrt(d_k).

Shape suffixes: R rows (queries), K keys, D head_dim.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch

from spanwise.arguments import AtLeast
from spanwise.errors import ConfigError
from spanwise.model import build_layer
from spanwise.probes import Found, Subject
from spanwise.seeds import torch_generator

SATURATED = 0.99
"""A row whose largest weight is above this counts as saturated."""


def scores(
    subject: Subject,
    *,
    keys: Annotated[int, AtLeast(2)] = 64,
    rows: Annotated[int, AtLeast(1)] = 4096,
) -> Found:
    """Measure the variant's softmax on standard normal queries, keys and values.

    keys: keys a query sees. rows: queries, to the next multiple of ``keys``. The gradients are of
    a random linear function of the outputs, scaled so that what reaches each weight has variance
    1; they are given as the median over rows of their norm (the mean is ruled by a few rows).

    Columns: score_variance (after the scale), entropy (nats), entropy_share (of the largest
    possible), largest_weight, saturated_share, gradient_scores, gradient_q, gradient_k.
    """
    keywords = {k: v for k, v in subject.keywords.items() if k in _LAYER} | {"causal": False}
    layer: Any = build_layer(subject.factory, **keywords).double()
    if not hasattr(layer, "weights"):
        raise ConfigError(
            f"probes.scores: {layer.describe()} has no softmax over keys; allowed: attention"
        )
    generator = torch_generator(int(subject.config["seed"]), "probe", "scores")
    shape = (-(-rows // keys), 1, keys, layer.head_dim)
    q, k, v, outward = (
        torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(4)
    )
    q.requires_grad_()
    k.requires_grad_()
    weights_RK = layer.weights(q, k).detach().flatten(0, 2)
    out = layer.attend(q, k, v, None)
    outward = outward / math.sqrt(layer.head_dim)
    gradient_q, gradient_k = torch.autograd.grad((out * outward).sum(), (q, k))
    # The softmax's own derivative, from what reaches each weight.
    reaching_RK = (outward @ v.transpose(-2, -1)).flatten(0, 2)
    gradient_RK = weights_RK * (reaching_RK - (weights_RK * reaching_RK).sum(-1, keepdim=True))
    with torch.no_grad():
        score_RK = (q @ k.transpose(-2, -1) * layer.scale).flatten(0, 2)
    entropy = float(torch.special.entr(weights_RK).sum(-1).mean())
    largest_R = weights_RK.max(-1).values
    return Found(
        {
            "d_k": layer.head_dim,
            "score_variance": float(score_RK.var()),
            "entropy": entropy,
            "entropy_share": entropy / math.log(keys),
            "largest_weight": float(largest_R.mean()),
            "saturated_share": float((largest_R > SATURATED).double().mean()),
            "gradient_scores": _median_norm(gradient_RK),
            "gradient_q": _median_norm(gradient_q),
            "gradient_k": _median_norm(gradient_k),
        }
    )


_LAYER = ("d_model", "n_heads", "positions", "scale", "kv_heads")


def _median_norm(gradient: torch.Tensor) -> float:
    return float(gradient.norm(dim=-1).median())
