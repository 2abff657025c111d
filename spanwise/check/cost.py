"""Checks that the work done follows the rule: a window that costs as much as full is found."""

from __future__ import annotations

import torch

from spanwise.attention import plan
from spanwise.check.subject import Case, Failed, Skipped, Subject, inputs
from spanwise.operations import Products
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
