"""A target's rehearsal: a short run that shows whether it is what its config says.

It is held before any cell starts, on the CPU, and takes milliseconds. What it cannot show is left
to the cells: a target may want another length, or another device.

Shape suffixes: B batch, L sequence length, H heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LENGTHS = (256, 64, 16)
"""Where a target is tried until it runs: first at its cell's length, if that is below these."""
CUTS = 8
"""Positions of a sequence from which on all inputs are disturbed, one after another."""

Run = Callable[..., Tensor]
Inputs = tuple[Tensor, ...]


def rehearse(
    run: Run, inputs: Callable[[int, int], Inputs], target: str, claim: str | None, length: int
) -> str:
    """Return what a short run shows to be wrong, in one line, or an empty text.

    run: gives outputs (1, ..., L, D), always the same for the same inputs; its RuntimeErrors are
    of the target's own, a ValueError of it is what is wrong. inputs: random normal ones
    (1, ..., L, D) of a length and a number. target: its path. claim: what says that it is causal,
    None where nothing does. length: the cell's.
    """
    raised: list[RuntimeError] = []
    for tried in dict.fromkeys((min(length, LENGTHS[0]), *LENGTHS)):
        given, other = inputs(tried, 0), inputs(tried, 1)
        try:
            out = run(*given)
            wrong = _not_finite(out, target)
            if not wrong and claim is not None:
                wrong = _ahead(run, given, other, out, target, claim)
        except RuntimeError as error:
            raised.append(error)
        except ValueError as error:
            return str(error)
        else:
            return wrong
    # No other length or device helps against a wrong number or kind of arguments.
    if all(isinstance(error.__cause__, TypeError) for error in raised):
        return f"{raised[0]}; allowed: what can be called so"
    return ""


def _not_finite(out: Tensor, target: str) -> str:
    bad = out.isfinite().logical_not().movedim(-2, 0).flatten(1).any(1)
    if not bad.any():
        return ""
    return (
        f"target: {target} returned NaN or infinity at position {int(bad.nonzero()[0])} of "
        f"{len(bad)}, for random normal inputs; allowed: finite numbers"
    )


def _ahead(run: Run, given: Inputs, other: Inputs, out: Tensor, target: str, claim: str) -> str:
    """Return in words where an output follows later inputs; an empty text if none does.

    A change counts above what rounding makes where a sum runs over all positions, as in a
    transform of the whole sequence.
    """
    length = out.shape[-2]
    rounding = torch.finfo(out.dtype).eps ** 0.5 * float(out.abs().max())
    if float((run(*given) - out).abs().max()) > rounding:
        return ""  # no two runs are alike: a change would show nothing
    cuts = torch.linspace(1, max(1, length - 1), CUTS).int() | 1  # odd: the edge of no block
    for cut in cuts.unique().tolist():
        disturbed = [tensor.clone() for tensor in given]
        for tensor, content in zip(disturbed, other, strict=True):
            tensor[..., cut:, :] = content[..., cut:, :]
        changes = (run(*disturbed) - out).abs().movedim(-2, 0).flatten(1).amax(1)[:cut]
        leaks = (changes > rounding).nonzero()
        if len(leaks):
            return (
                f"{claim}, but {target} looks ahead: the output at position {int(leaks[0])} of "
                f"{length} changes with the inputs from {cut} on; allowed: a target that looks "
                "back only, or direction bidirectional where the task is not causal"
            )
    return ""
