"""The attention maps of a model on one chosen sequence, kept in the record for drawing."""

from __future__ import annotations

from typing import Annotated

import torch

from spanwise.arguments import AtLeast, Below, NotEmpty
from spanwise.errors import ConfigError
from spanwise.probes import Found, Subject
from spanwise.probes.heads import attention_maps, part_of
from tasks.interface import Batch

LONGEST = 128
"""Longer sequences make maps that no figure can show, and records of many megabytes."""


@torch.no_grad()
def maps(
    subject: Subject,
    *,
    sequence: Annotated[int, AtLeast(0), Below("test_size")] = 0,
    tokens: Annotated[list[Annotated[int, AtLeast(0), Below("vocab_size")]], NotEmpty()]
    | None = None,
) -> Found:
    """Keep every head's map on one input: a sequence of the test set, or token ids of one's own.

    The table has the input as ``tokens`` (texts), and ``layers``: for each layer, for each head,
    rows of weights in thousandths.
    """
    chosen = _chosen(subject, sequence, tokens)
    length = chosen.tokens_BL.shape[1]
    if chosen.lengths_B is not None:
        length = int(chosen.lengths_B[0])
    if length > LONGEST:
        raise ConfigError(
            f"probes.maps: found a sequence of {length} tokens; allowed: up to {LONGEST}"
        )
    seen = attention_maps(subject.model, chosen, subject.config["device"])
    layers = [(maps[0, :, :length, :length] * 1000).round().int().tolist() for maps in seen]
    return Found(table={"tokens": subject.task.written(chosen)[0][:length], "layers": layers})


def _chosen(subject: Subject, sequence: int, tokens: list[int] | None) -> Batch:
    if tokens is not None:
        most = subject.task.vocab_size - 1
        if not tokens or any(type(t) is not int or not 0 <= t <= most for t in tokens):
            raise ConfigError(
                f"probes.maps.tokens: found {tokens!r}; allowed: token ids from 0 to {most}"
            )
        return Batch(torch.tensor([tokens]), torch.zeros(1, len(tokens), dtype=torch.int64))
    seen = 0
    for batch in subject.task.batches("test", 64):
        if sequence < seen + len(batch.tokens_BL):
            at = sequence - seen
            return part_of(batch, slice(at, at + 1))
        seen += len(batch.tokens_BL)
    raise ConfigError(
        f"probes.maps.sequence: found {sequence}; allowed: 0 to {seen - 1}, the test set's size"
    )
