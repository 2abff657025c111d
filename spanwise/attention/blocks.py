"""Block-sparse exact attention that trains on the CPU, in eager torch.

Each group of the plan is served through strided views of q, k and v, so that the overlapping keys
of a window are never copied: by batched matrix products where a block's score map is small
(products.py), by torch's fused CPU kernel and its own backward where it is large or the rule
scattered. Groups are served in slices, so that what a slice needs for itself stays below a setting
whatever the length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from spanwise.attention.group import UNSEEN, Call, Group, Strided
from spanwise.attention.groups import all_written, groups, queries_of
from spanwise.attention.mixed import autocast_off
from spanwise.attention.plan import Array, Plan
from spanwise.attention.products import Part, attend, differentiate, runs
from spanwise.attention.slices import slice_bytes, slice_of_fused, slice_of_products

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def blocks_attention(
    q: Tensor, k: Tensor, v: Tensor, plans: tuple[Plan, Plan], lengths: Tensor | None, scale: float
) -> Tensor:
    """Return attention over the pairs that the plans let through; shapes as rule_attention.

    plans: for the forward and for the backward pass (the same rule, tiles as suits each).
    """
    dtype, v_dim = v.dtype, v.shape[-1]
    if dtype == torch.float16:  # no room for the mask's large negative numbers
        q, k, v = q.float(), k.float(), v.float()
    if v_dim != q.shape[-1]:  # the fused kernel wants one head_dim
        dim = -(-max(v_dim, q.shape[-1]) // 8) * 8
        q, k, v = (pad(x, (0, dim - x.shape[-1])) for x in (q, k, v))
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out = _Blocks.apply(q, k, v, plans, lengths, scale)
    return (out if out.shape[-1] == v_dim else out[..., :v_dim]).to(dtype)


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plans: tuple[Plan, Plan],
        lengths: Tensor | None,
        scale: float,
    ) -> Tensor:
        q_, k_, v_ = _fold(lengths, q, k, v)
        out, log_sum = _attend(q_, k_, v_, plans, lengths, scale)
        out, log_sum = out.view(q.shape), log_sum.view(*q.shape[:3], 1)
        ctx.save_for_backward(q, k, v, out, log_sum, lengths)
        ctx.plan, ctx.scale = plans[1], scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sum, lengths = ctx.saved_tensors
        if grad.stride(-1) != 1 or 0 in grad.stride():
            grad = grad.contiguous()
        if lengths is not None:  # what lies in the padding passes no gradient
            grad = grad.masked_fill(_padding(grad, lengths), 0.0)
        tensors = _fold(lengths, grad, q, k, v, out, log_sum)
        with autocast_off("cpu"):  # as it was forward
            gradients = _gradients(tensors, ctx.plan, lengths, ctx.scale)
        return (*(x.view(q.shape) for x in gradients), None, None, None)


def _fold(lengths: Tensor | None, *tensors: Tensor) -> list[Tensor]:
    """Return the tensors with batch entries as further heads, where strides allow it for all."""
    if lengths is None and all(x.stride(0) == x.shape[1] * x.stride(1) for x in tensors):
        return [x.flatten(0, 1)[None] for x in tensors]
    return list(tensors)


def _padding(x_BHLD: Tensor, lengths: Tensor) -> Tensor:
    return (torch.arange(x_BHLD.shape[2]) >= lengths[:, None])[:, None, :, None]


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plans: tuple[Plan, Plan],
    lengths: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp (B, H, L, 1) of the scores.

    The latter is +1e30 where no key is seen, and means nothing where no pass asks for it.
    """
    plan = plans[0]
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty(q.shape, dtype=q.dtype)
    log_sum = torch.full((*q.shape[:3], 1), UNSEEN, dtype=wide)
    if lengths is not None or not all_written(plan):
        out.zero_()
    asked = _queries_with_log_sum(plans, q.dtype)
    for group in groups(plan):
        if not _by_products(group, q.dtype):
            for call, bias in _calls(group, q, lengths, backward=False):
                part, part_sum = _forward(
                    group.queries(q, call),
                    group.keys(k, call),
                    group.keys(v, call),
                    0.0,
                    group.causal_form,
                    attn_mask=bias,
                    scale=scale,
                )
                part_sum = part_sum[..., None]
                if not group.first:
                    part, part_sum = _merge(
                        group.queries(out, call), group.queries(log_sum, call), part, part_sum
                    )
                group.write_queries(out, call, part)
                group.write_queries(log_sum, call, part_sum)
            continue
        ask = bool(asked[queries_of(group)].any())
        for piece in _parts(group, [q, k, v, out, log_sum], lengths, scale, backward=False):
            there, there_sum = piece.queries(out), piece.queries(log_sum)
            part, sums = attend(piece, q, k, v, out, _may_be_empty(group, lengths), ask)
            if sums is not None:
                if not group.first:
                    part, sums = _merge(there, there_sum, part, sums)
                there_sum.copy_(sums)
            if part.data_ptr() != there.data_ptr():
                there.copy_(part)
    nothing = (log_sum < UNSEEN / 10) & torch.from_numpy(asked)[:, None]
    if lengths is not None:
        nothing |= _padding(out, lengths)
    if nothing.any():
        out.masked_fill_(nothing, 0.0)
        log_sum.masked_fill_(nothing, -UNSEEN)  # makes every weight of the backward pass 0
    return out, log_sum


