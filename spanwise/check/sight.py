"""Checks of who sees whom, by disturbing inputs and looking at outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from spanwise.check.subject import (
    CHANGED,
    EXACT,
    LENGTH,
    Case,
    Failed,
    Skipped,
    Subject,
    expect_close,
    expect_sight,
    influence,
    inputs,
    ranges,
    sight,
)
from spanwise.positions import NAMES, ON_EMBEDDINGS


def check_causality(subject: Subject) -> None:
    """No output changes when every later position does."""
    if True not in subject.modes:
        raise Skipped("the variant is bidirectional")
    for case in subject.cases(positions=True):
        if not case.causal:
            continue
        x = inputs(1, LENGTH).repeat(LENGTH, 1, 1)
        disturbed, other = x.clone(), inputs(1, LENGTH, seed=1)[0]
        for p in range(LENGTH):
            disturbed[p, p:] = other[p:]
        with torch.no_grad():
            changes = (case.layer(disturbed) - case.layer(x)).abs().amax(-1)
        early = torch.arange(LENGTH) < torch.arange(LENGTH)[:, None]
        leaks = ~(changes <= CHANGED) & early
        if leaks.any():
            p, q = leaks.nonzero()[0].tolist()
            raise Failed(
                f"{case.words}: the output at position {q} changes by {changes[p, q]:.3g} when "
                f"positions {p} to {LENGTH - 1} do; expected no change"
            )


def check_receptive_field(subject: Subject) -> None:
    """Each query's output changes with exactly the keys that the rule lets it see."""
    for window in (None, 1, 2, 4) if "window" in subject.own else (None,):
        given = {} if window is None else {"window": window}
        for case in subject.cases(positions=window is None, **given):
            expected, found = sight(case, LENGTH), influence(case.layer, LENGTH)
            # Its own input also makes the query, so it tells of the key only where it is seen.
            own = torch.eye(LENGTH, dtype=torch.bool) & ~expected
            expect_sight(found & ~own, expected, f"{case.words}, length {LENGTH}")


def check_keys_per_query(subject: Subject) -> None:
    """The stated mean number of keys is that found by disturbing inputs."""
    for case in subject.cases():
        for length in (1, 4, LENGTH):
            stated = case.layer.keys_per_query(length)
            if stated is None:
                raise Skipped("the variant counts no keys")
            own = torch.eye(length, dtype=torch.bool) & ~sight(case, length)
            counted = float((influence(case.layer, length) & ~own).sum()) / length
            if abs(stated - counted) > EXACT:
                raise Failed(
                    f"{case.words}, length {length}: {stated:.6g} keys per query are stated; "
                    f"expected {counted:.6g}, as counted by perturbation"
                )


def check_window(subject: Subject) -> None:
    """A window of w: every query sees at most w keys, neighbours, itself included, and w are met.

    Keys beyond the window that the variant declares (``beyond_window``: global tokens and such)
    are left out. Within any w queries in a row, away from the ends, one must see all w.
    """
    subject.need("window")
    for window in (1, 2, 4, 5):
        for case in subject.cases(window=window):
            place = torch.arange(LENGTH)
            beyond = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
            beyond |= case.layer.beyond_window(place[:, None], place)
            _expect_window(case, influence(case.layer, LENGTH) & ~beyond, beyond, window)


def _expect_window(case: Case, found: Tensor, beyond: Tensor, window: int) -> None:
    step = getattr(case.layer, "dilation", 1)
    reach = (window - 1) * step
    since, met = 0, False
    for q in range(reach, LENGTH if case.causal else LENGTH - reach):
        if beyond[q, q - reach : q + 1 + (0 if case.causal else reach)].any():
            continue  # what is seen here for another reason hides the window
        keys = found[q].nonzero().flatten()
        words = f"{case.words}: query {q} sees {len(keys)} keys ({ranges(found[q])})"
        if len(keys) > window:
            raise Failed(f"{words}; expected a window of {window}, itself included")
        if not found[q, q]:
            raise Failed(f"{words}; expected it to see itself")
        if (keys.diff() != step).any():
            raise Failed(f"{words}; expected neighbours, {step} apart")
        met |= len(keys) == window
        since = 0 if len(keys) == window else since + 1
        if since >= window * step:
            raise Failed(f"{words}; expected {window}, which no query near it sees either")
    if not met:
        raise Failed(f"{case.words}: no query sees {window} keys; expected a window of {window}")


def check_global_tokens(subject: Subject) -> None:
    """Global tokens, and no others, are seen by every query and see every key.

    As far as causality allows; all else is seen as without them.
    """
    subject.need("global_tokens")
    window = subject.own.get("window", 5)
    plain = {case.words: influence(case.layer, LENGTH) for case in subject.cases(global_tokens=0)}
    for count in sorted({1, window - 1, window, window + 1, LENGTH}):
        for case in subject.cases(global_tokens=count):
            place = torch.arange(LENGTH)
            expected = (place < count) | (place[:, None] < count)
            if case.causal:
                expected &= place <= place[:, None]
            expected |= plain[case.words.replace(f"tokens {count}", "tokens 0")]
            expect_sight(influence(case.layer, LENGTH), expected, case.words)


def check_permutation(subject: Subject) -> None:
    """Without positions, what sees everything is blind to order; with positions it is not."""
    if False not in subject.modes:
        raise Skipped("the variant is causal")
    layer = subject.build(causal=False)
    seen = layer.visibility(LENGTH)
    if seen is None or not seen.all():
        raise Skipped("the variant does not see everything")
    x = inputs(2, LENGTH)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(0))
    expect_close(layer(x[:, order]), layer(x)[:, order], "the outputs of permuted inputs")
    for name in (n for n in NAMES if n not in ON_EMBEDDINGS):
        try:
            placed = subject.build(causal=False, positions=name)
        except ValueError:
            continue
        if (placed(x[:, order]) - placed(x)[:, order]).abs().max() < 1e-6:
            raise Failed(
                f"positions {name}: permuting the inputs permutes the outputs; expected not"
            )
