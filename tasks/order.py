"""Which of two tokens came first? Only the order tells.

A sequence of L tokens is filler (token 0) but for two different tokens at random places and the
question at its end (token 1), where the model must say which of the two came first. The same two
tokens in the other order ask for the other answer, so what knows only which tokens there are is
right half of the time.

Shape suffixes: B batch, L sequence length.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from spanwise.errors import ConfigError
from spanwise.seeds import torch_generator
from tasks.interface import IGNORE, Batch, Split, Task
from tasks.splits import belongs

FILLER, QUESTION, FIRST = 0, 1, 2


class Order(Task):
    """Which of two tokens came first, with fresh sequences for every training batch.

    Args:
        length: tokens in a sequence, at least 3.
        seed: the cell's seed.
        tokens: how many different tokens the two are drawn from.
        causal: whether a position may only look back.
        validation_size, test_size: sequences in these two fixed sets.

    Raises:
        ConfigError: a size that does not fit, in one line that says what would.
    """

    chance = 0.5

    def __init__(
        self,
        length: int,
        seed: int,
        tokens: int = 16,
        causal: bool = False,
        validation_size: int = 256,
        test_size: int = 1000,
    ):
        if length < 3:
            raise ConfigError(f"length={length}: order needs at least 3 tokens, two and a question")
        if tokens < 2:
            raise ConfigError(f"task.tokens={tokens}: must be at least 2")
        if tokens * (tokens - 1) * (length - 1) * (length - 2) // 2 < 64:
            raise ConfigError(
                f"task.tokens={tokens}: too few different sequences of {length} tokens to keep "
                "train, validation and test apart; at least 64 are needed"
            )
        for name, value in {"validation_size": validation_size, "test_size": test_size}.items():
            if value < 1:
                raise ConfigError(f"task.{name}={value}: must be at least 1")
        self.length, self.seed, self.tokens, self.causal = length, seed, tokens, causal
        self.vocab_size = FIRST + tokens
        self.n_classes = tokens
        self.sizes = {"validation": validation_size, "test": test_size}

    @property
    def n_targets(self) -> int:
        """One question a sequence."""
        return 1

    def batches(self, split: Split, batch_size: int) -> Iterator[Batch]:
        """Yield batches; ``answers_BL`` holds the place of the token that came first."""
        generator = torch_generator(self.seed, "order", split, str(self.length))
        left = self.sizes.get(split)
        while left is None or left > 0:
            size = batch_size if left is None else min(batch_size, left)
            content = self._content(split, size, generator)
            first_B, second_B, early_B, late_B = content.unbind(1)
            rows = torch.arange(size)
            tokens_BL = torch.full((size, self.length), FILLER)
            tokens_BL[:, -1] = QUESTION
            tokens_BL[rows, early_B] = FIRST + first_B
            tokens_BL[rows, late_B] = FIRST + second_B
            targets_BL = torch.full((size, self.length), IGNORE)
            targets_BL[:, -1] = first_B
            answers_BL = torch.full((size, self.length), -1)
            answers_BL[:, -1] = early_B
            yield Batch(tokens_BL, targets_BL, answers_BL=answers_BL)
            left = None if left is None else left - size

    def _content(self, split: Split, size: int, generator: torch.Generator) -> torch.Tensor:
        """Return (B, 4): the two tokens in order, and their places in order."""
        found: list[torch.Tensor] = []
        missing = size
        while missing > 0:
            rows = max(4 * missing, 16)
            two = torch.rand(rows, self.tokens, generator=generator).topk(2).indices
            places = torch.rand(rows, self.length - 1, generator=generator).topk(2).indices
            content = torch.cat((two, places.sort(dim=1).values), dim=1)
            content = content[belongs(content, split)][:missing]
            found.append(content)
            missing -= len(content)
        return torch.cat(found)
