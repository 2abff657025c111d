"""Several look-ups at once: the values of two or more keys, asked for in one answer.

A sequence starts with n pairs ``k1 v1 k2 v2 ... kn vn``; then come questions, each of
``relations`` different keys in a row. At the question's last key the model must say all their
values, in the order asked, as one class. So one position has to find several others at once, and
to keep apart which value belongs to which key: the case that several heads are made for. (Recall
of pairs is multi-query associative recall, Arora et al. 2023, https://arxiv.org/abs/2312.04927.)

Shape suffixes: B batch, L sequence length, P pairs, Q questions, R relations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from spanwise.errors import ConfigError
from spanwise.seeds import torch_generator
from tasks.interface import IGNORE, Batch, Split, Task
from tasks.splits import belongs

MOST_CLASSES = 4096


class Lookups(Task):
    """Answers that need several keys' values at once, with fresh training sequences.

    Args:
        length: tokens in a sequence: 2 * pairs, then as many questions as fit.
        seed: the cell's seed.
        pairs: key-value pairs in a sequence, at least ``relations``.
        relations: keys a question asks for.
        keys, values: how many keys and values there are; values may repeat within a sequence.
        validation_size, test_size: sequences in these two fixed sets.

    Raises:
        ConfigError: a size that does not fit, in one line that says what would.
    """

    def __init__(
        self,
        length: int,
        seed: int,
        pairs: int = 6,
        relations: int = 2,
        keys: int = 16,
        values: int = 8,
        validation_size: int = 256,
        test_size: int = 500,
    ):
        for name, value, least in (
            ("pairs", pairs, relations),
            ("relations", relations, 1),
            ("keys", keys, pairs),
            ("values", values, 2),
            ("validation_size", validation_size, 1),
            ("test_size", test_size, 1),
        ):
            if value < least:
                raise ConfigError(f"task.{name}={value}: must be at least {least}")
        if length < 2 * pairs + relations:
            raise ConfigError(
                f"length={length}: {pairs} pairs and a question of {relations} keys need at "
                f"least {2 * pairs + relations} tokens"
            )
        if values**relations > MOST_CLASSES:
            raise ConfigError(
                f"task.values={values}: {relations} of them make {values**relations} different "
                f"answers; allowed: up to {MOST_CLASSES}"
            )
        if math.perm(keys, pairs) * values**pairs < 64:
            raise ConfigError(
                f"task.keys={keys}: too few different sequences of {pairs} pairs to keep train, "
                "validation and test apart; at least 64 are needed"
            )
        self.length, self.seed = length, seed
        self.pairs, self.relations, self.keys, self.values = pairs, relations, keys, values
        self.questions = (length - 2 * pairs) // relations
        self.vocab_size = 1 + keys + values
        self.n_classes = values**relations
        self.chance = 1 / self.n_classes
        self.sizes = {"validation": validation_size, "test": test_size}

    @property
    def n_targets(self) -> int:
        """Questions in a sequence."""
        return self.questions

    def batches(self, split: Split, batch_size: int) -> Iterator[Batch]:
        """Yield batches of whole sequences."""
        content = torch_generator(self.seed, "lookups", split, "content")
        asked = torch_generator(self.seed, "lookups", split, "questions")
        left = self.sizes.get(split)
        while left is None or left > 0:
            size = batch_size if left is None else min(batch_size, left)
            keys_BP, values_BP = self._pairs(split, size, content)
            draws = torch.rand(size, self.questions, self.pairs, generator=asked)
            pair_BQR = draws.topk(self.relations).indices
            yield self._write(keys_BP, values_BP, pair_BQR)
            left = None if left is None else left - size

    def marks(self, batch: Batch) -> dict[str, Tensor]:
        """Return, for each question's last key, where the value of its r-th key stands."""
        size, length = batch.tokens_BL.shape
        marks = {}
        keys_BP = batch.tokens_BL[:, 0 : 2 * self.pairs : 2]
        last = self._last_of_questions()
        for r in range(self.relations):
            asked_BQ = batch.tokens_BL[:, last - (self.relations - 1 - r)]
            pair_BQ = (asked_BQ[..., None] == keys_BP[:, None]).int().argmax(-1)
            pairs_BLL = torch.zeros(size, length, length, dtype=torch.bool)
            rows = torch.arange(size)[:, None]
            pairs_BLL[rows, last, 2 * pair_BQ + 1] = True
            marks[f"value_{r + 1}"] = pairs_BLL
        return marks

    def written(self, batch: Batch) -> list[list[str]]:
        """Return keys as k1, k2 ..., values as v1, v2 ..., filler as a dot."""
        names = [
            "·",
            *(f"k{i + 1}" for i in range(self.keys)),
            *(f"v{i + 1}" for i in range(self.values)),
        ]
        return [[names[token] for token in row] for row in batch.tokens_BL.tolist()]

    def _last_of_questions(self) -> Tensor:
        return 2 * self.pairs + self.relations * (torch.arange(self.questions) + 1) - 1

    def _pairs(self, split: Split, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        found: list[Tensor] = []
        missing = size
        while missing > 0:
            rows = max(4 * missing, 16)
            keys = torch.rand(rows, self.keys, generator=generator).topk(self.pairs).indices
            values = torch.randint(self.values, (rows, self.pairs), generator=generator)
            content = torch.cat((keys, values), dim=1)
            content = content[belongs(content, split)][:missing]
            found.append(content)
            missing -= len(content)
        keys_BP, values_BP = torch.cat(found).split(self.pairs, dim=1)
        return keys_BP, values_BP

    def _write(self, keys_BP: Tensor, values_BP: Tensor, pair_BQR: Tensor) -> Batch:
        size = len(keys_BP)
        tokens_BL = torch.zeros(size, self.length, dtype=torch.int64)
        targets_BL = torch.full((size, self.length), IGNORE)
        start, end = 2 * self.pairs, 2 * self.pairs + self.questions * self.relations
        tokens_BL[:, 0:start:2] = 1 + keys_BP
        tokens_BL[:, 1:start:2] = 1 + self.keys + values_BP
        flat = pair_BQR.flatten(1)
        tokens_BL[:, start:end] = 1 + keys_BP.gather(1, flat)
        values_BQR = values_BP.gather(1, flat).unflatten(1, pair_BQR.shape[1:])
        weight_R = self.values ** torch.arange(self.relations - 1, -1, -1)
        targets_BL[:, self._last_of_questions()] = (values_BQR * weight_R).sum(-1)
        return Batch(tokens_BL, targets_BL)
