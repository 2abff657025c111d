"""Who does what to whom: short sentences from a grammar, and the pair asked for at the verb.

A tiny Chinese of subject, verb and object, with distractors::

    S  -> [time] NP [adverb] verb NP
    NP -> [noun 旁 的] [adjective] noun

as in 今天 鱼 旁 的 小 猫 又 追 狗, "today the little cat beside the fish chases a dog again".
Nouns of the side phrases come from the same words as subject and object, so a noun counts by what
follows it and by where it stands, not by what it is. At the verb the model must name subject and
object, in this order, as one class; it reads both ways. Sentences are padded to the length.

Shape suffixes: B batch, L sequence length.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from spanwise.errors import ConfigError
from spanwise.seeds import derive_seed
from tasks.interface import IGNORE, Batch, Split, Task
from tasks.splits import belongs

NOUNS = tuple("猫狗鸟鱼马羊兔鼠牛虎鸡鸭")
VERBS = tuple("追看怕爱找咬")
ADJECTIVES = ("小", "大", "黑", "白", "老")
TIMES = ("今天", "昨天", "早上", "晚上")
ADVERBS = ("又", "常", "不", "也")
BESIDE = ("旁", "的")
PAD = "·"
WORDS = (PAD, *BESIDE, *NOUNS, *VERBS, *ADJECTIVES, *TIMES, *ADVERBS)
LONGEST = 13
"""Tokens of the longest sentence: time, two noun phrases of five, adverb and verb."""


class Sentences(Task):
    """Subject and object of each sentence's verb, with fresh sentences for training.

    Args:
        length: tokens in a sequence, at least 13, the longest sentence.
        seed: the cell's seed.
        nouns: how many of the 12 nouns are used; the answers are ordered pairs of two of them.
        beside: share of noun phrases with a side phrase, whose noun is a distractor.
        validation_size, test_size: sentences in these two fixed sets.

    Raises:
        ConfigError: a size that does not fit, in one line that says what would.
    """

    causal = False

    def __init__(
        self,
        length: int,
        seed: int,
        nouns: int = 8,
        beside: float = 0.5,
        validation_size: int = 256,
        test_size: int = 1000,
    ):
        if length < LONGEST:
            raise ConfigError(f"length={length}: sentences need at least {LONGEST} tokens")
        if not 3 <= nouns <= len(NOUNS):
            raise ConfigError(f"task.nouns={nouns}: must be from 3 to {len(NOUNS)}")
        if not 0 <= beside <= 1:
            raise ConfigError(f"task.beside={beside}: must be a share from 0 to 1")
        for name, value in {"validation_size": validation_size, "test_size": test_size}.items():
            if value < 1:
                raise ConfigError(f"task.{name}={value}: must be at least 1")
        self.length, self.seed, self.nouns, self.beside = length, seed, nouns, beside
        self.vocab_size = len(WORDS)
        self.n_classes = nouns * nouns
        self.chance = 1 / (nouns * (nouns - 1))
        self.sizes = {"validation": validation_size, "test": test_size}

    @property
    def n_targets(self) -> int:
        """One verb a sentence."""
        return 1

    def batches(self, split: Split, batch_size: int) -> Iterator[Batch]:
        """Yield batches of padded sentences with their lengths."""
        stream = random.Random(derive_seed(self.seed, "sentences", split))
        left = self.sizes.get(split)
        while left is None or left > 0:
            size = batch_size if left is None else min(batch_size, left)
            found: list[list[int]] = []
            while len(found) < size:
                drawn = [self._sentence(stream) for _ in range(2 * size)]
                rows = torch.tensor([self._padded(words) for words in drawn])
                keep = belongs(rows[:, :LONGEST], split).tolist()
                found += [words for words, mine in zip(drawn, keep, strict=True) if mine]
            yield self._batch(found[:size])
            left = None if left is None else left - size

    def marks(self, batch: Batch) -> dict[str, Tensor]:
        """Return, for each verb, its subject, its object, and the nouns that are neither."""
        shape = (*batch.tokens_BL.shape, batch.tokens_BL.shape[1])
        names = ("subject", "object", "distractor")
        marks = {name: torch.zeros(shape, dtype=torch.bool) for name in names}
        for i, row in enumerate(batch.tokens_BL.tolist()):
            verb, subject, other, distractors = parse(row)
            marks["subject"][i, verb, subject] = True
            marks["object"][i, verb, other] = True
            marks["distractor"][i, verb, distractors] = True
        return marks

    def written(self, batch: Batch) -> list[list[str]]:
        """Return the words."""
        return [[WORDS[token] for token in row] for row in batch.tokens_BL.tolist()]

    def _sentence(self, stream: random.Random) -> list[int]:
        subject, other = stream.sample(NOUNS[: self.nouns], 2)
        words = [stream.choice(TIMES)] if stream.random() < 0.3 else []
        words += self._noun_phrase(stream, subject)
        words += [stream.choice(ADVERBS)] if stream.random() < 0.3 else []
        words += [stream.choice(VERBS), *self._noun_phrase(stream, other)]
        return [WORDS.index(word) for word in words]

    def _noun_phrase(self, stream: random.Random, noun: str) -> list[str]:
        beside = [stream.choice(NOUNS[: self.nouns]), *BESIDE]
        words = beside if stream.random() < self.beside else []
        return [*words, *([stream.choice(ADJECTIVES)] if stream.random() < 0.5 else []), noun]

    def _padded(self, words: list[int]) -> list[int]:
        return words + [0] * (self.length - len(words))

    def _batch(self, sentences: list[list[int]]) -> Batch:
        tokens_BL = torch.tensor([self._padded(words) for words in sentences])
        targets_BL = torch.full(tokens_BL.shape, IGNORE)
        for i, words in enumerate(sentences):
            verb, subject, other, _ = parse(words)
            first, second = (NOUNS.index(WORDS[words[at]]) for at in (subject, other))
            targets_BL[i, verb] = first * self.nouns + second
        lengths_B = torch.tensor([len(words) for words in sentences])
        return Batch(tokens_BL, targets_BL, lengths_B)


def parse(tokens: list[int]) -> tuple[int, int, int, list[int]]:
    """Return the places of a sentence's verb, subject, object, and of its other nouns."""
    words = [WORDS[token] for token in tokens]
    verb = next(i for i, word in enumerate(words) if word in VERBS)
    nouns = [i for i, word in enumerate(words) if word in NOUNS]
    subject = max(i for i in nouns if i < verb)
    other = max(i for i in nouns if i > verb)
    return verb, subject, other, [i for i in nouns if i not in (subject, other)]
