"""Full attention, fused: every query sees every key, and no score map is kept."""

from __future__ import annotations

from typing import Any

from variants.interface import RuleAttention


class Full(RuleAttention):
    """softmax(q K^T / sqrt(d_k)) V by a fused kernel (Dao et al. 2022, FlashAttention)."""

    label = "Full"
    colour = "#0072B2"
    paper = "Vaswani et al. 2017, arXiv:1706.03762"

    @property
    def rule(self) -> Any:
        """Return None: no restriction."""
        return None
