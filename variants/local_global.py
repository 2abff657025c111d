"""Local plus global attention: a sliding window, and leading tokens open to everyone."""

from __future__ import annotations

from typing import Any

from variants.interface import whole
from variants.windowed import Windowed


class LocalGlobal(Windowed):
    """A window of ``window`` keys; the first ``global_tokens`` positions see all and are seen.

    Under causality a global token sees what came before it, and everyone after it sees it.
    """

    label = "Local + global"
    colour = "#009E73"
    paper = "Beltagy et al. 2020 (Longformer), arXiv:2004.05150"

    def __init__(self, window: int, global_tokens: int, **attention: Any):
        super().__init__(window, **attention)
        self.global_tokens = whole("global_tokens", global_tokens, least=0)

    def sees(self, q: Any, k: Any) -> Any:
        """Return whether k is within q's window, or one of the two is global."""
        return super().sees(q, k) | self.beyond_window(q, k)

    def beyond_window(self, q: Any, k: Any) -> Any:
        """Return whether q or k is a global token."""
        return (k < self.global_tokens) | (q < self.global_tokens)
