"""The suite: small named checks, run on a factory, with and without pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from spanwise.check import cost, decoding, output, padding, precision, repeat, sight, softmax
from spanwise.check.subject import LENGTH, Failed, Skipped, Subject, inputs
from spanwise.errors import one_line
from variants.stack import is_stack, stack_of

Check = Callable[[Subject], None]
Status = Literal["passed", "failed", "skipped", "expected_failure"]

_MODULES = (output, sight, softmax, padding, repeat, precision, cost, decoding)
CHECKS: dict[str, Check] = {
    name: check
    for module in _MODULES
    for name, check in vars(module).items()
    if name.startswith("check_") and getattr(check, "__module__", "") == module.__name__
}
"""Every check by its name, in the order in which they are run."""


@dataclass(frozen=True)
class Result:
    """How one check ended; ``message`` says what differs where, or why it was skipped."""

    check: str
    status: Status
    message: str = ""


def check_variant(factory: Any, checks: Iterable[str] | None = None) -> list[Result]:
    """Return the result of every check of a variant's factory, or of the named ones.

    factory: a ``Variant`` class, or a callable, that takes the model's keywords; or that of a
    ``Stack``: then each of its different layers is checked, and ``check`` names the layer.
    """
    layers = layers_of(factory)
    return [
        _run(name, layer, prefix)
        for prefix, layer in layers.items()
        for name in (CHECKS if checks is None else checks)
    ]


def why_not_run(factory: Any) -> str:
    """Return why a layer's outputs are not even numbers when it is simply run; else an empty text.

    Such a layer fails nearly every check, for this one reason.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for case in Subject(factory).cases():
            try:
                finite = bool(case.layer(inputs(2, LENGTH)).isfinite().all())
                why = "" if finite else "returns NaN or infinity"
            except Exception as error:
                why = _raised(error)
            if why:
                return f"{case.words}, on 2 sequences of {LENGTH} in float64: {why}"
    return ""


def parametrize_with_checks(factories: Mapping[str, Any]) -> Any:
    """Return the pytest decorator that gives a test ``factory`` and ``check``, one pair a check.

    Use it so, in any package's tests::

        @parametrize_with_checks({"mine": Mine})
        def test_conformance(factory, check):
            assert_passes(factory, check)
    """
    import pytest

    pairs = [
        pytest.param(layer, check, id=f"{name}{prefix and '-' + prefix}-{check}")
        for name, factory in factories.items()
        for prefix, layer in layers_of(factory).items()
        for check in CHECKS
    ]
    return pytest.mark.parametrize(("factory", "check"), pairs)


def assert_passes(factory: Any, check: str) -> None:
    """Run one check as a pytest test: it fails, is skipped or fails as expected like one."""
    import pytest

    result = _run(check, factory)
    if result.status == "skipped":
        pytest.skip(result.message)
    if result.status == "expected_failure":
        pytest.xfail(result.message)
    assert result.status == "passed", f"{check}: {result.message}"


def layers_of(factory: Any) -> dict[str, Any]:
    """Return the factories to check by a prefix: one, or the different layers of a stack."""
    if not is_stack(factory):
        return {"": factory}
    different: dict[str, Any] = {}
    for layer in stack_of(factory).layers:
        shown = f"{getattr(layer, 'func', layer)}{getattr(layer, 'keywords', {})}"
        different.setdefault(shown, layer)
    return {f"layer {i}": layer for i, layer in enumerate(different.values())}


def _run(name: str, factory: Any, prefix: str = "") -> Result:
    shown = f"{prefix}: {name}" if prefix else name
    reasons = getattr(getattr(factory, "func", factory), "expected_failures", {})
    try:
        with torch.random.fork_rng(devices=[]):
            CHECKS[name](Subject(factory))
    except Skipped as skip:
        return Result(shown, "skipped", str(skip))
    except Failed as fault:
        message = str(fault)
    except Exception as error:
        message = _raised(error)
    else:
        if name in reasons:
            message = f"passes, but is expected to fail ({reasons[name]}): no longer so"
            return Result(shown, "failed", message)
        return Result(shown, "passed")
    if name in reasons:
        return Result(shown, "expected_failure", f"{reasons[name]} ({message})")
    return Result(shown, "failed", message)


def _raised(error: Exception) -> str:
    return f"raises {type(error).__name__}: {one_line(str(error))}"
