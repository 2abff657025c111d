"""BigBird: a sliding window, global tokens, and random blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spanwise.attention import lookup
from spanwise.seeds import torch_generator
from variants.interface import whole
from variants.local_global import LocalGlobal

BLOCKS = 2**15
"""Blocks of queries for which random ones are drawn: a million positions in blocks of 32."""


class BigBird(LocalGlobal):
    """Local + global, and for each block of ``block`` queries ``random_blocks`` random key blocks.

    A block draws among those before it, from a stream of its own (``random_seed``): the same at
    every length, call and process. Without causality the blocks drawn see it, too. The same block
    may be drawn twice, and may lie within the window.
    """

    label = "BigBird"
    colour = "#AA4499"
    paper = "Zaheer et al. 2020, arXiv:2007.14062"
    check_parameters = {"global_tokens": 2, "block": 3}  # noqa: RUF012

    def __init__(
        self,
        window: int,
        global_tokens: int,
        random_blocks: int,
        block: int,
        random_seed: int = 0,
        **attention: Any,
    ):
        super().__init__(window, global_tokens, **attention)
        self.random_blocks = whole("random_blocks", random_blocks, least=0)
        self.block = whole("block", block)
        self.random_seed = whole("random_seed", random_seed, least=0)
        generator = torch_generator(self.random_seed, "bigbird")
        shares = torch.rand(BLOCKS, self.random_blocks, dtype=torch.float64, generator=generator)
        earlier = torch.arange(BLOCKS)[:, None]
        self._drawn = [column.contiguous() for column in (shares * earlier).long().T]

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return y (B, L, d_model) from x (B, L, d_model)."""
        if x.shape[1] > BLOCKS * self.block:
            raise ValueError(
                f"block: found {self.block} for {x.shape[1]} positions; allowed: at least "
                f"{-(-x.shape[1] // BLOCKS)}, as random blocks are drawn for {BLOCKS} blocks"
            )
        return super().forward(x, lengths)

    def beyond_window(self, q: Any, k: Any) -> Any:
        """Return whether q or k is a global token, or k lies in a block that q's block drew."""
        seen = super().beyond_window(q, k)
        q_block, k_block = q // self.block, k // self.block
        for drawn in self._drawn:
            seen = seen | (k_block == lookup(drawn, q_block))
            if not self.causal:
                seen = seen | (q_block == lookup(drawn, k_block))
        return seen
