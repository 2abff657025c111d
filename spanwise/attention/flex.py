"""Rules through torch's compiled flex_attention, with the block mask taken from our own plan.

The plan comes from intervals, so nothing of size L x L is formed to find the block mask. On CUDA
the kernel trains; on the CPU torch 2.13 compiles its forward pass only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spanwise.attention.expression import Expression, Rule, Unsupported, evaluate
from spanwise.attention.plan import Plan, plan, trace_rule
from spanwise.errors import ConfigError

BLOCK = 128


def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sees: Rule | None,
    causal: bool,
    lengths: Tensor | None,
    scale: float,
) -> Tensor:
    """Return attention by flex_attention, compiled; shapes as rule_attention.

    Raises ConfigError for training on a device where the kernel has no backward pass.
    """
    if (
        q.device.type != "cuda"
        and torch.is_grad_enabled()
        and (q.requires_grad or k.requires_grad or v.requires_grad)
    ):
        raise ConfigError(
            f"kernel='flex' does not train on {q.device.type}; use 'blocks' or 'auto'"
        )
    mask = block_mask(sees, q.shape[2], causal, lengths, q.device)
    out = _compiled()(q, k, v, block_mask=mask, scale=scale)
    if lengths is None:
        return out
    real = torch.arange(q.shape[2], device=q.device) < lengths[:, None]
    return out.masked_fill(~real[:, None, :, None], 0.0)


@cache
def _compiled() -> Callable:
    from torch.nn.attention.flex_attention import flex_attention as kernel

    return torch.compile(kernel, dynamic=False)


def block_mask(
    sees: Rule | None,
    length: int,
    causal: bool,
    lengths: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Any:
    """Return flex_attention's BlockMask for the rule, made from the interval plan.

    Its lists of tiles are as long as a row could be: 8 bytes for each of (length/128)**2 tiles.
    """
    from torch.nn.attention.flex_attention import BlockMask

    made = plan(sees, length, causal, BLOCK)
    # Padding differs between entries, so without causality no tile is wholly seen in all of them.
    whole = (made.pattern < 0) & (lengths is None or causal)
    some, full = (_rows(made, which, device) for which in (~whole, whole))
    return BlockMask.from_kv_blocks(
        *some,
        *full,
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod(sees, causal, lengths, device),
        seq_lengths=(length, length),
    )


def _rows(made: Plan, which: np.ndarray, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return (1, 1, rows) counts and (1, 1, rows, blocks) columns of the chosen tiles."""
    rows, cols = made.rows[which], made.cols[which]
    counts = np.bincount(rows, minlength=made.blocks)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    index = np.zeros((made.blocks, made.blocks), np.int32)
    index[rows, place] = cols
    counted = torch.from_numpy(counts.astype(np.int32)).to(device)
    return counted[None, None], torch.from_numpy(index).to(device)[None, None]


def mask_mod(
    sees: Rule | None,
    causal: bool,
    lengths: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the rule as a flex_attention mask_mod of (batch, head, query, key)."""
    try:
        rule = _on(trace_rule(sees, causal), device)

        def seen(q: Tensor, k: Tensor) -> Tensor:
            return evaluate(rule, q, k) | (q < 0)  # the second term makes constants a tensor

    except Unsupported:

        def seen(q: Tensor, k: Tensor) -> Tensor:
            return sees(q, k) & (k <= q) if causal else sees(q, k)  # type: ignore[misc]

    if lengths is None:
        return lambda b, h, q, k: seen(q, k)
    return lambda b, h, q, k: seen(q, k) & (k < lengths[b])


def _on(node: Expression, device: torch.device | str) -> Expression:
    if not node.args:
        return node
    value = node.value.to(device) if node.op == "lookup" else node.value
    args = tuple(_on(a, device) for a in node.args)
    return Expression(node.op, args, value, boolean=node.boolean, text=node.key)
