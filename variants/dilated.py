"""Dilated attention: a sliding window with gaps.

Tiles of neighbouring positions gain nothing from such a rule, so positions are taken apart by
their residue modulo the dilation: within one residue the gaps are gone, and what is left is a
plain window over a sequence ``dilation`` times shorter.

Shape suffixes: B batch, H heads, L sequence length, R residues, N positions of a residue, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spanwise.attention import rule_attention
from variants.interface import whole
from variants.windowed import Windowed


class Dilated(Windowed):
    """Each query sees ``window`` keys that lie ``dilation`` apart, itself included."""

    label = "Dilated"
    colour = "#332288"
    paper = "Beltagy et al. 2020 (Longformer, dilated), arXiv:2004.05150"
    two_sided_alibi = False

    def __init__(self, window: int, dilation: int, **attention: Any):
        super().__init__(window, **attention)
        self.dilation = whole("dilation", dilation)

    def sees(self, q: Any, k: Any) -> Any:
        """Return whether k is one of the window's positions, ``dilation`` apart."""
        near = (q - k <= self.before * self.dilation) & (k - q <= self.after * self.dilation)
        return near & (q % self.dilation == k % self.dilation)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        """Return softmax attention (B, H, L, D): a plain window within each residue."""
        batch, length, residues = q.shape[0], q.shape[2], self.dilation
        ends = torch.full((batch,), length, device=q.device) if lengths is None else lengths
        first = torch.arange(residues, device=q.device)
        # A residue's own length: how many of its positions come before the sequence's end.
        own_BR = ((ends[:, None] - first + residues - 1) // residues).clamp_min(0)
        out = rule_attention(
            self._apart(q),
            self._apart(k),
            self._apart(v),
            super().sees,
            causal=self.causal,
            lengths=own_BR.flatten(),
            scale=self.scale,
        )
        out_BRHND = out.unflatten(0, (batch, residues))
        return out_BRHND.permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, :length]

    def _apart(self, x_BHLD: Tensor) -> Tensor:
        more = -x_BHLD.shape[2] % self.dilation
        x_BHNRD = F.pad(x_BHLD, (0, 0, 0, more)).unflatten(2, (-1, self.dilation))
        return x_BHNRD.permute(0, 3, 1, 2, 4).flatten(0, 1)
