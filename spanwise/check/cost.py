"""Checks that the work done follows the rule: a window that costs as much as full is found."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spanwise.attention import plan
from spanwise.check.subject import Case, Failed, Skipped, Subject, inputs
from variants.interface import AttentionVariant

LONG, LONG_WINDOW = 4096, 128
ALLOWED = 4.0
"""Operations done over operations claimed; tiles of 64 or 128 around a window stay below."""


def check_cost_follows_the_rule(subject: Subject) -> None:
    """At 4,096 positions the products really done are those of the pairs seen.

    Within a factor of 4, for tiles; else the rule touches nearly every tile, and its plan must
    say so (``dense_tiles``).
    """
    given = subject.configured | ({"window": LONG_WINDOW} if "window" in subject.own else {})
    for case in subject.cases(**given):
        layer = case.layer.float()
        if not isinstance(layer, AttentionVariant):
            raise Skipped("the variant is no attention")
        claimed = layer.flops(LONG)
        if claimed is None:
            raise Skipped("the variant counts no operations")
        with torch.no_grad(), Products() as done:
            layer(inputs(1, LONG).float())
        if done.operations > ALLOWED * claimed and not _says_dense(case):
            raise Failed(
                f"{case.words}, length {LONG}: {done.operations:.3g} operations are done, "
                f"{done.operations / claimed:.3g} times the {claimed:.3g} of the pairs seen; "
                f"expected at most {ALLOWED:.0f} times, or a plan that says dense_tiles"
            )
        if done.operations < claimed / 2.5:
            raise Failed(
                f"{case.words}, length {LONG}: {done.operations:.3g} operations are done; "
                f"expected about the {claimed:.3g} that are claimed"
            )


def _says_dense(case: Case) -> bool:
    rule = getattr(case.layer, "rule", None)
    return rule is not None and plan(rule, LONG, case.causal, 64).dense_tiles


class Products(TorchDispatchMode):
    """Counts the operations of matrix products and fused attention, a multiply-add as 2."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` and add what it multiplies."""
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm"):
            self.operations += 2 * args[0].numel() * args[1].shape[-1]
        elif name in ("addmm", "baddbmm"):
            self.operations += 2 * args[1].numel() * args[2].shape[-1]
        elif "scaled_dot_product" in name and "backward" not in name:
            q, k, v = args[:3]
            pairs = math.prod(q.shape[:-1]) * k.shape[-2]
            self.operations += 2 * pairs * (q.shape[-1] + v.shape[-1])
        return out
