"""The one entry: a rule and q, k, v in, exact attention out, by the kernel that suits."""

from __future__ import annotations

import contextlib
import math
from numbers import Real

import torch
from torch import Tensor

from spanwise.attention.blocks import blocks_attention
from spanwise.attention.choice import choose
from spanwise.attention.dense import dense_attention
from spanwise.attention.expression import Rule, Unsupported, trace
from spanwise.attention.flex import flex_attention
from spanwise.attention.fused import fused_attention
from spanwise.attention.given import check_rule
from spanwise.attention.mixed import autocast_is_on, autocast_off, cast
from spanwise.errors import ConfigError, nearest

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KERNELS = ("auto", "dense", "fused", "blocks", "flex")


def rule_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sees: Rule | None,
    causal: bool = True,
    lengths: Tensor | None = None,
    scale: float | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Return softmax(q k^T scale) v over the pairs that ``sees`` lets through: (B, H, L, Dv).

    q, k: (B, H, L, D); v: (B, H, L, Dv). sees: a rule on positions, for instance
    ``lambda q, k: q - k < 32``; None sees everything. causal: drop keys after the query.
    lengths: (B,) int64 valid lengths; keys at or past them are never seen and outputs there are
    0. scale: 1/sqrt(D) unless given. A query that may see no key outputs exactly 0 and passes no
    gradient. kernel: "dense" (the whole map, the oracle), "fused" (torch's own with a dense mask),
    "blocks" (CPU, trains, memory linear in what is seen), "flex" (CUDA; compiled), "auto" (the
    fastest exact one here). What is hidden counts for nothing as long as it is finite: NaN and
    infinity spread from padding and later keys too, since they are multiplied with a weight of 0.
    Under torch.autocast inputs are cast and the output is of autocast's type in every kernel, as
    torch's scaled_dot_product_attention has it: float64 stays as it is.

    Raises ConfigError (a ValueError) where shapes, types or names do not fit, and where the rule
    has no truth value for some pair of positions.
    """
    check_rule(sees, causal)
    if scale is not None and not (isinstance(scale, Real) and math.isfinite(scale)):
        raise ConfigError(f"scale must be a finite number or None, got {scale!r}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ConfigError(f"{name} must be a tensor (B, H, L, D), got {type(x).__name__}")
    if autocast_is_on(q.device.type):
        with autocast_off(q.device.type):
            return rule_attention(*cast(q, k, v), sees, causal, lengths, scale, kernel)
    _check(q, k, v, lengths, kernel)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if scale <= 0:  # torch's causal form multiplies the -inf of what is hidden by the scale
        q, scale = (-q, -scale) if scale else (q * 0.0, 1.0)
    if lengths is not None:
        lengths = lengths.to(q.device)
    if 0 in q.shape[:2]:  # no entry or no head: nothing to compute, but gradients to pass
        return v + (q.sum() + k.sum())
    if kernel == "auto":
        kernel, sees = fastest(q, k, v, sees, causal)
    if kernel == "dense":
        return dense_attention(q, k, v, sees, causal, lengths, scale)
    if kernel == "fused":
        return fused_attention(q, k, v, sees, causal, lengths, scale)
    if kernel == "flex":
        return flex_attention(q, k, v, sees, causal, lengths, scale)
    if q.device.type != "cpu":
        raise ConfigError(
            f"kernel='blocks' runs on the CPU, not on {q.device}; use 'flex' or 'auto'"
        )
    choice = choose(sees, q.shape[2], causal, q.shape[0] * q.shape[1], q.shape[3])
    return blocks_attention(q, k, v, (choice.forward, choice.backward), lengths, scale)


def fastest(
    q: Tensor, k: Tensor, v: Tensor, sees: Rule | None, causal: bool
) -> tuple[str, Rule | None]:
    """Return what "auto" takes: a kernel and the rule to give it, None where it hides nothing."""
    length = q.shape[2]
    if sees is None:
        return "fused", None
    if q.device.type != "cpu":
        return ("flex" if q.device.type == "cuda" and length >= 128 else "fused"), sees
    with contextlib.suppress(Unsupported):  # recorded once for all that follows
        sees = trace(sees)
    choice = choose(sees, length, causal, q.shape[0] * q.shape[1], q.shape[3])
    if choice.forward.pairs_seen == (length * (length + 1) // 2 if causal else length**2):
        return "fused", None
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    whole = choice.whole_train if trains else choice.whole_forward
    return ("fused" if whole else "blocks"), sees


def _check(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, kernel: str) -> None:
    if kernel not in KERNELS:
        raise ConfigError(
            f"kernel={kernel!r} is not one of {', '.join(KERNELS)}.{nearest(kernel, KERNELS)}"
        )
    if q.dim() != 4 or q.shape != k.shape or v.dim() != 4 or v.shape[:3] != q.shape[:3]:
        raise ConfigError(
            "rule_attention needs q, k of one shape (B, H, L, D) and v (B, H, L, Dv), got "
            f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if 0 in q.shape[2:] or not (q.is_floating_point() and v.is_floating_point()):
        raise ConfigError(
            "q, k and v must be of floating point, with at least one position and one dimension, "
            f"got {q.dtype} and {v.dtype} of {tuple(q.shape)}"
        )
    if {q.dtype, k.dtype, v.dtype} - {q.dtype} or q.dtype not in TYPES:
        raise ConfigError(
            f"q, k and v must be of one type, of {', '.join(str(one) for one in TYPES)}; got "
            f"{q.dtype}, {k.dtype} and {v.dtype}"
        )
    if any(x.layout != torch.strided for x in (q, k, v)):
        raise ConfigError(
            f"q, k and v must be dense tensors, got {q.layout}, {k.layout}, {v.layout}"
        )
    if lengths is not None and not isinstance(lengths, Tensor):
        raise ConfigError(f"lengths must be an int64 tensor, got {type(lengths).__name__}")
    if lengths is not None and (
        lengths.shape != (q.shape[0],) or lengths.dtype not in (torch.int64, torch.int32)
    ):
        raise ConfigError(
            f"lengths must be int64 of shape ({q.shape[0]},), got {lengths.dtype} of "
            f"{tuple(lengths.shape)}"
        )
    # On another device looking would wait for it.
    if (
        lengths is not None
        and lengths.device.type == "cpu"
        and bool((lengths < 0).any() or (lengths > q.shape[2]).any())
    ):
        raise ConfigError(f"lengths must be from 0 to {q.shape[2]}, got {lengths.tolist()}")
