"""One group of a plan: blocks of queries that one fused call serves, and how they read and write.

Shape suffixes: B batch, H heads, L length, D head_dim; N blocks of queries in one call, S their
size. A call serves some blocks of one batch entry, N = blocks, or one block of every entry, N = B.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spanwise.attention.plan import Plan

Array = NDArray[Any]
UNSEEN = -1e37
"""Added to a score that must not count: finite, so that no softmax meets a row of infinities."""
NOT_SEEN = -2
_KEPT_BIAS_BYTES = 4 << 20
_TRIM = 8
_MOST_QUERIES = 128  # of a block: with more, the fused kernel too packs its keys less often
_LARGEST_MAP = 1 << 17  # scores of one block: some hundred KiB, which a core's cache holds


@dataclass
class Call:
    """The blocks that one fused call serves: those of one batch entry, or one of every entry."""

    blocks: slice
    entry: int | None


@dataclass(kw_only=True)
class Group(ABC):
    """``n`` blocks of ``q_size`` queries, each with ``k_size`` keys.

    patterns: (n or 1, rows, columns) the plan's tile patterns behind each block, -1 all seen, -2
    none. first: no group served before this one touches these queries. alone: no other group
    touches them at all, so that each query's whole softmax lies in this one.
    """

    plan: Plan
    patterns: Array
    n: int
    q_size: int
    k_size: int
    first: bool = field(default=True, init=False)
    alone: bool = field(default=True, init=False)

    @property
    @abstractmethod
    def q_blocks(self) -> Array:
        """(n,) first query of every block."""

    @property
    def pairs(self) -> int:
        """Number of pairs that this group multiplies."""
        return self.n * self.q_size * self.k_size

    @property
    def causal_form(self) -> bool:
        """True where the fused kernel's own causal form is the mask."""
        return False

    @abstractmethod
    def trim(self) -> bool:
        """Cut off rows and columns in which no pair is seen; return whether anything is left."""

    @abstractmethod
    def queries(self, x_BHLD: Tensor, call: Call) -> Tensor:
        """Return the queries' part of ``x``: (N, H, S, D)."""

    @abstractmethod
    def keys(self, x_BHLD: Tensor, call: Call) -> Tensor:
        """Return the keys' part of ``x``: (N, H, S, D)."""

    @abstractmethod
    def write_queries(self, x_BHLD: Tensor, call: Call, part: Tensor) -> None:
        """Overwrite the queries' part of ``x`` with ``part``."""

    @abstractmethod
    def add_to_queries(self, x_BHLD: Tensor, call: Call, part: Tensor) -> None:
        """Add ``part`` to the queries' part of ``x``."""

    @abstractmethod
    def add_to_keys(self, x_BHLD: Tensor, call: Call, part: Tensor) -> None:
        """Add ``part`` to the keys' part of ``x``, where blocks may share keys."""

    @abstractmethod
    def key_positions(self, call: Call) -> Tensor:
        """Return the position of every key: (N or 1, S)."""

    def seen(self, blocks: slice) -> Tensor:
        """Return the mask of the given blocks: (N or 1, q_size, k_size) bool."""
        patterns = self.patterns if len(self.patterns) == 1 else self.patterns[blocks]
        tile = self.plan.tile
        seen = torch.zeros(*patterns.shape, tile, tile, dtype=torch.bool)
        seen[torch.from_numpy(patterns == -1)] = True
        masked = patterns >= 0
        if masked.any():
            seen[torch.from_numpy(masked)] = self.plan.masks(patterns[masked])
        return seen.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def bias(
        self, call: Call, dtype: torch.dtype, lengths: Tensor | None, fused: bool = True
    ) -> Tensor | None:
        """Return what to add to the scores, (N or 1, 1, S queries, S keys), None for nothing.

        lengths: (N or 1,) valid lengths whose padding must be masked as well, or None. fused:
        leave out what the fused kernel's own causal form masks.
        """
        bias = None if fused and self.causal_form else self._bias(call.blocks, dtype)
        if lengths is None:
            return bias
        padding = self.key_positions(call) >= lengths[:, None]
        if not padding.any():
            return bias
        row = torch.zeros(padding.shape, dtype=dtype).masked_fill_(padding, UNSEEN)[:, None, None]
        if bias is None:
            return row.expand(-1, -1, self.q_size, -1)
        return torch.minimum(bias, row)

    def _bias(self, blocks: slice, dtype: torch.dtype) -> Tensor | None:
        if (self.patterns == -1).all():
            return None
        seen = self.seen(blocks)
        return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, UNSEEN)[:, None]


