"""Which contents belong to which split: by a hash, so that no two splits share one.

Shape suffixes: B batch, C numbers that make a sequence's content.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spanwise.seeds import torch_generator
from tasks.interface import Split

N_BUCKETS = 4
BUCKETS: dict[Split, tuple[int, ...]] = {"train": (0, 1), "validation": (2,), "test": (3,)}
"""Which quarters of all possible contents a split draws from."""


def bucket(content_BC: Tensor) -> Tensor:
    """Return which of ``N_BUCKETS`` equal parts of all contents each row belongs to, (B,) int64.

    A multilinear hash with fixed odd multipliers: its two highest bits. It depends on the row
    alone, so a content is always in the same part.
    """
    multipliers = torch_generator(0, "recall", "buckets")
    bits = torch.randint(-(2**62), 2**62, (content_BC.shape[1],), generator=multipliers)
    hashed = (content_BC * (2 * bits + 1)).sum(dim=1)
    return (hashed >> 62) & (N_BUCKETS - 1)


def belongs(content_BC: Tensor, split: Split) -> Tensor:
    """Return whether each row's content is one of ``split``'s, (B,) bool."""
    return torch.isin(bucket(content_BC), torch.tensor(BUCKETS[split]))
