"""The one interface of a task: where batches come from, and what counts as right.

Shape suffixes: B batch, L sequence length, N targets in a batch, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

Split = Literal["train", "validation", "test"]
IGNORE = -100
"""The target of a position that asks for nothing (torch's own ignore_index)."""


@dataclass(frozen=True)
class Batch:
    """One batch of sequences and what is asked of them.

    tokens_BL: int64 token ids. targets_BL: int64 class at each position that asks for an answer,
    ``IGNORE`` elsewhere. lengths_B: int64 valid length of each sequence, or None where all are
    full. answers_BL: int64 position that holds what the target at this position needs, -1 where
    there is no target or no single such position; None where the task does not know.
    """

    tokens_BL: Tensor
    targets_BL: Tensor
    lengths_B: Tensor | None = None
    answers_BL: Tensor | None = None


class Task(ABC):
    """Sequences with targets, drawn from the cell's seed.

    Built by the harness as ``Task(length=..., seed=..., **own_parameters)``. A bad parameter
    raises ``spanwise.errors.ConfigError`` (or ValueError) in one line, from the constructor.

    Attributes: ``label`` (for tables and figures); ``length``; ``seed``; ``vocab_size`` (token
    ids are below it); ``n_classes`` (targets are below it); ``causal`` (True where a position may
    only look back); ``chance`` (accuracy of a guess); ``answer_span`` (how many positions, up to
    the answer's, are all needed to find it: 2 where the answer stands after its key);
    ``best_guess`` (accuracy of the best guess of one who sees all but the answer).
    """

    label: ClassVar[str] = ""
    length: int
    seed: int
    vocab_size: int
    n_classes: int
    causal: bool = True
    chance: float = 0.0
    answer_span: int = 1

    @abstractmethod
    def batches(self, split: Split, batch_size: int) -> Iterator[Batch]:
        """Yield batches: without end for ``train``; a fixed finite set for the other splits.

        The same (task, seed, split, batch_size) yields the same bytes on every machine, and no
        sequence is shared between splits.
        """

    def metrics(self, loss_N: Tensor, correct_N: Tensor) -> dict[str, float]:
        """Return this task's own figures over all targets of a split, beyond accuracy and loss.

        loss_N: cross-entropy in nats at each target; correct_N: bool. Keys are columns of
        ``cells.csv``.
        """
        return {}

    def marks(self, batch: Batch) -> dict[str, Tensor]:
        """Return pairs of positions of a batch that have a name, for looking at attention.

        For each name a bool (B, L, L), row = the position that looks, column = the one looked at:
        ``{"subject": ...}`` is True where the row is a verb and the column is its subject.
        """
        return {}

    def written(self, batch: Batch) -> list[list[str]]:
        """Return each sequence as a reader would see it, a text a token."""
        return [[str(token) for token in row] for row in batch.tokens_BL.tolist()]

    @property
    def best_guess(self) -> float:
        """Accuracy of the best guess at an answer that is out of sight; at least ``chance``."""
        return self.chance

    @property
    def n_targets(self) -> int | None:
        """Targets in a whole sequence where that number is fixed, else None."""
        return None


def targets_at(batch: Batch) -> Tensor:
    """Return the bool (B, L) mask of the positions that ask for an answer."""
    return batch.targets_BL != IGNORE


def count_targets(batch: Batch) -> int:
    """Return the number of targets in the batch."""
    return int(torch.count_nonzero(targets_at(batch)))