@dataclass(kw_only=True)
class Strided(Group):
    """Block i has its queries from q_start + i*q_step on and its keys from k_start + i*k_step on.

    Both are read through strided views: a sliding window's overlapping keys are never copied.
    """

    q_start: int
    q_step: int
    k_start: int
    k_step: int
    rows: slice = field(default_factory=lambda: slice(None), init=False)
    cols: slice = field(default_factory=lambda: slice(None), init=False)
    form: str = field(default="", init=False)  # "all", "lower" (a triangle), or any other mask
    may_be_empty: bool = field(default=False, init=False)  # a query that sees none of the keys
    kept: dict[torch.dtype, Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def q_blocks(self) -> Array:
        """(n,) first query of every block."""
        return self.q_start + self.q_step * np.arange(self.n)

    @property
    def causal_form(self) -> bool:
        """True where the fused kernel's own causal form is the mask."""
        return self.form == "lower"

    @property
    def by_products(self) -> bool:
        """True where batched products beat the fused kernel: few queries, and a small score map."""
        return self.q_size <= _MOST_QUERIES and self.q_size * self.k_size <= _LARGEST_MAP

    @property
    def even(self) -> bool:
        """True where a head's last block and the next head's first are a step apart, as all are."""
        whole = self.n * self.q_step == self.plan.length and self.k_step == self.q_step
        return whole and len(self.patterns) == 1

    def trim(self) -> bool:
        """Cut off rows and columns in which no pair is seen; return whether anything is left."""
        if (self.patterns == -1).all():
            return True
        if len(self.patterns) > 1:
            self.may_be_empty = True
            return True
        self.rows, self.cols = slice(0, self.q_size), slice(0, self.k_size)
        seen = self.seen(slice(None))[0]
        at = [torch.nonzero(seen.any(axis)).flatten() for axis in (1, 0)]
        if not len(at[0]):
            return False
        first = [int(x[0]) // _TRIM * _TRIM for x in at]
        last = [
            min(-(-(int(x[-1]) + 1) // _TRIM) * _TRIM, size)
            for x, size in zip(at, seen.shape, strict=True)
        ]
        self.rows, self.cols = slice(first[0], last[0]), slice(first[1], last[1])
        self.q_start, self.k_start = self.q_start + first[0], self.k_start + first[1]
        self.q_size, self.k_size = last[0] - first[0], last[1] - first[1]
        seen = seen[self.rows, self.cols]
        self.may_be_empty = not bool(seen.any(1).all())
        if seen.all():
            self.form = "all"
            if self.k_step == 0 and self.q_step == self.q_size:
                self.n, self.q_size = 1, self.n * self.q_size
        elif seen.shape[0] == seen.shape[1] and torch.equal(seen, torch.ones_like(seen).tril()):
            self.form = "lower"
        return True

    def seen(self, blocks: slice) -> Tensor:
        """Return the mask of the given blocks: (N or 1, q_size, k_size) bool."""
        return super().seen(blocks)[:, self.rows, self.cols]

    def _bias(self, blocks: slice, dtype: torch.dtype) -> Tensor | None:
        if self.form == "all":
            return None
        if dtype in self.kept:
            return self.kept[dtype]
        bias = super()._bias(blocks, dtype)
        if bias is None or len(self.patterns) > 1:
            return bias
        if bias.numel() * bias.element_size() <= _KEPT_BIAS_BYTES:
            self.kept[dtype] = bias
        return bias

    def queries(self, x_BHLD: Tensor, call: Call) -> Tensor:
        """Return a view of the queries' part of ``x``: (N, H, S, D)."""
        return _view(x_BHLD, call, self.q_start, self.q_step, self.q_size)

    def keys(self, x_BHLD: Tensor, call: Call) -> Tensor:
        """Return a view of the keys' part of ``x``: (N, H, S, D), blocks may overlap."""
        return _view(x_BHLD, call, self.k_start, self.k_step, self.k_size)

    def add_to_queries(self, x_BHLD: Tensor, call: Call, part: Tensor) -> None:
        """Add ``part`` to the queries' part of ``x``."""
        self.queries(x_BHLD, call).add_(part)

    def write_queries(self, x_BHLD: Tensor, call: Call, part: Tensor) -> None:
        """Overwrite the queries' part of ``x`` with ``part``."""
        self.queries(x_BHLD, call).copy_(part)

    def add_to_keys(self, x_BHLD: Tensor, call: Call, part: Tensor) -> None:
        """Add ``part`` to the keys' part of ``x``: overlapping blocks by shifted additions."""
        step, size = self.k_step, self.k_size
        if call.entry is None or len(part) == 1 or step >= size:
            self.keys(x_BHLD, call).add_(part)
        elif step == 0:
            first = Call(slice(call.blocks.start, call.blocks.start + 1), call.entry)
            self.keys(x_BHLD, first).add_(part.sum(0, keepdim=True))
        else:
            for shift in range(0, size, step):
                width = min(step, size - shift)
                view = _view(x_BHLD, call, self.k_start + shift, step, width)
                view.add_(part[:, :, shift : shift + width])

    def key_positions(self, call: Call) -> Tensor:
        """Return the position of every key: (N or 1, S)."""
        starts = torch.arange(call.blocks.start, call.blocks.stop)[:, None] * self.k_step
        return self.k_start + starts + torch.arange(self.k_size)


def _view(x_BHLD: Tensor, call: Call, start: int, step: int, size: int) -> Tensor:
    start += call.blocks.start * step
    if call.entry is None:
        return x_BHLD[:, :, start : start + size]
    stride = x_BHLD.stride()
    return x_BHLD.as_strided(
        (call.blocks.stop - call.blocks.start, x_BHLD.shape[1], size, x_BHLD.shape[3]),
        (step * stride[2], stride[1], stride[2], stride[3]),
        x_BHLD.storage_offset() + call.entry * stride[0] + start * stride[2],
    )


@dataclass(kw_only=True)
class Gathered(Group):
    """Blocks whose keys are scattered: rows (n,), cols (n, c) in tiles; the keys are copied."""

    rows: Array
    cols: Array

    @property
    def q_blocks(self) -> Array:
        """(n,) first query of every block."""
        return self.rows * self.plan.tile

    def trim(self) -> bool:
        """Return True: gathered tiles are used whole."""
        return True

    def _tiles(self, x_BHLD: Tensor, call: Call) -> Tensor:
        """Return whole tiles of one batch entry as a view: (H, blocks, tile, D)."""
        x_HLD = x_BHLD[call.entry]
        whole = x_HLD.shape[1] // self.plan.tile
        return x_HLD[:, : whole * self.plan.tile].unflatten(1, (whole, self.plan.tile))

    def _rows(self, call: Call) -> Tensor:
        return torch.from_numpy(self.rows[call.blocks])

    def _cols(self, call: Call) -> Tensor:
        return torch.from_numpy(self.cols[call.blocks].ravel())

    def queries(self, x_BHLD: Tensor, call: Call) -> Tensor:
        """Return a copy of the queries' part of ``x``: (N, H, S, D)."""
        return self._tiles(x_BHLD, call).index_select(1, self._rows(call)).transpose(0, 1)

    def keys(self, x_BHLD: Tensor, call: Call) -> Tensor:
        """Return a copy of the keys' part of ``x``: (N, H, S, D)."""
        got = self._tiles(x_BHLD, call).index_select(1, self._cols(call))
        return got.unflatten(1, (-1, self.cols.shape[1])).flatten(2, 3).transpose(0, 1)

    def add_to_queries(self, x_BHLD: Tensor, call: Call, part: Tensor) -> None:
        """Add ``part`` to the queries' part of ``x``."""
        self._tiles(x_BHLD, call).index_add_(1, self._rows(call), part.transpose(0, 1))

    def write_queries(self, x_BHLD: Tensor, call: Call, part: Tensor) -> None:
        """Overwrite the queries' part of ``x`` with ``part``."""
        self._tiles(x_BHLD, call).index_copy_(1, self._rows(call), part.transpose(0, 1))

    def add_to_keys(self, x_BHLD: Tensor, call: Call, part: Tensor) -> None:
        """Add ``part`` to the keys' part of ``x``; a key block may be in many places."""
        tiles = part.transpose(0, 1).unflatten(2, (-1, self.plan.tile)).flatten(1, 2)
        self._tiles(x_BHLD, call).index_add_(1, self._cols(call), tiles)

    def key_positions(self, call: Call) -> Tensor:
        """Return the position of every key: (N, S)."""
        tile = self.plan.tile
        starts = torch.from_numpy(self.cols[call.blocks]) * tile
        return (starts[:, :, None] + torch.arange(tile)).flatten(1)
