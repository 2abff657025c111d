"""Sliding-window attention: each query sees the keys nearest to it."""

from __future__ import annotations

from typing import Any

from variants.interface import RuleAttention, whole


class Windowed(RuleAttention):
    """Each query sees ``window`` keys, itself included.

    Causal: the ``window`` keys that end at the query. Bidirectional: (window-1)//2 keys before it
    and window//2 after.
    """

    label = "Windowed"
    colour = "#E69F00"
    paper = "Beltagy et al. 2020 (Longformer), arXiv:2004.05150"

    def __init__(self, window: int, **attention: Any):
        super().__init__(**attention)
        self.window = whole("window", window)
        self.before = window - 1 if self.causal else (window - 1) // 2
        self.after = window // 2

    def sees(self, q: Any, k: Any) -> Any:
        """Return whether k is within the window around q."""
        return (q - k <= self.before) & (k - q <= self.after)
