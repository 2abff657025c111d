"""A rule run on tensors of positions: its answer checked, its failure told in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from spanwise.attention.expression import Branch, Rule, Unsupported
from spanwise.errors import ConfigError, one_line


def on_tensors(sees: Rule, q: Tensor, k: Tensor, reason: Unsupported | None) -> Tensor:
    """Return the rule's truth values at every pair of ``q`` and ``k``, which broadcast: bool.

    reason: why the rule cannot be traced, None where it can. Raises ConfigError where the rule
    fails on tensors too, or answers anything but truth values.
    """
    try:
        seen: Any = sees(q, k)
    except ConfigError:
        raise
    except Exception as error:
        short = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in str(error)
        if reason is None or short:
            raise
        raise ConfigError(f"rule {name_of(sees)}: {_failure(error, reason)}") from error
    if isinstance(seen, bool) and isinstance(reason, Branch):
        # `k in {0, 5}` asks a tensor for its hash: the answer is one False for all pairs.
        raise ConfigError(f"rule {name_of(sees)}: {reason}")
    if isinstance(seen, bool | np.bool_ | np.ndarray):
        seen = torch.as_tensor(seen, device=q.device)
    if not isinstance(seen, Tensor) or seen.dtype != torch.bool:
        found = f"a tensor of {seen.dtype}" if isinstance(seen, Tensor) else type(seen).__name__
        raise ConfigError(f"rule {name_of(sees)} must return truth values, got {found}")
    shape = torch.broadcast_shapes(q.shape, k.shape)
    try:
        return seen.expand(shape)
    except RuntimeError:
        raise ConfigError(
            f"rule {name_of(sees)} must return one truth value for every pair, for positions "
            f"{tuple(q.shape)} and {tuple(k.shape)} it returned {tuple(seen.shape)}"
        ) from None


def name_of(sees: Any) -> str:
    """Return where the rule was written: its module and name."""
    return f"{getattr(sees, '__module__', '?')}.{getattr(sees, '__qualname__', repr(sees))}"


def _failure(error: Exception, reason: Unsupported) -> str:
    if isinstance(reason, Branch):
        return str(reason)
    said = one_line(f"{type(error).__name__}: {error}")
    if said == one_line(str(reason)):
        return said
    return f"{reason}; and evaluated pair by pair it fails: {said}"
