"""What a check works on: a variant's factory, built small, fed, disturbed and compared.

Shape suffixes: B batch, L sequence length, H heads, M d_model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spanwise.influence import sight as influence_on
from spanwise.model import build_layer
from spanwise.positions import NAMES, ON_EMBEDDINGS
from variants.interface import Variant

D_MODEL, N_HEADS = 8, 2
LENGTH = 23
"""A prime: a multiple of no window and no tile."""
WINDOW = 5
EXACT = 1e-10
"""Tolerance between two float64 computations of the same thing."""
CHANGED = 1e-11
"""A difference of outputs above this is an influence, below it is rounding."""


class Failed(Exception):
    """A check found a fault; the message names the first position that differs."""


class Skipped(Exception):
    """A check does not apply to this variant; the message says why."""


@dataclass(frozen=True)
class Case:
    """One layer under test and, in words, how it was built."""

    layer: Variant
    words: str

    @property
    def causal(self) -> bool:
        """Whether the layer may only look back."""
        return self.layer.causal


class Subject:
    """A variant's factory, and small layers made from it.

    Checks run on sequences of some twenty positions, so a ``window`` of the variant is set to 5;
    other arguments that the variant wants smaller it declares in ``check_parameters``.
    """

    def __init__(self, factory: Any):
        self.factory = factory
        self.small: dict[str, Any] = {}
        self.modes = [causal for causal in (True, False) if self._builds(causal)]
        if not self.modes:
            self.build()  # raises what keeps it from being built
        base = self.build(causal=self.modes[0])
        self.kind = type(base)
        self.configured = base.own_parameters()
        if "window" in self.configured and self._takes(window=WINDOW):
            self.small["window"] = WINDOW
        self.small |= getattr(base, "check_parameters", {})
        self.own = self.build(causal=self.modes[0]).own_parameters()

    def build(self, *, seed: int = 0, dtype: torch.dtype = torch.float64, **given: Any) -> Variant:
        """Return a layer in evaluation mode; ``given`` overrides the small defaults.

        One that does not train on the CPU has no parameter that asks for a gradient.
        """
        keywords: dict[str, Any] = {
            "d_model": D_MODEL,
            "n_heads": N_HEADS,
            "causal": True,
            "positions": "none",
        }
        keywords |= {"dropout": 0.0, "scale": None}
        layer = build_layer(self.factory, seed=seed, **keywords | self.small | given)
        return layer.requires_grad_(layer.trains_on_cpu).to(dtype).eval()

    def cases(self, positions: bool = False, **given: Any) -> Iterator[Case]:
        """Yield a layer causal and one bidirectional, as far as the variant is made for both.

        positions: also with each position encoding that acts inside a variant.
        """
        inside = [n for n in NAMES if n not in ON_EMBEDDINGS and n in self.kind.positions_allowed]
        for causal in self.modes:
            for name in ["none", *(inside if positions else [])]:
                words = "causal" if causal else "bidirectional"
                words += "" if name == "none" else f", {name}"
                words += "".join(f", {key} {value}" for key, value in given.items())
                try:
                    layer = self.build(causal=causal, positions=name, **given)
                except ValueError:
                    if name == "none":
                        raise
                    continue  # an encoding that this variant has for one direction only
                yield Case(layer, words)

    def need(self, attribute: str) -> Any:
        """Return the variant's own parameter, or skip the check where it has none."""
        if attribute not in self.own:
            raise Skipped(f"the variant has no {attribute}")
        return self.own[attribute]

    def _builds(self, causal: bool) -> bool:
        try:
            self.build(causal=causal)
        except ValueError as error:
            if "causal" not in str(error):
                raise
            return False
        return True

    def _takes(self, **given: Any) -> bool:
        try:
            layer = self.build(causal=self.modes[0], **given)
        except (TypeError, ValueError):
            return False
        return all(getattr(layer, name) == value for name, value in given.items())


def inputs(batch: int, length: int, seed: int = 0, d_model: int = D_MODEL) -> Tensor:
    """Return standard normal inputs (B, L, d_model) in float64."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(batch, length, d_model, dtype=torch.float64, generator=generator)


def influence(layer: Variant, length: int) -> Tensor:
    """Return bool (L, L): whether the output at row q changes with the input at column k."""
    return influence_on(layer, [inputs(1, length)], [inputs(1, length, seed=1)], CHANGED)


def sight(case: Case, length: int) -> Tensor:
    """Return bool (L, L), row = query: what the layer says it sees; skip where it does not say."""
    seen = case.layer.visibility(length)
    if seen is None:
        raise Skipped("the variant does not say what it sees")
    return seen.cpu()


def at(index: tuple[int, ...], names: tuple[str, ...]) -> str:
    """Return a place in words, such as 'sequence 0, position 7'."""
    return ", ".join(f"{name} {i}" for name, i in zip(names, index, strict=False))


def expect_close(
    found: Tensor | None,
    expected: Tensor | None,
    words: str,
    tolerance: float | Tensor = EXACT,
    names: tuple[str, ...] = ("sequence", "position", "feature"),
) -> None:
    """Fail where ``found`` differs from ``expected``, naming the first place in reading order."""
    if found is None or expected is None:
        raise Failed(f"{words}: found {found}; expected {expected}")
    if found.shape != expected.shape:
        raise Failed(f"{words}: shape {tuple(found.shape)}; expected {tuple(expected.shape)}")
    found, expected = found.detach(), expected.detach()
    # NaN compares as different to everything.
    wrong = ~((found - expected).abs() <= tolerance)
    if wrong.any():
        index = tuple(int(i) for i in wrong.nonzero()[0])
        raise Failed(
            f"{words}: first differs at {at(index, names)}: "
            f"found {found[index].item():.6g}; expected {expected[index].item():.6g}"
        )


def expect_sight(found: Tensor, expected: Tensor, words: str) -> None:
    """Fail at the first query whose keys, bool (L, L), are not the expected ones."""
    wrong = (found != expected).any(-1)
    if wrong.any():
        q = int(wrong.nonzero()[0])
        k = int((found[q] != expected[q]).nonzero()[0])
        what = "is not changed" if expected[q, k] else "is changed"
        raise Failed(
            f"{words}: query {q} {what} by key {k}; "
            f"expected it to see {ranges(expected[q])}, it sees {ranges(found[q])}"
        )


def ranges(row: Tensor) -> str:
    """Return the True places of a bool row in words, such as 'keys 0, 3 to 7'."""
    runs: list[list[int]] = []
    for k in row.nonzero().flatten().tolist():
        if runs and k == runs[-1][1] + 1:
            runs[-1][1] = k
        else:
            runs.append([k, k])
    if not runs:
        return "no key"
    return "keys " + ", ".join(f"{a} to {b}" if a < b else f"{a}" for a, b in runs)
