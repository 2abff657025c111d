"""Multi-query associative recall (MQAR): given key-value pairs, say each key's value when asked.

A sequence of L tokens starts with its n pairs, ``k1 v1 k2 v2 ... kn vn``, then filler; each key
appears once more among the filler, and there the model must say that key's value. Most queries
come soon after the pairs: with space = (L - 2n) // 2, slot i = 1..space has probability
proportional to i^(power - 1), and the query of a pair stands at position 2n + 2 * (i - 1).

From Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models",
https://arxiv.org/abs/2312.04927 (the generator of the paper's figure 2).

Shape suffixes: B batch, L sequence length, P pairs, S slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from spanwise.errors import ConfigError, nearest
from spanwise.seeds import torch_generator
from tasks.interface import IGNORE, Batch, Split, Task
from tasks.splits import BUCKETS, N_BUCKETS, bucket

FILLERS = ("zero", "random", "own")
FEWEST_CONTENTS = 64
"""With fewer possible contents than this, a quarter of them might be empty."""


class Recall(Task):
    """Multi-query associative recall, with fresh sequences for every training batch.

    A sequence belongs to a split by a hash of its pairs, so no two splits share even the pairs of
    a sequence, whatever the seeds.

    Args:
        length: tokens in a sequence, at least 4 * pairs.
        seed: the cell's seed; everything drawn depends on it and on the split alone.
        pairs: key-value pairs in a sequence; None for length // 16 (at least 1).
        vocab: keys are drawn from [1, vocab // 2), values from [vocab // 2, vocab), both without
            repetition within a sequence.
        power: exponent of the power law of the query slots: 1 is uniform, near 0 is close by.
        filler: what stands between the queries: ``zero`` (token 0), ``random`` (any token, drawn
            anew), ``own`` (one of ``filler_vocab`` tokens that mean nothing else).
        filler_vocab: size of the filler's own vocabulary; used by ``filler=own`` alone.
        validation_size, test_size: sequences in these two fixed sets.
        test_length, test_pairs: sizes of the test's sequences where they differ from training's.

    Raises:
        ConfigError: a size that does not fit, in one line that says what would.
    """

    label = "Recall"
    causal = True
    answer_span = 2

    def __init__(
        self,
        length: int,
        seed: int,
        pairs: int | None = None,
        vocab: int = 64,
        power: float = 0.01,
        filler: str = "zero",
        filler_vocab: int = 16,
        validation_size: int = 256,
        test_size: int = 1000,
        test_length: int | None = None,
        test_pairs: int | None = None,
    ):
        pairs = max(1, length // 16) if pairs is None else pairs
        test_length = length if test_length is None else test_length
        test_pairs = pairs if test_pairs is None else test_pairs
        if filler not in FILLERS:
            raise ConfigError(
                f"task.filler={filler!r}: must be one of {', '.join(FILLERS)}."
                + nearest(filler, FILLERS)
            )
        if not (math.isfinite(power) and power > 0):
            raise ConfigError(f"task.power={power}: must be a number above 0 (1 is uniform)")
        for name, value in {
            "filler_vocab": filler_vocab,
            "validation_size": validation_size,
            "test_size": test_size,
        }.items():
            if value < 1:
                raise ConfigError(f"task.{name}={value}: must be at least 1")
        _check_sizes("pairs", pairs, "length", length, vocab)
        _check_sizes("test_pairs", test_pairs, "test_length", test_length, vocab)
        self.length, self.seed = length, seed
        self.pairs, self.vocab, self.power = pairs, vocab, float(power)
        self.filler, self.filler_vocab = filler, filler_vocab
        self.test_length, self.test_pairs = test_length, test_pairs
        self.sizes = {"validation": validation_size, "test": test_size}
        self.vocab_size = vocab + (filler_vocab if filler == "own" else 0)
        self.n_classes = self.vocab_size
        self.chance = 1 / (vocab - vocab // 2)

    @property
    def best_guess(self) -> float:
        """One of the values that no other pair of the sequence has."""
        return 1 / (self.vocab - self.vocab // 2 - self.test_pairs + 1)

    @property
    def n_targets(self) -> int:
        """Queries in a training sequence: one a pair."""
        return self.pairs

    def batches(self, split: Split, batch_size: int) -> Iterator[Batch]:
        """Yield batches of whole sequences; ``answers_BL`` holds the pair's value's position."""
        length, pairs = self.length, self.pairs
        if split == "test":
            length, pairs = self.test_length, self.test_pairs
        content = torch_generator(self.seed, "recall", split, "content")
        slots = torch_generator(self.seed, "recall", split, "slots")
        filler = torch_generator(self.seed, "recall", split, "filler")
        left = self.sizes.get(split)
        while left is None or left > 0:
            size = batch_size if left is None else min(batch_size, left)
            keys_BP, values_BP = self._pairs(split, size, pairs, content)
            at_BP = 2 * pairs + 2 * _slots(size, pairs, length, self.power, slots)
            yield self._write(keys_BP, values_BP, at_BP, length, filler)
            left = None if left is None else left - size

    def _pairs(
        self, split: Split, size: int, pairs: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, P) of ``size`` sequences that belong to ``split``."""
        half = self.vocab // 2
        allowed = torch.tensor(BUCKETS[split])
        found: list[Tensor] = []
        missing = size
        while missing > 0:
            rows = min(max(N_BUCKETS * missing // len(allowed), 16), 4096)
            keys_BP = 1 + _distinct(rows, half - 1, pairs, generator)
            values_BP = half + _distinct(rows, self.vocab - half, pairs, generator)
            content_BC = torch.cat([keys_BP, values_BP], dim=1)
            content_BC = content_BC[torch.isin(bucket(content_BC), allowed)][:missing]
            found.append(content_BC)
            missing -= len(content_BC)
        keys_BP, values_BP = torch.cat(found).split(pairs, dim=1)
        return keys_BP, values_BP

    def _write(
        self,
        keys_BP: Tensor,
        values_BP: Tensor,
        at_BP: Tensor,
        length: int,
        generator: torch.Generator,
    ) -> Batch:
        size, pairs = keys_BP.shape
        shape = (size, length)
        if self.filler == "zero":
            tokens_BL = torch.zeros(shape, dtype=torch.int64)
        elif self.filler == "random":
            tokens_BL = torch.randint(0, self.vocab, shape, generator=generator)
        else:
            tokens_BL = torch.randint(self.vocab, self.vocab_size, shape, generator=generator)
        tokens_BL[:, 0 : 2 * pairs : 2] = keys_BP
        tokens_BL[:, 1 : 2 * pairs : 2] = values_BP
        tokens_BL.scatter_(1, at_BP, keys_BP)
        targets_BL = torch.full(shape, IGNORE).scatter_(1, at_BP, values_BP)
        answer_BP = (2 * torch.arange(pairs) + 1).expand(size, pairs)
        answers_BL = torch.full(shape, -1).scatter_(1, at_BP, answer_BP)
        return Batch(tokens_BL, targets_BL, answers_BL=answers_BL)


def _distinct(rows: int, choices: int, n: int, generator: torch.Generator) -> Tensor:
    """Return n different numbers of [0, choices) in random order, for each row: (rows, n)."""
    scores = torch.rand(rows, choices, dtype=torch.float64, generator=generator)
    return scores.topk(n, dim=1).indices


def _slots(size: int, pairs: int, length: int, power: float, generator: torch.Generator) -> Tensor:
    """Return n different slots a row, drawn one after another by the power law: (B, P).

    The first to arrive of independent exponential waiting times with rates p_i is i with
    probability p_i, and so on among those left: the order of arrival is a draw without
    repetition, as numpy's ``choice(replace=False, p=p)`` gives it.
    """
    space = (length - 2 * pairs) // 2
    rate_S = torch.arange(1, space + 1, dtype=torch.float64) ** (power - 1)
    uniform_BS = torch.rand(size, space, dtype=torch.float64, generator=generator)
    waiting_BS = -torch.log1p(-uniform_BS) / rate_S
    return waiting_BS.topk(pairs, dim=1, largest=False, sorted=True).indices


def _check_sizes(pairs_name: str, pairs: int, length_name: str, length: int, vocab: int) -> None:
    if length < 4:
        raise ConfigError(f"{length_name}={length}: recall needs at least 4 tokens, one pair")
    if not 1 <= pairs <= length // 4:
        raise ConfigError(
            f"task.{pairs_name}={pairs}: a length of {length} holds 1 to {length // 4} pairs "
            "(two tokens a pair, and as much again for the queries)"
        )
    if pairs > vocab // 2 - 1:
        raise ConfigError(
            f"task.vocab={vocab}: {pairs} pairs need {pairs} different keys and values, "
            f"so a vocabulary of at least {2 * pairs + 2}"
        )
    half = vocab // 2
    if math.perm(half - 1, pairs) * math.perm(vocab - half, pairs) < FEWEST_CONTENTS:
        raise ConfigError(
            f"task.vocab={vocab}: too few different sequences of {pairs} pairs to keep train, "
            f"validation and test apart; at least {FEWEST_CONTENTS} are needed"
        )
