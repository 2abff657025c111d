"""Torch's fused attention with the rule as a dense mask: the fastest form of short sequences."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from spanwise.attention.dense import dense_mask
from spanwise.attention.expression import Rule, Unsupported
from spanwise.attention.plan import trace_rule

_KEPT_MASKS = 64
_KEPT_BYTES = 4 << 20
_kept: OrderedDict[tuple, _Mask] = OrderedDict()
_lock = Lock()


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sees: Rule | None,
    causal: bool,
    lengths: Tensor | None,
    scale: float,
) -> Tensor:
    """Return attention by one fused call; shapes as rule_attention.

    The mask is L x L, unless the rule (with causality) sees everything: then none is formed.
    """
    length, device = q.shape[2], q.device
    mask = _everything if sees is None else _masks(sees, length, causal, q.dtype, device)
    if lengths is None and mask.complete:
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask.bias, is_causal=mask.bias is None and causal, scale=scale
        )
    seen, valid = mask.seen, None if mask.seen is None else mask.seen.any(-1)[None, None, :, None]
    if lengths is not None:
        real = torch.arange(length, device=device) < lengths[:, None].to(device)
        if not causal:  # causality hides the padding from every query that counts
            keys = (real | (lengths == 0).to(device)[:, None])[:, None, None, :]
            seen = keys if seen is None else seen & keys
            if mask.seen is not None:
                valid = seen.any(-1, keepdim=True)
        real = real[:, None, :, None]
        valid = real if valid is None else valid & real
    if seen is not None and seen.shape[-2] > 1:
        # A query with nothing to see looks at everything, and its output is dropped below.
        seen = seen | ~seen.any(-1, keepdim=True)
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=seen, is_causal=seen is None and causal, scale=scale
    )
    return out if valid is None else out.masked_fill(~valid, 0.0)


@dataclass
class _Mask:
    """seen: (L, L) bool; None where causality alone, or nothing, hides keys. bias: additive form.

    complete: every query sees a key.
    """

    seen: Tensor | None
    bias: Tensor | None
    complete: bool


_everything = _Mask(None, None, True)


def _masks(
    sees: Rule, length: int, causal: bool, dtype: torch.dtype, device: torch.device
) -> _Mask:
    try:
        key = (trace_rule(sees, causal).key, length, causal, dtype, device)
    except Unsupported:
        return _make(sees, length, causal, dtype, device)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    made = _make(sees, length, causal, dtype, device)
    if length * length * dtype.itemsize <= _KEPT_BYTES:
        with _lock:
            _kept[key] = made
            if len(_kept) > _KEPT_MASKS:
                _kept.popitem(last=False)
    return made


def _make(sees: Rule, length: int, causal: bool, dtype: torch.dtype, device: torch.device) -> _Mask:
    seen = dense_mask(sees, length, causal, device)
    if torch.equal(seen, dense_mask(None, length, causal, device)):
        return _everything
    bias = torch.zeros(length, length, dtype=dtype, device=device)
    bias.masked_fill_(~seen, float("-inf"))
    return _Mask(seen, bias, bool(seen.any(-1).all()))
