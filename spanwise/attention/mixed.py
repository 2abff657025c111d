"""Autocast: every kernel does with it what torch's scaled_dot_product_attention does.

That one casts its inputs to autocast's type, float64 excepted, and answers in it; inside, the
products and sums are the kernel's own business and no longer autocast's.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor


def autocast_is_on(kind: str) -> bool:
    """Return whether autocast is on for devices of this kind."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def cast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs of attention as autocast wants them where it is on."""
    dtype = torch.get_autocast_dtype(q.device.type)

    def one(x: Tensor) -> Tensor:
        return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x

    return one(q), one(k), one(v)


def autocast_off(kind: str) -> contextlib.AbstractContextManager:
    """Return a context without autocast on devices of this kind."""
    if autocast_is_on(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()
