"""What the attention benchmark compares: rules, shapes, kernels, and the passes timed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from spanwise.attention import kernel_flops, plan, rule_attention

Rule = Callable[[Any, Any], Any] | None
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Work = Callable[[], object]
GLOBALS = 16
DENSE_MASK_PAIRS = 1 << 25  # the L x L mask is left out beyond these: 40 times as slow there
MOST_OPERATIONS = 1 << 39  # of a setting's training pass; some 8 s on two cores
MOST_OF_A_CONTENDER = 1 << 38


def rules(window: int) -> dict[str, tuple[tuple[Rule, ...], bool]]:
    """Return by name the rules of one layer each, None for full, and whether they are causal."""
    before, after = (window - 1) // 2, window // 2

    def around(q: Any, k: Any) -> Any:
        return (q - k <= before) & (k - q <= after)

    def local(q: Any, k: Any) -> Any:
        return q - k < window

    return {
        "window": ((local,), True),
        "chunked": ((lambda q, k: q // window == k // window,), True),
        "local_global": ((lambda q, k: local(q, k) | (k < GLOBALS) | (q < GLOBALS),), True),
        "interleaved": ((local, None), True),
        "window_both_ways": ((around,), False),
        "local_global_both_ways": (
            (lambda q, k: around(q, k) | (k < GLOBALS) | (q < GLOBALS),),
            False,
        ),
    }


@dataclass(frozen=True)
class Setting:
    """One row's inputs: a rule by name, and the shape (batch, heads, length, head_dim) of q."""

    rule: str
    length: int
    head_dim: int
    batch: int
    heads: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of q, k and v."""
        return self.batch, self.heads, self.length, self.head_dim

    def operations(self, pairs: float, phase: str) -> float:
        """Return the operations that a pass over so many pairs needs."""
        return kernel_flops(pairs, self.heads, self.head_dim, self.batch, train=phase == "train")


def contenders(
    setting: Setting, layers: tuple[Rule, ...], causal: bool, options: argparse.Namespace
) -> dict[str, list[Attend]]:
    """Return kernel name -> an attention function of q, k, v for each layer."""

    def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    def ours(kernel: str) -> list[Attend]:
        return [
            full
            if sees is None
            else partial(rule_attention, sees=sees, causal=causal, kernel=kernel)
            for sees in layers
        ]

    pairs = setting.length**2
    found = {"auto": ours("auto")}
    if options.device == "cpu":
        found["blocks"] = ours("blocks")
    if setting.operations(len(layers) * pairs / (1 + causal), "train") <= MOST_OF_A_CONTENDER:
        found["full"] = [full] * len(layers)
        if pairs * setting.batch <= DENSE_MASK_PAIRS:
            found["dense mask"] = ours("fused")
    if options.flex or options.device != "cpu":
        found["flex"] = ours("flex")
    if options.kernels is None:
        return found
    return {name: found[name] for name in found if name in options.kernels}


def works(layers: list[Attend], q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> dict[str, Work]:
    """Return the forward pass, and forward and backward, as works to be timed."""

    def forward() -> None:
        with torch.no_grad():
            for attend in layers:
                attend(q, k, v)

    def train() -> None:
        for attend in layers:
            torch.autograd.grad(attend(q, k, v), (q, k, v), grad)

    return {"forward": forward, "train": train}


def beyond(setting: Setting, layers: tuple[Rule, ...], causal: bool) -> bool:
    """Return whether a training pass needs more than the most operations.

    Shorter sequences are asked first: a plan of all that a far too long one sees fits no memory.
    """
    length = min(setting.length, 1 << 16)
    while True:
        pairs = sum(plan(sees, length, causal).pairs_seen for sees in layers)
        if setting.operations(pairs, "train") > MOST_OPERATIONS:
            return True
        if length == setting.length:
            return False
        length = min(2 * length, setting.length)
