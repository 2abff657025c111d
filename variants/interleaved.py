"""Interleaved layers: local ones, with a full layer every n-th."""

from __future__ import annotations

from typing import Any

from variants.interface import whole
from variants.stack import Stack, as_factory


class Interleaved(Stack):
    """Layers of ``local``, and each ``every``-th layer is ``full``: the stack as local + global.

    ``local`` and ``full`` are any variants. ``window``, where set, goes to ``local``.
    """

    label = "Interleaved"
    colour = "#D55E00"
    paper = "Gemma Team 2024 (Gemma 2), arXiv:2408.00118"

    def __init__(self, local: Any, full: Any, every: int = 2, window: int | None = None):
        self.every = whole("every", every)
        self.window = window
        inner = as_factory(local)
        if window is not None:
            if "window" not in getattr(inner, "keywords", {}):
                raise ValueError(f"window: found {window!r}, but local takes none; allowed: null")
            inner.keywords["window"] = whole("window", window)
        super().__init__([inner] * (self.every - 1) + [full])
