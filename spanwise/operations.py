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

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn


class Operations(NamedTuple):
    """Operations of one forward pass. ``computed``: of the attention's tiles, if a plan knows."""

    attention: float
    linear: float
    computed: float | None = None

    @property
    def forward(self) -> float:
        """Operations of a forward pass."""
        return self.attention + self.linear

    @property
    def train(self) -> float:
        """Operations of a forward and backward pass."""
        return 3.5 * self.attention + 3 * self.linear

    @property
    def forward_computed(self) -> float | None:
        """Operations really done in a forward pass; None where no plan tells."""
        return None if self.computed is None else self.computed + self.linear

    @staticmethod
    def mean(parts: Sequence[Operations | None]) -> Operations | None:
        """Return the mean over the layers of a pattern; None where one is unknown."""
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None
        computed = [part.computed for part in known if part.computed is not None]
        return Operations(
            sum(part.attention for part in known) / len(known),
            sum(part.linear for part in known) / len(known),
            sum(computed) / len(known) if len(computed) == len(known) else None,
        )


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
    return Operations(
        n * mean.attention,
        n * mean.linear + outside,
        None if mean.computed is None else n * mean.computed,
    )
