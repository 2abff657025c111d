"""Attention sinks: a sliding window, and the first tokens, which every query sees."""

from __future__ import annotations

from typing import Any

from variants.interface import whole
from variants.windowed import Windowed


class Sinks(Windowed):
    """A window of ``window`` keys, and the first ``sinks`` positions besides.

    Unlike global tokens, a sink itself sees only its own window: what is kept for decoding is
    ``window`` + ``sinks`` entries, whatever the length.
    """

    label = "Window + sinks"
    colour = "#117733"
    paper = "Xiao et al. 2023 (StreamingLLM), arXiv:2309.17453"

    def __init__(self, window: int, sinks: int, **attention: Any):
        super().__init__(window, **attention)
        self.sinks = whole("sinks", sinks, least=0)

    def sees(self, q: Any, k: Any) -> Any:
        """Return whether k is within q's window, or a sink."""
        return super().sees(q, k) | self.beyond_window(q, k)

    def beyond_window(self, q: Any, k: Any) -> Any:
        """Return whether k is a sink."""
        return k < self.sinks
