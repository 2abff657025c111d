"""A strided group's attention by batched matrix products, its score map held a slice at a time.

Torch's fused CPU kernel takes 32 queries of a short block at a time and packs their keys for the
product anew each time; here a block's keys are packed once. With two threads on the caches of one
core that is worth a third of the time. The map is larger than what the fused kernel holds, so this
is for blocks with few keys.

Shape suffixes: N blocks in a slice, S queries and K keys of a block, D head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spanwise.attention.group import UNSEEN, Call, Strided


@dataclass(frozen=True)
class Run:
    """Blocks in even steps through memory: ``count`` blocks of one sequence, or one of ``count``.

    entry, head, block: the first. across: the steps go from head to head, not from block to block.
    """

    entry: int
    head: int
    block: int
    count: int
    across: bool

    def take(self, x_BHLD: Tensor, start: int, step: int, size: int) -> Tensor:
        """Return ``size`` positions of each block as a view (N, size, D).

        start: position of block 0; step: positions from block to block.
        """
        batch, head, position, last = x_BHLD.stride()
        at = self.entry * batch + self.head * head + (start + self.block * step) * position
        return x_BHLD.as_strided(
            (self.count, size, x_BHLD.shape[3]),
            (head if self.across else step * position, position, last),
            x_BHLD.storage_offset() + at,
        )


def runs(
    group: Strided, tensors: list[Tensor], blocks: list[int], most: int
) -> Iterator[tuple[Run, Call]]:
    """Cut a group into slices of at most ``most`` blocks.

    tensors: all that will be read or written, (B, H, L, D) each. blocks: how many of the group's
    blocks every batch entry needs.
    """
    batch, heads, length = tensors[0].shape[:3]
    end_to_end = all(x.stride(1) == length * x.stride(2) or heads == 1 for x in tensors)
    for entry in range(batch):
        if group.even and end_to_end and blocks[entry] == group.n:
            for start in range(0, heads * group.n, most):
                count = min(most, heads * group.n - start)
                yield Run(entry, 0, start, count, False), Call(slice(0, 1), entry)
        elif group.n < heads:
            for block in range(blocks[entry]):
                for head in range(0, heads, most):
                    run = Run(entry, head, block, min(most, heads - head), True)
                    yield run, Call(slice(block, block + 1), entry)
        else:
            for head in range(heads):
                for start in range(0, blocks[entry], most):
                    count = min(most, blocks[entry] - start)
                    call = Call(slice(start, start + count), entry)
                    yield Run(entry, head, start, count, False), call


class Part:
    """One slice of a group: its queries and keys in any tensor, its scores and their softmax."""

    def __init__(self, group: Strided, run: Run, bias: Tensor | None, scale: float) -> None:
        self.group, self.run, self.bias, self.scale = group, run, bias, scale

    def queries(self, x_BHLD: Tensor) -> Tensor:
        """Return the queries' part of ``x`` as a view (N, S, D)."""
        group = self.group
        return self.run.take(x_BHLD, group.q_start, group.q_step, group.q_size)

    def keys(self, x_BHLD: Tensor) -> Tensor:
        """Return the keys' part of ``x`` as a view (N, K, D); blocks may overlap."""
        group = self.group
        return self.run.take(x_BHLD, group.k_start, group.k_step, group.k_size)

    def scratch(self, like: Tensor) -> Tensor:
        """Return room for the scores (N, S, K)."""
        return like.new_empty(self.run.count, self.group.q_size, self.group.k_size)

    def scores(self, q: Tensor, k: Tensor, less: Tensor | None = None) -> Tensor:
        """Return q k^T * scale + bias - less, (N, S, K). less: (N, S, 1)."""
        room = self.scratch(q)
        if less is not None:
            if self.bias is None:
                room.copy_(-less)
            else:
                torch.sub(self.bias, less, out=room)
        elif self.bias is not None:
            room.copy_(self.bias)
        beta = 0 if less is None and self.bias is None else 1
        return room.baddbmm_(q, k.mT, beta=beta, alpha=self.scale)


