"""Checks of generation token by token: the same outputs, from no larger a memory than needed."""

from __future__ import annotations

import torch

from spanwise.check.subject import LENGTH, Case, Failed, Skipped, Subject, expect_close, inputs
from variants.decoding import KeyValueCache

CLOSE = {torch.float32: 1e-5, torch.float64: 1e-9}


def check_decoding(subject: Subject) -> None:
    """Read token by token, with its memory, the layer gives at every step what it gives at once.

    To 1e-5 in float32; also after a prompt that was read at once.
    """
    for case in _remembering(subject):
        for dtype, tolerance in CLOSE.items():
            layer, x = case.layer.to(dtype), inputs(2, LENGTH).to(dtype)
            for prompt in (0, 1, LENGTH // 2):
                cache = layer.cache(LENGTH, batch=2)
                with torch.no_grad():
                    expected = layer(x)
                    if prompt:
                        layer.prefill(x[:, :prompt], cache)
                    steps = [layer.decode(x[:, i : i + 1], cache) for i in range(prompt, LENGTH)]
                words = f"{case.words}, {dtype}, after a prompt of {prompt}: decoded output"
                found = torch.cat([expected[:, :prompt], *steps], dim=1)
                expect_close(found, expected, words, tolerance)


def check_cache_size(subject: Subject) -> None:
    """Keys and values are kept while a later query can see them, and no longer."""
    for case in _remembering(subject):
        length = 3 * LENGTH
        cache, seen = case.layer.cache(length), case.layer.visibility(length)
        if not isinstance(cache, KeyValueCache) or seen is None:
            raise Skipped("the variant keeps no keys and values")
        place = torch.arange(length)
        last = torch.where(seen, place[:, None], -1).amax(0)
        alive = (last >= place[:, None]) & (place <= place[:, None])
        needed = int(alive.sum(1).max())
        if cache.keys.shape[2] != needed:
            raise Failed(
                f"{case.words}, length {length}: the cache has {cache.keys.shape[2]} entries; "
                f"expected {needed}, the most keys that later queries still see"
            )


def _remembering(subject: Subject) -> list[Case]:
    """Return the cases that can generate, or skip the check."""
    cases = [case for case in subject.cases(positions=True) if case.layer.cache(LENGTH)]
    if not cases:
        raise Skipped("the variant does not generate token by token")
    return cases