def _merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax over the union of two disjoint sets of keys, from that over each."""
    both = torch.logaddexp(lse, part_lse)
    merged = out.to(lse.dtype) * (lse - both).exp_()
    merged.addcmul_(part.to(lse.dtype), (part_lse - both).exp_())
    return merged, both


def _gradients(
    tensors: list[Tensor], plan: Plan, lengths: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v, out, log_sum = tensors
    written = lengths is None and all_written(plan)
    dq = (torch.empty if written else torch.zeros)(q.shape, dtype=q.dtype)
    dk, dv = torch.zeros(k.shape, dtype=k.dtype), torch.zeros(v.shape, dtype=v.dtype)
    for group in groups(plan):
        if _by_products(group, q.dtype):
            normal = None if group.alone else (out, log_sum)
            empty = _may_be_empty(group, lengths)
            reads = [grad, q, k, v, out, log_sum]
            for part in _parts(group, reads, lengths, scale, backward=True):
                differentiate(part, grad, q, k, v, normal, empty, (dq, dk, dv), group.first)
            continue
        for call, bias in _calls(group, q, lengths, backward=True):
            part_q, part_k, part_v = _backward(
                group.queries(grad, call),
                group.queries(q, call),
                group.keys(k, call),
                group.keys(v, call),
                group.queries(out, call),
                group.queries(log_sum, call)[..., 0],
                0.0,
                group.causal_form,
                attn_mask=bias,
                scale=scale,
            )
            if group.first:
                group.write_queries(dq, call, part_q)
            else:
                group.add_to_queries(dq, call, part_q)
            group.add_to_keys(dk, call, part_k)
            group.add_to_keys(dv, call, part_v)
    return dq, dk, dv


def _by_products(group: Group, dtype: torch.dtype) -> TypeGuard[Strided]:
    """Return whether batched products serve the group, rather than the fused kernel.

    In half precision the fused kernel keeps its scores in float32, and products would not.
    """
    return isinstance(group, Strided) and group.by_products and dtype.itemsize >= 4


def _queries_with_log_sum(plans: tuple[Plan, Plan], dtype: torch.dtype) -> Array:
    """Return (L,) bool: the queries whose log-sum-exp a later step will ask for."""
    key = f"_log_sum_{plans[1].tile}_{dtype}"
    kept = plans[0].__dict__.get(key)
    if kept is None:
        kept = np.zeros(plans[0].length, bool)
        for plan in plans:
            for group in groups(plan):
                if not (group.alone and _by_products(group, dtype)):
                    kept[queries_of(group)] = True
        for group in groups(plans[0]):  # a group makes it for all of its queries, or for none
            at = queries_of(group)
            kept[at] = kept[at].any()
        plans[0].__dict__[key] = kept
    return kept


def _may_be_empty(group: Strided, lengths: Tensor | None) -> bool:
    return group.may_be_empty or (lengths is not None and not group.plan.causal)


def _hidden(group: Group, lengths: Tensor | None) -> Tensor | None:
    """Return the lengths whose padding must be masked: causality hides it by itself."""
    return None if group.plan.causal else lengths


def _parts(
    group: Strided, tensors: list[Tensor], lengths: Tensor | None, scale: float, backward: bool
) -> Iterator[Part]:
    """Yield the slices of a group that products serve."""
    q = tensors[1]
    a_block = slice_of_products(group, q.shape[3], q.element_size(), backward)
    needed = [group.n] * q.shape[0]
    if lengths is not None:
        needed = [int((group.q_blocks < int(length)).sum()) for length in lengths]
    hidden = _hidden(group, lengths)
    most = max(1, int(slice_bytes(q.numel() * q.element_size()) // a_block))
    for run, call in runs(group, tensors, needed, most):
        one = None if hidden is None else hidden[run.entry : run.entry + 1]
        bias = group.bias(call, q.dtype, one, fused=False)
        yield Part(group, run, None if bias is None else bias[:, 0], scale)


def _calls(
    group: Group, q: Tensor, lengths: Tensor | None, backward: bool
) -> Iterator[tuple[Call, Tensor | None]]:
    """Yield every fused call of a group: its blocks and batch entries, and its additive mask."""
    batch, heads, _, dim = q.shape
    hidden = _hidden(group, lengths)
    a_block = slice_of_fused(group, heads, dim, q.element_size(), backward)
    step = max(1, int(slice_bytes(q.numel() * q.element_size()) // a_block))
    if isinstance(group, Strided) and group.n <= batch:
        for i in range(group.n):
            call = Call(slice(i, i + 1), None)
            yield call, group.bias(call, q.dtype, hidden)
        return
    for entry in range(batch):
        n = group.n
        if lengths is not None:
            n = int((group.q_blocks < int(lengths[entry])).sum())
        for start in range(0, n, step):
            call = Call(slice(start, min(n, start + step)), entry)
            one = None if hidden is None else hidden[entry : entry + 1]
            yield call, group.bias(call, q.dtype, one)
