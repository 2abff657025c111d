"""Chunked attention: the sequence is cut into windows that do not see one another."""

from __future__ import annotations

from typing import Any

from variants.interface import RuleAttention, whole


class Chunked(RuleAttention):
    """Each query sees the keys of its own chunk of ``window`` consecutive positions."""

    label = "Chunked"
    colour = "#56B4E9"
    paper = "Child et al. 2019 (Sparse Transformers, fixed), arXiv:1904.10509"

    def __init__(self, window: int, **attention: Any):
        super().__init__(**attention)
        self.window = whole("window", window)

    def sees(self, q: Any, k: Any) -> Any:
        """Return whether q and k fall in the same chunk."""
        return q // self.window == k // self.window
