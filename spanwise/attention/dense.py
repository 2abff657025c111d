"""The oracle: attention with the whole L x L score map formed. Every other kernel is held to it."""

from __future__ import annotations

import torch
from torch import Tensor

from spanwise.attention.defined import check_defined
from spanwise.attention.expression import Rule, Unsupported, trace
from spanwise.attention.given import check_rule, whole
from spanwise.attention.pairwise import on_tensors


def dense_mask(
    sees: Rule | None, length: int, causal: bool, device: torch.device | str = "cpu"
) -> Tensor:
    """Return the rule as a bool tensor (length, length): row = query, column = key.

    sees: a rule on positions, called with int64 tensors of shapes (length, 1) and (1, length);
    None sees everything. causal: drop keys after the query as well. Raises ConfigError for a
    length below 1, and for a rule that has no truth value for some pair.
    """
    check_rule(sees, causal)
    length = whole("length", length)
    position = torch.arange(length, device=device)
    q, k = position[:, None], position[None, :]
    if sees is None:
        seen = torch.ones(length, length, dtype=torch.bool, device=device)
    else:
        seen = on_tensors(sees, q, k, _why_untraceable(sees, length))
    return seen & (k <= q) if causal else seen.clone()


def _why_untraceable(sees: Rule, length: int) -> Unsupported | None:
    """Return None for a rule that can be traced, and that is then defined for every pair."""
    try:
        check_defined(trace(sees), length)
    except Unsupported as reason:
        return reason
    return None


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sees: Rule | None,
    causal: bool,
    lengths: Tensor | None,
    scale: float,
) -> Tensor:
    """Attention by the textbook: scores, mask, softmax, weighted sum. Shapes as rule_attention."""
    length = q.shape[2]
    seen = dense_mask(sees, length, causal, q.device)[None, None]
    if lengths is not None:
        valid = torch.arange(length, device=q.device) < lengths[:, None]
        seen = seen & valid[:, None, None, :] & valid[:, None, :, None]
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(wide) * scale) @ k.to(wide).transpose(-2, -1)
    # A row that sees nothing would be a softmax over nothing (NaN): give it scores, then take
    # its weights away.
    empty = ~seen.any(-1, keepdim=True)
    scores = scores.masked_fill(~seen, float("-inf")).masked_fill(empty, 0.0)
    weights = scores.softmax(-1).masked_fill(~seen, 0.0)
    return (weights @ v.to(wide)).to(v.dtype)
