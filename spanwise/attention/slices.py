"""How much of a group one call serves: slices, so that what a call needs for itself is bounded."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.attention.group import Group


@dataclass
class Settings:
    """What a slice of a group may need beyond inputs and outputs, about.

    transient_bytes: at most so much at any length; more would also fall out of the caches.
    transient_share: at most so much of what q takes, which keeps the bytes that a token needs the
    same at shorter lengths too. transient_least: what no share forbids, since many small slices
    cost more time than this costs memory.
    """

    transient_bytes: int = 4 << 20
    transient_share: float = 3 / 8
    transient_least: int = 3 << 19


settings = Settings()


def slice_bytes(q_bytes: int) -> float:
    """Return the bytes that a slice may need where q takes ``q_bytes``."""
    share = settings.transient_share * q_bytes
    return min(settings.transient_bytes, max(settings.transient_least, share))


def slice_of_products(group: Group, dim: int, item: int, backward: bool) -> int:
    """Return the bytes that batched products need for one block of one head: its score maps."""
    return item * (1 + backward) * group.q_size * (group.k_size + dim)


def slice_of_fused(group: Group, heads: int, dim: int, item: int, backward: bool) -> int:
    """Return the bytes that a fused call needs for one block of all heads: what it returns."""
    needed = heads * dim * item * (group.q_size + backward * 2 * group.k_size)
    if len(group.patterns) > 1:
        needed += group.q_size * group.k_size * (item + 2)
    return needed
