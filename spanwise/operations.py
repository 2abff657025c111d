"""Operations: what the work needs at the least, and the floor that gives.

A multiplication and an addition count two. Counted are matrix products: scores and weighted sums
over the pairs that are really seen, 4 * pairs * d_model, and the projections and other linear
maps, 2 * inputs * outputs a position. Softmax, norms and additions are not: what they take shows
as the distance from the floor.

A training step needs 3 times the linear maps (the product, and one for each gradient) and 3.5
times the attention (2 products forward, 5 backward: the scores once more, and a gradient for each
of scores, q, k and v; Dao 2023, FlashAttention-2, arXiv:2307.08691, section 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(NamedTuple):
    """Operations of one forward pass: of attention, and of linear maps."""

    attention: float
    linear: float

    @property
    def forward(self) -> float:
        """Operations of a forward pass."""
        return self.attention + self.linear

    @property
    def train(self) -> float:
        """Operations of a forward and backward pass."""
        return 3.5 * self.attention + 3 * self.linear

    @staticmethod
    def mean(parts: Sequence[Operations | None]) -> Operations | None:
        """Return the mean over the layers of a pattern; None where one is unknown."""
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None
        return Operations(*(sum(column) / len(known) for column in zip(*known, strict=True)))


class Products(TorchDispatchMode):
    """Counts the operations of the matrix products and fused attention that are really done.

    Those of tiles that a kernel fills in vain count too; a fused kernel told to be causal counts
    the half that it does. Not seen: products inside compiled or recurrent kernels.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0.0

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return True: it only looks on, so what is compiled runs compiled, and uncounted."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` and add what it multiplies."""
        given = kwargs or {}
        out = func(*args, **given)
        name = getattr(func, "overloadpacket", func).__name__
        if name in ("mm", "bmm"):
            self.operations += 2 * args[0].numel() * args[1].shape[-1]
        elif name in ("addmm", "baddbmm"):
            self.operations += 2 * args[1].numel() * args[2].shape[-1]
        elif name == "flex_attention":  # uncompiled: every score is formed
            q, k, v = args[:3]
            self.operations += 2 * q[..., 0].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1])
        elif "scaled_dot_product" in name and "backward" not in name:
            q, k, v = args[:3]
            queries, keys = q.shape[-2], k.shape[-2]
            pairs = queries * (keys + 1) / 2 if _causal(func, args, given) else queries * keys
            self.operations += 2 * math.prod(q.shape[:-2]) * pairs * (q.shape[-1] + v.shape[-1])
        return out


def _causal(func: Any, args: Any, given: Any) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    return bool({**dict(zip(names, args, strict=False)), **given}.get("is_causal"))


def of_layer(layer: Any, scope: str, length: int, batch: int) -> Operations | None:
    """Return the operations of a variant's layer, or of its attention alone (scope "op").

    None where the variant does not know them.
    """
    whole = layer.flops(length, batch)
    inside = getattr(layer, "attend_flops", lambda *_: None)(length, batch)
    if whole is None:
        return None
    if inside is None:
        return Operations(0.0, whole)
    return Operations(inside, 0.0 if scope == "op" else whole - inside)


def of_model(model: Any, length: int, batch: int) -> Operations | None:
    """Return the operations of a whole model's forward pass with logits at every position."""
    layers = [of_layer(layer, "layer", length, batch) for layer in model.layers]
    mean = Operations.mean(layers)
    if mean is None:
        return None
    counted = {id(part) for layer in model.layers for part in layer.modules()}
    weights = [
        part.weight
        for part in model.modules()
        if isinstance(part, nn.Linear) and id(part) not in counted
    ]
    if model.head is None:
        weights.append(model.embedding.weight)
    outside = 2.0 * batch * length * sum(weight.numel() for weight in weights)
    n = len(layers)
    return Operations(n * mean.attention, n * mean.linear + outside)
