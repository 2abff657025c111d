"""Block-sparse exact attention in eager torch: only the tiles of the plan are computed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from spanwise.attention.plan import Plan


def blocks_attention(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, lengths: Tensor | None, scale: float
) -> Tensor:
    """Attention over the plan's tiles, query blocks with equally many key blocks together."""
    tile, length = plan.tile, plan.length
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=v.dtype, device=q.device)
    rows, starts, counts = np.unique(plan.rows, return_index=True, return_counts=True)
    inside = torch.arange(tile)
    pieces, places = [], []
    for count in np.unique(counts):
        at = starts[counts == count][:, None] + np.arange(count)
        some = torch.from_numpy(plan.pattern[at])
        seen = torch.ones(*some.shape, tile, tile, dtype=torch.bool)
        seen[some >= 0] = plan.masks(some[some >= 0].numpy())
        seen = seen.transpose(1, 2).flatten(2)
        q_at = torch.from_numpy(rows[counts == count])[:, None] * tile + inside
        k_at = (torch.from_numpy(plan.cols[at])[:, :, None] * tile + inside).flatten(1)
        real = (q_at < length).flatten()
        q_at, k_at = q_at.clamp(max=length - 1), k_at.clamp(max=length - 1)
        seen = seen[None]
        if lengths is not None:
            seen = seen & (k_at < lengths[:, None, None])[:, :, None, :]
        empty = ~seen.any(-1, keepdim=True)
        bias = torch.zeros(seen.shape, dtype=wide).masked_fill_(~seen & ~empty, float("-inf"))
        group = [x[:, :, i].to(wide).transpose(1, 2) for x, i in ((q, q_at), (k, k_at), (v, k_at))]
        got = scaled_dot_product_attention(
            group[0].flatten(0, 1),
            group[1].flatten(0, 1),
            group[2].flatten(0, 1),
            attn_mask=bias.expand(q.shape[0], *bias.shape[1:]).flatten(0, 1)[:, None],
            scale=scale,
        )
        got = got.unflatten(0, (q.shape[0], -1)).masked_fill(empty[:, :, None], 0.0)
        pieces.append(got.transpose(1, 2).flatten(2, 3)[:, :, real].to(v.dtype))
        places.append(q_at.flatten()[real])
    if pieces:
        out = out.index_copy(2, torch.cat(places), torch.cat(pieces, 2))
    else:
        out = out + 0 * (q.sum() + k.sum() + v.sum()).to(v.dtype)
    if lengths is not None:
        valid = torch.arange(length) < lengths[:, None]
        out = out * valid[:, None, :, None]
    return out
