"""How many steps a signal takes from one position to another, found by perturbing one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch

from spanwise.arguments import AtLeast, NotEmpty
from spanwise.errors import ConfigError
from spanwise.model import build_layer
from spanwise.probes import Found, Subject
from spanwise.seeds import torch_generator


@torch.no_grad()
def path(
    subject: Subject, *, at: Annotated[Sequence[Annotated[int, AtLeast(2)]], NotEmpty()]
) -> Found:
    """Count the steps from the first position to the last, for sequences of each length ``at``.

    One step is what one layer does at once (``Variant.step``): for attention the whole layer, for
    a recurrence the passage from one position to the next. Steps follow one another, each from
    the positions that the last one reached, until the first position has reached the last.

    Columns path_at_L; the table has length and steps.
    """
    causal = bool(subject.keywords["causal"])
    if not causal:
        raise ConfigError("probes.path: found a bidirectional task; allowed: one that is causal")
    keywords = {k: v for k, v in subject.keywords.items() if k in _LAYER}
    layer = build_layer(subject.factory, seed=int(subject.config["seed"]), **keywords).double()
    found = Found()
    for length in at:
        steps = _steps(layer.eval(), length, int(subject.config["seed"]))
        found.row[f"path_at_{length}"] = steps
        found.table.append({"length": length, "steps": steps})
    return found


SEEN = 1e-9
"""A smaller difference is rounding."""
_LAYER = ("d_model", "n_heads", "causal", "positions", "scale", "kv_heads")


def _steps(layer: Any, length: int, seed: int) -> int | None:
    """Return the least number of steps after which the first position reaches the last.

    After each step the positions that differ are perturbed afresh: what counts is that a signal
    arrives, not how much of it is left after many averages.
    """
    generator = torch_generator(seed, "probe", "path")
    x = torch.randn(1, length, layer.d_model, dtype=torch.float64, generator=generator)
    reached = torch.zeros(length, dtype=torch.bool)
    reached[0] = True
    still = layer.step(x)
    for step in range(1, length + 1):
        noise = torch.randn(x.shape, dtype=torch.float64, generator=generator)
        moved = layer.step(x + noise * reached[:, None])
        reached = reached | ((moved - still).abs().amax(dim=(0, 2)) > SEEN)
        if reached[-1]:
            return step
    return None