def _weights(scores: Tensor, may_be_empty: bool) -> Tensor:
    """Return the softmax, in place; all zero for a query with nothing to see."""
    empty = scores.amax(-1, keepdim=True) < UNSEEN / 10 if may_be_empty else None
    torch.softmax(scores, -1, out=scores)
    return scores if empty is None else scores.masked_fill_(empty, 0.0)


def attend(
    part: Part, q: Tensor, k: Tensor, v: Tensor, out: Tensor, may_be_empty: bool, log_sum: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the part's output (N, S, D), and its log-sum-exp (N, S, 1) if asked for.

    The output is written into ``out`` itself where batched products can, and returned as that view.
    may_be_empty: a query may see none of the keys; its output is then 0, unless log_sum says so.
    """
    scores = part.scores(part.queries(q), part.keys(k))
    highest = scores.amax(-1, keepdim=True) if log_sum else None
    weights = _weights(scores, may_be_empty and not log_sum)
    if highest is not None:  # the largest weight is exp(highest - lse)
        highest.sub_(weights.amax(-1, keepdim=True).log_())
    there = part.queries(out)
    values = part.keys(v)
    if there.is_contiguous() and not log_sum:
        return torch.bmm(weights, values, out=there), None
    return torch.bmm(weights, values), highest


def differentiate(
    part: Part,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    normal: tuple[Tensor, Tensor] | None,
    may_be_empty: bool,
    into: tuple[Tensor, Tensor, Tensor],
    first: bool,
) -> None:
    """Add the part's gradients to ``into`` (dq, dk, dv); dq is overwritten where ``first``.

    normal: out and log-sum-exp (B, H, L, D or 1) over all the keys that a query sees, or None
    where this part holds them all.
    """
    dq, dk, dv = into
    q_, k_, v_, grad_ = part.queries(q), part.keys(k), part.keys(v), part.queries(grad)
    if normal is None:
        weights = _weights(part.scores(q_, k_), may_be_empty)
        of_scores = torch.bmm(grad_, v_.mT)
        _add_to_keys(part, dv, weights, grad_, 1.0)
        torch._softmax_backward_data(of_scores, weights, -1, weights.dtype, grad_input=of_scores)
    else:
        out, log_sum = (part.queries(x) for x in normal)
        weights = part.scores(q_, k_, log_sum).exp_()
        _add_to_keys(part, dv, weights, grad_, 1.0)
        of_scores = part.scratch(q).copy_((grad_ * out).sum(-1, keepdim=True).neg_())
        of_scores.baddbmm_(grad_, v_.mT).mul_(weights)
    there = part.queries(dq)
    if there.is_contiguous():
        there.baddbmm_(of_scores, k_, beta=0 if first else 1, alpha=part.scale)
    else:
        made = torch.bmm(of_scores, k_).mul_(part.scale)
        if first:
            there.copy_(made)
        else:
            there.add_(made)
    _add_to_keys(part, dk, of_scores, q_, part.scale)


def _add_to_keys(part: Part, there: Tensor, weights: Tensor, rows: Tensor, scale: float) -> None:
    """Add weights^T rows * scale to the keys' part of ``there``, where blocks may share keys."""
    group, run = part.group, part.run
    step, size = group.k_step, group.k_size
    if run.across or run.count == 1 or step >= size:
        view = part.keys(there)
        if view.is_contiguous():
            view.baddbmm_(weights.mT, rows, alpha=scale)
        else:
            view.add_(torch.bmm(weights.mT, rows), alpha=scale)
    elif step == 0:
        view = run.take(there, group.k_start, 0, size)[0]
        view.addmm_(weights.flatten(0, 1).mT, rows.reshape(-1, rows.shape[-1]), alpha=scale)
    else:
        for shift in range(0, size, step):
            width = min(step, size - shift)
            view = run.take(there, group.k_start + shift, step, width)
            columns = weights[:, :, shift : shift + width].mT
            if view.is_contiguous():  # as batched products want what they write
                view.baddbmm_(columns, rows, alpha=scale)
            else:
                view.add_(torch.bmm(columns, rows), alpha=scale)
