"""Full attention as in the textbook: the L x L score map is really formed."""

from __future__ import annotations

from torch import Tensor

from variants.interface import AttentionVariant


class FullMap(AttentionVariant):
    """softmax(q K^T / sqrt(d_k)) V, one step a line (Vaswani et al. 2017, section 3.2.1).

    Its memory grows with the square of the length, forward and backward.
    """

    label = "Full, score map"
    colour = "#CC79A7"
    paper = "Vaswani et al. 2017, arXiv:1706.03762"
    two_sided_alibi = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the outputs (B, H, L, D): score, normalise, weight."""
        return self.weights(q, k, lengths) @ v
