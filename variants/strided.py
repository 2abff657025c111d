"""Strided attention: a local window, and every ``window``-th position before it.

With w the window, positions are written as (block, place in the block), N blocks of w places.
What is local to a query lies in its own block and its neighbours; what is strided lies at its own
place in the other blocks. Both are small dense products, L * (w + L / w) scores in all.

Shape suffixes: B batch, H heads, N blocks, W places in a block, K keys of the local part, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from variants.windowed import Windowed


class Strided(Windowed):
    """Each query sees a window of ``window`` keys, and the keys a multiple of ``window`` away.

    With a window near sqrt(L), two layers join any two positions at a cost of L * sqrt(L).
    """

    label = "Strided"
    colour = "#999933"
    paper = "Child et al. 2019 (Sparse Transformers, strided), arXiv:1904.10509"
    two_sided_alibi = False

    def sees(self, q: Any, k: Any) -> Any:
        """Return whether k is within q's window, or a multiple of ``window`` away."""
        return super().sees(q, k) | (q % self.window == k % self.window)

    def beyond_window(self, q: Any, k: Any) -> Any:
        """Return whether k is another key a multiple of ``window`` away."""
        return (q != k) & (q % self.window == k % self.window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        """Return softmax attention (B, H, L, D) over the local and the strided keys at once."""
        batch, _, length, _ = q.shape
        width = self.window
        q, k, v = (
            F.pad(x, (0, 0, 0, -length % width)).unflatten(2, (-1, width)) for x in (q, k, v)
        )
        place = torch.arange(q.shape[2] * width, device=q.device).unflatten(0, (-1, width))
        ends = torch.full((batch,), length, device=q.device) if lengths is None else lengths
        sides = (1, 0) if self.causal else (1, 1)

        near_NK = _neighbours(place[None, None, ..., None], sides, fill=-1)[0, 0, ..., 0]
        away = place[:, :, None] - near_NK[:, None]
        seen_local = (away <= self.before) & (-away <= (0 if self.causal else self.after))
        valid_local = (near_NK >= 0) & (near_NK < ends[:, None, None])
        seen_BNWK = seen_local & valid_local[:, :, None]
        local_BHNWK = q @ _neighbours(k, sides).transpose(-2, -1)

        blocks = torch.arange(q.shape[2], device=q.device)
        other = blocks[:, None] > blocks if self.causal else blocks[:, None] != blocks
        seen_BNWN = other[:, None] & (ends[:, None, None] > place.T)[:, None]
        strided_BHNWN = torch.einsum("bhnwd,bhmwd->bhnwm", q, k)

        seen = torch.cat((seen_BNWK, seen_BNWN), dim=-1)[:, None]
        seen = seen & (place < ends[:, None, None])[:, None, ..., None]
        scores = torch.cat((local_BHNWK, strided_BHNWN), dim=-1) * self.scale
        # The lowest number, not -inf: a row that sees nothing would turn to NaN.
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
        weights = weights.masked_fill(~seen, 0)
        local, strided = weights.split((near_NK.shape[-1], len(blocks)), dim=-1)
        out = local @ _neighbours(v, sides) + torch.einsum("bhnwm,bhmwd->bhnwd", strided, v)
        return out.flatten(2, 3)[:, :, :length]


def _neighbours(x_BHNWD: Tensor, sides: tuple[int, int], fill: int = 0) -> Tensor:
    """Return each block with those beside it: (B, H, N, K, D), ``fill`` past the ends."""
    before, after = sides
    n = x_BHNWD.shape[2]
    wide = F.pad(x_BHNWD, (0, 0, 0, 0, before, after), value=fill)
    return torch.cat([wide[:, :, i : i + n] for i in range(before + after + 1)], dim=3)
