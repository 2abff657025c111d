"""What somebody's function and somebody's module have in common as variants.

The target is found, built, given its arguments, called, measured and rehearsed here; what shape
its inputs have is for ``variants/external.py`` to say.

Shape suffixes: B batch, L sequence length, H heads, D head_dim.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spanwise import influence
from spanwise.model import initialise
from variants.interface import Variant, one_of
from variants.rehearsal import LENGTHS, rehearse
from variants.target import (
    build,
    call,
    check_arguments,
    check_call,
    check_like,
    load,
    versions,
)

DIRECTIONS = ("causal", "bidirectional")


class External(Variant):
    """What functions and modules have in common: the target, and what it is given."""

    decisions: ClassVar[tuple[str, ...]] = ("d_model", "n_heads", "head_dim", "causal", "scale")
    """What of the model's decisions a target can be given."""
    inputs: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors that it is called with, by position."""

    def _name_target(
        self,
        target: str,
        keywords: Mapping[str, Any] | None,
        given: Any,
        direction: str | None,
    ) -> None:
        """Keep the target with its arguments; raise ValueError for what it does not take."""
        self.target, self.direction = target, direction
        load(target)
        constants, decided = _plain(keywords or {}), named(given)
        for ours in decided.values():
            one_of("given", ours, self.decisions)
        if "causal" in decided.values():
            if direction is not None:
                raise ValueError(
                    f"direction: found {direction!r}, but {target} is given causal; allowed: null"
                )
        elif direction is None:
            raise ValueError(
                f"direction: found null; allowed: {' or '.join(DIRECTIONS)}, whichever {target} "
                "is, or a keyword in given that takes causal"
            )
        elif self.causal != (one_of("direction", direction, DIRECTIONS) == "causal"):
            raise ValueError(
                f"causal: found {self.causal} (it is the task's), but {target} is {direction}; "
                f"allowed: {not self.causal}"
            )
        for name in constants:
            if name in decided:
                raise ValueError(
                    f"keywords.{name}: found {constants[name]!r}, but given decides it; "
                    "allowed: one of the two"
                )
        self.arguments = {**constants, **{n: getattr(self, ours) for n, ours in decided.items()}}
        self._decided = decided
        self._writes: dict[bool, bool] = {}

    def _make(self) -> Callable[..., Any]:
        """Return what is called: the target, or the instance of a class.

        Raises ValueError where it cannot be built or called so.
        """
        found: Any = load(self.target)
        check: Any = functools.partial(
            check_arguments, found, self.target, self.arguments, decided=self._decided
        )
        if not inspect.isclass(found):
            check(inputs=self.inputs)
            return functools.partial(found, **self.arguments)
        check()
        made: Callable[..., Any] = build(found, self.target, self.arguments)
        check_call(made, self.target, self.inputs)
        return made

    def _ask(self, made: Callable[..., Any], *tensors: Tensor) -> Tensor:
        """Return the target's output, of the shape and type that it must have.

        The first call, in training and in evaluation, gets copies and tells whether it writes to
        them; one that does gets copies ever after, and what they cost is its own.
        """
        known = self._writes.get(self.training)
        copied = known is not False or versions(tensors) is None
        given = tuple(tensor.clone() for tensor in tensors) if copied else tensors
        before = versions(given)
        out = call(made, self.target, dict(zip(self.inputs, given, strict=True)), _shape(given))
        wrote = versions(given) != before
        if wrote and not copied:
            raise ValueError(
                f"target: {self.target} wrote to its inputs, as it did not when it was first "
                "called; allowed: to do so always, or never"
            )
        if before is not None:
            self._writes[self.training] = bool(known) or wrote
        check_like(out, self.target, tensors, self.trains_on_cpu)
        return out

    def _steady(self, dtype: torch.dtype = torch.float64) -> Callable[..., Tensor]:
        """Return a run of a target made anew: on the CPU, same weights, same draws, no gradients.

        It may write to its inputs: they are copied.
        """
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = self._make()
        if isinstance(made, nn.Module):
            initialise(made, seed=0)  # as a layer's: what starts at zero would hide what it sees
            made = made.to(dtype).eval()

        def run(*tensors: Tensor) -> Tensor:
            given = {n: t.clone() for n, t in zip(self.inputs, tensors, strict=True)}
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return call(made, self.target, given, _shape(tensors))

        return run

    def _drawn(self, length: int, number: int) -> tuple[Tensor, ...]:
        """Return inputs of one sequence, float64 and standard normal."""
        raise NotImplementedError

    def rehearse(self, length: int, dtype: torch.dtype) -> None:
        """Raise ValueError where a short run shows that the target is not what it should be."""
        claim = None
        if self.causal:
            claim = "direction: found causal"
            for name, ours in self._decided.items():
                claim = f"given.{name}: found causal, True" if ours == "causal" else claim
        key = (*self._key(min(length, LENGTHS[0])), claim, dtype)
        if key not in _rehearsed:
            run = self._steady(dtype)

            def judged(*tensors: Tensor) -> Tensor:
                out = run(*tensors)
                check_like(out, self.target, tensors, trains=False)
                return out

            def drawn(length: int, number: int) -> tuple[Tensor, ...]:
                return tuple(tensor.to(dtype) for tensor in self._drawn(length, number))

            _rehearsed[key] = rehearse(judged, drawn, self.target, claim, length)
        if _rehearsed[key]:
            raise ValueError(_rehearsed[key])

    def _key(self, length: int) -> tuple[Any, ...]:
        """Return what a measurement of the target depends on."""
        arguments = json.dumps(self.arguments, sort_keys=True, default=repr)
        return (type(self), self.target, arguments, self.d_model, self.n_heads, self.causal, length)

    def cache(self, horizon: int, batch: int = 1) -> None:
        """Return None: what is external has no memory to generate from."""
        return


THRESHOLD = 1e-11
"""A difference above this of float64 outputs of order 1 is an influence, below it is rounding."""


def unpadded(
    run: Callable[..., Tensor],
    tensors: tuple[Tensor, ...],
    lengths: Tensor | None,
    causal: bool,
) -> Tensor:
    """Return ``run`` of tensors (B, ..., L, D), each sequence up to its length, 0 past it.

    What is causal meets padding only after all that counts, so it runs at once, and what it
    returns past the length is dropped by whoever calls. Else sequences of a length run together.
    """
    if lengths is None or causal:
        return run(*tensors)
    whole = tensors[-1].shape[-2]
    rows, outs = [], []
    for n in lengths.unique().tolist():
        chosen = (lengths == n).nonzero().flatten().to(tensors[0].device)
        cut = tuple(tensor[chosen][..., :n, :] for tensor in tensors)
        out = run(*cut) if n else torch.zeros_like(cut[-1])
        rows.append(chosen)
        outs.append(nn.functional.pad(out, (0, 0, 0, whole - n)))
    return torch.cat(outs)[torch.cat(rows).argsort()]


def named(given: Any) -> dict[str, str]:
    """Return the target's keyword -> our name, from names, {keyword: name} or a list of both."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {given: given}
    if isinstance(given, Mapping):
        return {str(keyword): str(ours) for keyword, ours in given.items()}
    return {keyword: ours for part in given for keyword, ours in named(part).items()}


def measured(layer: Any, length: int) -> float:
    """Return the mean number of keys that a query of a wrapped layer sees, found by disturbing."""
    key = layer._key(length)
    if key not in _counts:
        run, given, other = layer._probe(length)
        _counts[key] = influence.keys_per_query(run, given, other, THRESHOLD)
    return _counts[key]


_counts: dict[tuple[Any, ...], float] = {}
_rehearsed: dict[tuple[Any, ...], str] = {}


def _shape(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Return the shape of the output for a target's inputs: their last one's width."""
    return (*tensors[0].shape[:-1], tensors[-1].shape[-1])


def normal(number: int, shape: tuple[int, ...]) -> Tensor:
    """Return standard normal float64 numbers, always the same for a ``number`` and a shape."""
    generator = torch.Generator().manual_seed(7000 + number)
    return torch.randn(shape, dtype=torch.float64, generator=generator, device="cpu")


def _plain(value: Any) -> Any:
    """Return a config's mappings and lists as plain ones, to be handed to strangers."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)) or type(value).__name__ == "ListConfig":
        return [_plain(inner) for inner in value]
    return value
