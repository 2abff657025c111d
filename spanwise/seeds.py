"""Random streams: every use of randomness has a generator of its own, named and seeded.

Two variants at one seed must see the same data, in the same order, and start from the same
weights. A single global generator cannot promise that (a variant with one more parameter shifts
everything drawn after it), so each stream is derived from the cell's seed and a name.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that depends on ``seed`` and on every name, and on nothing else."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_generator(seed: int, *names: str | int) -> torch.Generator:
    """Return a CPU generator for the stream ``names`` of ``seed``."""
    return torch.Generator().manual_seed(derive_seed(seed, *names))


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return a numpy generator for the stream ``names`` of ``seed``."""
    return np.random.default_rng(derive_seed(seed, *names))
