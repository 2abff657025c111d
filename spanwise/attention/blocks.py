"""Block-sparse exact attention that trains on the CPU, in eager torch.

Each group of the plan is served by torch's fused CPU kernel, through strided views of q, k and v,
so that neither the overlapping keys of a window nor any score map is ever stored. The backward
pass calls that kernel's own backward and adds the gradients of shared keys together. Groups are
served in slices, so that what a slice needs for itself stays below a setting whatever the length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from spanwise.attention.group import UNSEEN, Call, Group, Strided
from spanwise.attention.groups import all_written, groups
from spanwise.attention.plan import Plan

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass
class Settings:
    """What a slice of a group may need beyond inputs and outputs, about.

    transient_bytes: at most so much at any length. transient_share: at most so much of what q
    takes, which keeps the bytes a token needs the same at short lengths too.
    """

    transient_bytes: int = 16 << 20
    transient_share: float = 3 / 8


settings = Settings()


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
    return out[..., :v_dim].to(dtype)


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
        out, lse = _attend(q_, k_, v_, plans[0], lengths, scale)
        out, lse = out.view(q.shape), lse.view(*q.shape[:3], 1)
        ctx.save_for_backward(q, k, v, out, lse, lengths)
        ctx.plan, ctx.scale = plans[1], scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, lengths = ctx.saved_tensors
        if grad.stride(-1) != 1 or 0 in grad.stride():
            grad = grad.contiguous()
        tensors = _fold(lengths, grad, q, k, v, out, lse)
        gradients = _gradients(tensors, ctx.plan, lengths, ctx.scale)
        return (*(x.view(q.shape) for x in gradients), None, None, None)


def _fold(lengths: Tensor | None, *tensors: Tensor) -> list[Tensor]:
    """Return the tensors with batch entries as further heads, where strides allow it for all."""
    if lengths is None and all(x.stride(0) == x.shape[1] * x.stride(1) for x in tensors):
        return [x.flatten(0, 1)[None] for x in tensors]
    return list(tensors)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, lengths: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp (B, H, L) of the scores; +1e30 where none is seen."""
    batch, heads, length = q.shape[:3]
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty_like(q)
    lse = torch.full((batch, heads, length, 1), UNSEEN, dtype=wide)
    if lengths is not None or not all_written(plan):
        out.zero_()
    for group, call, bias in _calls(plan, q, lengths, backward=False):
        q_N, k_N, v_N = group.queries(q, call), group.keys(k, call), group.keys(v, call)
        part, part_lse = _forward(
            q_N, k_N, v_N, 0.0, group.causal_form, attn_mask=bias, scale=scale
        )
        part_lse = part_lse[..., None]
        if not group.first:
            part, part_lse = _merge(
                group.queries(out, call), group.queries(lse, call), part, part_lse
            )
        group.write_queries(out, call, part)
        group.write_queries(lse, call, part_lse)
    nothing = lse < UNSEEN / 10
    if lengths is not None:
        nothing |= (torch.arange(length) >= lengths[:, None])[:, None, :, None]
    if nothing.any():
        out.masked_fill_(nothing, 0.0)
        lse.masked_fill_(nothing, -UNSEEN)  # makes every weight of the backward pass 0
    return out, lse


def _merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax over the union of two disjoint sets of keys, from that over each."""
    both = torch.logaddexp(lse, part_lse)
    merged = out.to(lse.dtype) * (lse - both).exp_()
    merged.addcmul_(part.to(lse.dtype), (part_lse - both).exp_())
    return merged, both


def _gradients(
    tensors: list[Tensor], plan: Plan, lengths: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v, out, lse = tensors
    dq = torch.empty_like(q) if lengths is None and all_written(plan) else torch.zeros_like(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for group, call, bias in _calls(plan, q, lengths, backward=True):
        part_q, part_k, part_v = _backward(
            group.queries(grad, call),
            group.queries(q, call),
            group.keys(k, call),
            group.keys(v, call),
            group.queries(out, call),
            group.queries(lse, call)[..., 0],
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


def _calls(
    plan: Plan, q: Tensor, lengths: Tensor | None, backward: bool
) -> Iterator[tuple[Group, Call, Tensor | None]]:
    """Yield every fused call: its group, its blocks and batch entries, and its additive mask."""
    batch, heads, _, dim = q.shape
    hidden = None if lengths is None or plan.causal else lengths  # causality hides the padding
    bound = min(settings.transient_bytes, settings.transient_share * q.numel() * q.element_size())
    for group in groups(plan):
        a_block = heads * dim * q.element_size() * (group.q_size + backward * 2 * group.k_size)
        if len(group.patterns) > 1:
            a_block += group.q_size * group.k_size * (q.element_size() + 2)
        step = max(1, int(bound // a_block))
        if isinstance(group, Strided) and group.n <= batch:
            for i in range(group.n):
                call = Call(slice(i, i + 1), None)
                yield group, call, group.bias(call, q.dtype, hidden)
            continue
        for entry in range(batch):
            n = group.n
            if lengths is not None:
                n = int((group.q_blocks < int(lengths[entry])).sum())
            for start in range(0, n, step):
                call = Call(slice(start, min(n, start + step)), entry)
                one = None if hidden is None else hidden[entry : entry + 1]
                yield group, call, group.bias(call, q.dtype, one)
