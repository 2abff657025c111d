"""Generation token by token: what a causal layer must remember of the past, and no more.

A cache holds the keys and values that some later query can still see. Which those are follows from
the rule alone, so every variant with a rule gets the smallest cache that is exact: a window's is a
ring of ``window`` entries, global tokens stay, full attention keeps all.

Shape suffixes: B batch, H heads, G key/value heads, L sequence length, C cache entries, D head_dim.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from spanwise.attention import plan
from spanwise.attention.retention import keys_of_queries, last_query


class Cache(Protocol):
    """What a layer remembers of the tokens it has read.

    ``length``: how many it has read; the next token's position. ``horizon``: the most it can read.
    """

    length: int
    horizon: int

    @property
    def nbytes(self) -> int:
        """Bytes that the memory takes."""


def check_next(x: Tensor, cache: Cache) -> None:
    """Raise ValueError unless x (B, 1, d_model) is one more token that the cache may read."""
    if x.dim() != 3 or x.shape[1] != 1:
        raise ValueError(
            f"x: found a shape of {tuple(x.shape)}; allowed: (B, 1, d_model), one token"
        )
    if cache.length >= cache.horizon:
        raise ValueError(f"horizon: found a token past it; allowed: up to {cache.horizon}")


@dataclass(frozen=True)
class Slots:
    """Where each key of a sequence is kept, so that keys in use never share a place.

    slot: (L,) the place of each key, -1 for one that no query sees. used: (L,) places in use up to
    and including each position. whole: (L,) True where the query at that position sees exactly the
    keys in the first ``used`` places, so that no mask is needed. last: (L,) last query of each key.
    """

    slot: list[int]
    used: list[int]
    whole: list[bool]
    last: Tensor

    @property
    def entries(self) -> int:
        """Return the number of places: the most keys that are needed at once."""
        return max(self.used, default=0)


def allot(rule: Any, length: int) -> Slots:
    """Return where to keep the keys of a causal sequence of ``length`` under ``rule``.

    A place is free again after the last query that sees its key; the lowest free one is taken.
    """
    known = plan(rule, length, causal=True, tile=128 if length > 2048 else 32)
    last, seen = last_query(known).tolist(), keys_of_queries(known).tolist()
    free: list[int] = []
    leaving: defaultdict[int, list[int]] = defaultdict(list)
    slot, used, whole = [], [], []
    high = alive = 0
    for position in range(length):
        for place in leaving.pop(position - 1, ()):
            heapq.heappush(free, place)
            alive -= 1
        place = -1
        if last[position] >= position:
            if free:
                place = heapq.heappop(free)
            else:
                place, high = high, high + 1
            leaving[last[position]].append(place)
            alive += 1
        slot.append(place)
        used.append(high)
        whole.append(seen[position] == alive == high)
    return Slots(slot, used, whole, torch.tensor(last))


@dataclass
class StateCache:
    """A state of one size, whatever the ``length`` read so far: one tensor, or two."""

    state: Any
    horizon: int
    length: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the state."""
        parts = self.state if isinstance(self.state, tuple) else (self.state,)
        return sum(part.numel() * part.element_size() for part in parts)


class KeyValueCache:
    """Keys (B, G, C, D) and values (B, G, C, Dv) that some later query can still see."""

    def __init__(self, rule: Any, horizon: int, keys: Tensor, values: Tensor):
        """``keys`` and ``values``: one position's, (B, G, 1, D), for shape, type and device."""
        self.rule, self.horizon, self.length = rule, horizon, 0
        self.slots = allot(rule, horizon)
        entries = self.slots.entries
        batch, heads = keys.shape[:2]
        self.keys = keys.new_zeros(batch, heads, entries, keys.shape[-1])
        self.values = values.new_zeros(batch, heads, entries, values.shape[-1])
        self.positions = torch.full((entries,), -1, device=keys.device)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(t.numel() * t.element_size() for t in (self.keys, self.values))

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Take in the next positions' keys and values (B, G, L, D); keep what is still needed."""
        end = self.length + keys.shape[2]
        if end > self.horizon:
            raise ValueError(f"horizon: found a token past it; allowed: up to {self.horizon}")
        if keys.shape[2] == 1:  # the common case, free of index tensors
            place = self.slots.slot[self.length]
            if place >= 0:
                self.keys[:, :, place] = keys[:, :, 0]
                self.values[:, :, place] = values[:, :, 0]
                self.positions[place] = self.length
        else:
            # The last of the new queries is about to look: what only earlier ones saw is left out.
            needed = torch.arange(self.length, end)
            needed = needed[self.slots.last[self.length : end] >= end - 1]
            places = torch.tensor(self.slots.slot)[needed].to(keys.device)
            new = (needed - self.length).to(keys.device)
            self.keys[:, :, places] = keys[:, :, new]
            self.values[:, :, places] = values[:, :, new]
            self.positions[places] = needed.to(keys.device)
        self.length = end

    def attend(self, q: Tensor, scale: float) -> Tensor:
        """Return the attention (B, H, 1, Dv) of the last position's query (B, H, 1, D)."""
        position = self.length - 1
        used = self.slots.used[position]
        keys, values = self.keys[:, :, :used], self.values[:, :, :used]
        mask = None
        if not self.slots.whole[position]:
            at = self.positions[:used]
            mask = (at >= 0) & (at <= position)
            if self.rule is not None:
                mask = mask & self.rule(torch.full_like(at, position), at)
            if not bool(mask.any()):
                return q.new_zeros(*q.shape[:3], values.shape[-1])
            mask = mask.view(1, 1, 1, -1)
        shared = q.shape[1] != keys.shape[1]
        return F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, scale=scale, enable_gqa=shared
        )
