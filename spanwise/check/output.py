"""Checks of what goes in and comes out: shapes, types, batches, gradients, arguments."""

from __future__ import annotations

from typing import Any

import torch

from spanwise.check.subject import (
    D_MODEL,
    EXACT,
    LENGTH,
    N_HEADS,
    Failed,
    Subject,
    expect_close,
    inputs,
)


def check_shape_dtype_device(subject: Subject) -> None:
    """The output has the input's shape, type and device."""
    for case in subject.cases():
        for dtype in (torch.float64, torch.float32):
            for shape in ((2, LENGTH, D_MODEL), (1, 1, D_MODEL)):
                x = torch.zeros(shape, dtype=dtype)
                y = case.layer.to(dtype)(x)
                for what in ("shape", "dtype", "device"):
                    found, expected = getattr(y, what), getattr(x, what)
                    if found != expected:
                        raise Failed(f"{case.words}: {what} {found}; expected {expected}")


def check_input_not_modified(subject: Subject) -> None:
    """The input tensor and the lengths are as they were."""
    for case in subject.cases(positions=True):
        x, lengths = inputs(2, LENGTH), torch.tensor([LENGTH, 9])
        case.layer(x, lengths)
        expect_close(x, inputs(2, LENGTH), f"{case.words}: the input after forward", 0)
        if lengths.tolist() != [LENGTH, 9]:
            raise Failed(f"{case.words}: lengths after forward are {lengths.tolist()}")


def check_strided_input(subject: Subject) -> None:
    """A view that is not contiguous gives what its copy gives."""
    for case in subject.cases():
        x = inputs(LENGTH, 2).transpose(0, 1)
        words = f"{case.words}: a transposed view against its copy"
        expect_close(case.layer(x), case.layer(x.contiguous()), words)


def check_batch_independence(subject: Subject) -> None:
    """A sequence's output does not depend on the others in its batch."""
    for case in subject.cases():
        x = inputs(3, LENGTH)
        together = case.layer(x)
        for i in range(3):
            words = f"{case.words}: sequence {i} alone against in a batch of 3"
            expect_close(together[i : i + 1], case.layer(x[i : i + 1]), words)


def check_gradients(subject: Subject) -> None:
    """Gradients of the input and every parameter agree with central differences."""
    step, lengths = 1e-5, torch.tensor([9, 6])
    for case in subject.cases(positions=True):
        x = inputs(2, 9).requires_grad_()
        toward = inputs(2, 9, seed=1)
        case.layer(x, lengths).mul(toward).sum().backward()
        named = [("the input", x), *case.layer.named_parameters()]
        for name, tensor in named:
            if not tensor.requires_grad:
                continue
            generator = torch.Generator().manual_seed(0)
            way = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
            if tensor.grad is None:
                raise Failed(f"{case.words}: {name} gets no gradient; expected one")
            sums = []
            for sign in (1, -1):
                with torch.no_grad():
                    tensor += sign * step * way
                    sums.append(float((case.layer(x, lengths) * toward).sum()))
                    tensor -= sign * step * way
            expected = (sums[0] - sums[1]) / (2 * step)
            found = float((tensor.grad * way).sum())
            if not abs(found - expected) <= 1e-6 * (1 + abs(expected)):
                raise Failed(
                    f"{case.words}: the gradient of {name} along a random direction is "
                    f"{found:.6g}; expected {expected:.6g} by central differences"
                )


def check_same_without_grad(subject: Subject) -> None:
    """Forward under no_grad and inference_mode gives what forward with gradients gives."""
    for case in subject.cases():
        x = inputs(2, LENGTH)
        expected = case.layer(x).detach()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                found = case.layer(x)
            expect_close(found.clone(), expected, f"{case.words}: under {mode.__name__}", EXACT)


def check_bad_arguments(subject: Subject) -> None:
    """A bad value of an own parameter is a ValueError that names it and says what is allowed."""
    bad: dict[str, list[Any]] = {}
    for name, value in subject.own.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            bad[name] = [-1, 2.5, True, "many"]
        elif isinstance(value, float):
            bad[name] = [float("nan"), "many"]
        elif isinstance(value, str):
            bad[name] = ["no such thing"]
    shared: dict[str, list[Any]] = {
        "n_heads": [0, -1],
        "d_model": [0],
        "positions": ["no such"],
        "dropout": [-0.1, 1.0],
    }
    for name, values in {**bad, **shared}.items():
        for value in values:
            try:
                subject.build(causal=subject.modes[0], **{name: value})
            except ValueError as error:
                if name not in str(error) or "allowed" not in str(error):
                    raise Failed(
                        f"{name}={value!r}: the message is {str(error)!r}; expected it to name "
                        f"{name} and say what is allowed"
                    ) from None
            except Exception as error:
                raise Failed(
                    f"{name}={value!r} raises {type(error).__name__}: {error}; expected "
                    "a ValueError that names it and says what is allowed"
                ) from None
            else:
                raise Failed(f"{name}={value!r} is accepted; expected a ValueError")


def check_unknown_argument(subject: Subject) -> None:
    """An argument that the variant does not have is refused, not swallowed."""
    try:
        subject.build(causal=subject.modes[0], no_such_argument=1)
    except (TypeError, ValueError) as error:
        if "no_such_argument" in str(error):
            return
        raise Failed(f"the message is {str(error)!r}; expected it to name the argument") from None
    raise Failed("no_such_argument=1 is accepted; expected a TypeError that names it")


def check_keeps_the_keywords(subject: Subject) -> None:
    """What the model gives is kept under the same names."""
    given: dict[str, Any] = {
        "d_model": 4 * N_HEADS,
        "n_heads": N_HEADS,
        "dropout": 0.25,
        "positions": "none",
    }
    for causal in subject.modes:
        layer = subject.build(causal=causal, **given)
        for name, value in {**given, "causal": causal}.items():
            if getattr(layer, name, None) != value:
                raise Failed(f"{name} is {getattr(layer, name, None)!r}; expected {value!r}")


def check_display(subject: Subject) -> None:
    """Label, colour and description are there for tables and figures, one line each."""
    layer = subject.build(causal=subject.modes[0])
    if not layer.label or "\n" in layer.describe():
        raise Failed(f"label is {layer.label!r}; expected a name of one line")
    if not (len(layer.colour) == 7 and layer.colour.startswith("#")):
        raise Failed(f"colour is {layer.colour!r}; expected one like '#0072B2'")
    for name, value in subject.own.items():
        if str(value) not in layer.describe():
            raise Failed(f"{layer.describe()!r} does not tell {name} {value}")
