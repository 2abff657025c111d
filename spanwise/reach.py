"""What a stack of layers can see, and so how well it could answer at all: its ceiling.

A query's answer can depend on a position only if a chain of layers leads there: the boolean
product of the layers' visibilities, with the short convolutions' spans between them. A task whose
answers stand at known positions then has a ceiling: the share of its test's answers within reach,
plus the best guess on the rest. Accuracy above it means that something leaks, far below it that
training ended too early.

The product is followed from each query down, as a few runs of neighbouring positions, so nothing
of size L x L is formed: the rules' own runs come from their block plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from spanwise.attention import plan
from spanwise.statistics import binomial_quantile, wilson
from tasks.interface import Task, targets_at

Integers = NDArray[np.int64]
CONFIDENCE = 0.999
SHORTFALL, SHARE = 0.03, 0.25
"""Accuracy that is surely this far below its ceiling, or by this share of it, is undertrained."""
_BATCH = 64
_TILE = 64


@dataclass(frozen=True)
class Runs:
    """Disjoint stretches of positions, ``first`` to ``last`` (R,), both included, ascending."""

    first: Integers
    last: Integers

    def holds(self, positions: Integers) -> NDArray[np.bool_]:
        """Return whether each position is in one of the stretches."""
        at = np.searchsorted(self.first, positions, side="right") - 1
        return (at >= 0) & (self.last[np.maximum(at, 0)] >= positions)


@dataclass(frozen=True)
class Hop:
    """One block, top to bottom: what a position reads, then the convolution's span around that.

    first, last (R,): stretches of keys seen, sorted by query; those of query i are at
    pointer[i] to pointer[i + 1]. before, after: positions that the convolution takes from.
    """

    pointer: Integers
    first: Integers
    last: Integers
    before: int = 0
    after: int = 0

    @property
    def length(self) -> int:
        """Number of positions."""
        return len(self.pointer) - 1

    def below(self, above: Runs) -> Runs:
        """Return the positions of the block's input that the given ones of its output read.

        Each position also keeps itself (the residual) and reads its own convolution, for its
        query. A position that sees no key is counted as if it did: that only ever adds reach.
        """
        slices = [
            slice(self.pointer[low], self.pointer[high + 1])
            for low, high in zip(above.first, above.last, strict=True)
        ]
        first = np.concatenate([above.first, *(self.first[rows] for rows in slices)])
        last = np.concatenate([above.last, *(self.last[rows] for rows in slices)])
        return _union(
            np.maximum(first - self.before, 0), np.minimum(last + self.after, self.length - 1)
        )


def hops(model: nn.Module, length: int) -> list[Hop]:
    """Return the blocks of a ``spanwise.model.Model`` at ``length``, from the last to the first.

    A variant that is no attention by rule (it has no ``groups``) is taken to see every position,
    or under causality every earlier one.
    """
    made: dict[Any, Hop] = {}
    for index, block in enumerate(model.blocks):  # type: ignore[arg-type]
        mixer, conv = block.mixer, block.conv
        kind = index % model.period  # type: ignore[operator]
        if kind not in made:
            rules = [
                (rule, causal)
                for _, rule, causal in (
                    mixer.groups() if hasattr(mixer, "groups") else [(None, None, mixer.causal)]
                )
            ]
            span = (conv.before, conv.after) if conv is not None else (0, 0)
            made[kind] = hop(rules, length, *span)
    return [made[i % model.period] for i in reversed(range(len(model.blocks)))]  # type: ignore


def hop(rules: Sequence[tuple[Any, bool]], length: int, before: int = 0, after: int = 0) -> Hop:
    """Return a block whose heads see by ``rules``, each (``sees`` or None, causal)."""
    rows, first, last = (
        np.concatenate(part)
        for part in zip(*(_runs_of(rule, length, causal) for rule, causal in rules), strict=True)
    )
    order = np.lexsort((first, rows))
    pointer = np.searchsorted(rows[order], np.arange(length + 1)).astype(np.int64)
    return Hop(pointer, first[order], last[order], before, after)


def reach(blocks: Sequence[Hop], query: int) -> Runs:
    """Return the positions of the input that the output at ``query`` can depend on.

    blocks: last to first, as ``hops`` returns them.
    """
    found = Runs(np.array([query]), np.array([query]))
    for block in blocks:
        found = block.below(found)
    return found


@dataclass(frozen=True)
class Ceiling:
    """Of ``n`` targets, ``reachable`` have their answer within reach; a guess at the others.

    ``guess`` is the probability of the best guess at an answer that is out of reach.
    """

    reachable: int
    n: int
    guess: float = 0.0

    @property
    def accuracy(self) -> float:
        """The expected accuracy of one who answers all that is in reach, and guesses the rest."""
        return (self.reachable + self.guess * (self.n - self.reachable)) / self.n

    def is_exceeded(self, correct: int) -> bool:
        """Return whether ``correct`` answers are more than one could know or guess.

        More than all within reach, and more right guesses than chance gives in 99.9% of cases.
        """
        lucky = binomial_quantile(0.5 + CONFIDENCE / 2, self.n - self.reachable, self.guess)
        return bool(correct > self.reachable + lucky)

    def is_missed(self, correct: int) -> bool:
        """Return whether ``correct`` answers are far fewer than the ceiling allows.

        The 99.9% Wilson interval of their share ends more than 0.03 below the ceiling, or below
        three quarters of it.
        """
        margin = min(SHORTFALL, SHARE * self.accuracy)
        return wilson(correct, self.n, CONFIDENCE)[1] < self.accuracy - margin


def ceiling(model: nn.Module, task: Task) -> Ceiling | None:
    """Return the ceiling of ``model`` on the test set of ``task``; None if answers' places are
    not known.
    """
    reachable = n = 0
    known: dict[tuple[int, int], NDArray[np.bool_]] = {}
    blocks: dict[int, list[Hop]] = {}
    for batch in task.batches("test", _BATCH):
        if batch.answers_BL is None:
            return None
        length = batch.tokens_BL.shape[1]
        if length not in blocks:
            blocks[length] = hops(model, length)
        at_BL = targets_at(batch)
        answers_N = batch.answers_BL[at_BL].numpy()
        queries_N = at_BL.nonzero()[:, 1].numpy()
        if (answers_N < 0).any():
            return None
        n += len(queries_N)
        for query in np.unique(queries_N):
            if (length, query) not in known:
                known[length, query] = answerable(
                    reach(blocks[length], query), length, task.answer_span
                )
            reachable += int(known[length, query][answers_N[queries_N == query]].sum())
    return Ceiling(reachable, n, task.best_guess)


def answerable(seen: Runs, length: int, answer_span: int = 1) -> NDArray[np.bool_]:
    """Return for each position (L,) whether an answer there is in reach: it and what it needs."""
    within = seen.holds(np.arange(length))
    found = within.copy()
    for back in range(1, answer_span):
        found[back:] &= within[:-back]
        found[:back] = False
    return found


def ceiling_columns(model: nn.Module, task: Task, accuracy: float) -> dict[str, Any]:
    """Return the columns of a row: ceiling, reachable, above_ceiling and undertrained.

    accuracy: as measured on the whole test set. reachable: the share of its answers in reach;
    ceiling: that and the best guess on the rest. Nothing where the task cannot say where its
    answers are.
    """
    found = ceiling(model, task)
    if found is None:
        return {}
    correct = round(accuracy * found.n)
    return {
        "ceiling": found.accuracy,
        "reachable": found.reachable / found.n,
        "above_ceiling": found.is_exceeded(correct),
        "undertrained": found.is_missed(correct),
    }


def _union(first: Integers, last: Integers) -> Runs:
    """Return the union of stretches in any order."""
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    gap = first[1:] > last[:-1] + 1
    return Runs(first[np.r_[True, gap]], last[np.r_[gap, True]])


def _runs_of(sees: Any, length: int, causal: bool) -> tuple[Integers, Integers, Integers]:
    """Return (query, first key, last key) of every stretch of keys seen, each (R,)."""
    everyone = np.arange(length)
    if sees is None:
        return everyone, np.zeros_like(everyone), everyone if causal else everyone * 0 + length - 1
    made = plan(sees, length, causal, _TILE)
    found: list[tuple[Integers, ...]] = [(everyone[:0],) * 3]
    for block in np.unique(made.rows):
        here = made.rows == block
        cols, pattern = made.cols[here], made.pattern[here]
        seen = np.ones((len(cols), _TILE, _TILE), bool)
        some = pattern >= 0
        if some.any():
            seen[some] = made.masks(pattern[some]).numpy()
        # (queries of the block, the columns it touches), framed by a column nobody sees; tiles
        # that are no neighbours are kept apart by one more such column.
        keys = (cols[:, None] * _TILE + np.arange(_TILE)).ravel()
        wide = np.pad(seen.transpose(1, 0, 2).reshape(_TILE, -1), ((0, 0), (1, 1)))
        apart = np.flatnonzero(np.diff(keys) > 1) + 1
        keys = np.insert(keys, apart, -1)
        wide = np.insert(wide, apart + 1, False, axis=1)
        change = np.diff(wide.astype(np.int8), axis=1)
        query, start = np.nonzero(change == 1)
        _, stop = np.nonzero(change == -1)
        found.append((block * _TILE + query, keys[start], keys[stop - 1]))
    rows, first, last = (np.concatenate(part) for part in zip(*found, strict=True))
    return rows, first, last
