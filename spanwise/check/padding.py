"""Checks of ragged batches: what lies past a sequence's length is never used and outputs 0."""

from __future__ import annotations

import torch

from spanwise.check.subject import LENGTH, Failed, Subject, at, expect_close, inputs

LENGTHS = (LENGTH, 14, 5, 1, 0)


def check_padding_changes_nothing(subject: Subject) -> None:
    """Content past a sequence's length, NaN and infinity included, changes no output."""
    lengths = torch.tensor(LENGTHS)
    padded = torch.arange(LENGTH) >= lengths[:, None]
    for case in subject.cases(positions=True):
        x = inputs(len(LENGTHS), LENGTH)
        expected = case.layer(x, lengths)
        for filler in (1e3, float("inf"), float("nan")):
            found = case.layer(x.masked_fill(padded[..., None], filler), lengths)
            expect_close(found, expected, f"{case.words}: output with {filler} in the padding")


def check_padded_outputs_are_zero(subject: Subject) -> None:
    """Outputs past a sequence's length are exactly 0."""
    lengths = torch.tensor(LENGTHS)
    padded = torch.arange(LENGTH) >= lengths[:, None]
    for case in subject.cases(positions=True):
        y = case.layer(inputs(len(LENGTHS), LENGTH), lengths)
        expected = y.detach().masked_fill(padded[..., None], 0)
        expect_close(y, expected, f"{case.words}: output past the length", 0)


def check_padded_equals_alone(subject: Subject) -> None:
    """A sequence in a padded batch gives what it gives alone."""
    lengths = torch.tensor(LENGTHS)
    for case in subject.cases(positions=True):
        x = inputs(len(LENGTHS), LENGTH)
        together = case.layer(x, lengths)
        for i, n in enumerate(LENGTHS):
            if n:
                words = f"{case.words}: a sequence of {n} in a padded batch against alone"
                expect_close(together[i : i + 1, :n], case.layer(x[i : i + 1, :n]), words)
        whole = torch.full_like(lengths, LENGTH)
        expect_close(
            case.layer(x, whole), case.layer(x), f"{case.words}: full lengths against None"
        )


def check_padding_gets_no_gradient(subject: Subject) -> None:
    """No gradient reaches content past a sequence's length, and all others are finite."""
    lengths = torch.tensor(LENGTHS)
    padded = torch.arange(LENGTH) >= lengths[:, None]
    for case in subject.cases(positions=True):
        x = inputs(len(LENGTHS), LENGTH).requires_grad_()
        case.layer(x, lengths).square().sum().backward()
        assert x.grad is not None
        wrong = (x.grad != 0) & padded[..., None] | ~torch.isfinite(x.grad)
        if wrong.any():
            index = tuple(wrong.nonzero()[0].tolist())
            raise Failed(
                f"{case.words}: the input's gradient at {at(index, ('sequence', 'position'))} is "
                f"{x.grad[index]:.3g}; expected 0 past the length of {LENGTHS[index[0]]}"
            )
