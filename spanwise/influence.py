"""Who sees whom, found by disturbing inputs and looking at outputs: nothing is believed.

Shape suffixes: B batch, L sequence length, K disturbed keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Run = Callable[..., Tensor]

EXACT_LENGTH = 256
"""Up to this length every key is disturbed, one at a time; beyond it, a sample of them."""
LEADING, SPREAD = 16, 61
"""The sample: the leading keys (global tokens lie there), and so many evenly apart."""
_TOKENS = 1 << 16


def influenced(
    run: Run,
    given: Sequence[Tensor],
    other: Sequence[Tensor],
    keys: Tensor,
    threshold: float = 0.0,
) -> Tensor:
    """Return bool (K, L): whether the output at a position changes with the input at each key.

    run: takes tensors like ``given`` and returns outputs (B, ..., L, D). given: the inputs, each
    (1, ..., L, D). other: of the same shapes; at ``keys`` (K,) int64, one for each row, their
    content takes the place of that of ``given``. threshold: a difference above it is a change.
    """
    length = given[0].shape[-2]
    size = min(len(keys), max(1, _TOKENS // length))
    plain = [tensor.repeat(size, *[1] * (tensor.dim() - 1)) for tensor in given]
    found = []
    with torch.no_grad():
        # Both passes have one shape: outputs that nothing disturbs are then equal bit for bit.
        expected = run(*(tensor.clone() for tensor in plain))
        for chunk in keys.split(size):
            disturbed = [tensor.clone() for tensor in plain]
            for row, key in enumerate(chunk.tolist()):
                for tensor, content in zip(disturbed, other, strict=True):
                    tensor[row, ..., key, :] = content[0, ..., key, :]
            changes = (run(*disturbed) - expected).abs().movedim(-2, 1).flatten(2).amax(-1)
            found.append((changes > threshold)[: len(chunk)])
    return torch.cat(found)


def sight(
    run: Run, given: Sequence[Tensor], other: Sequence[Tensor], threshold: float = 0.0
) -> Tensor:
    """Return bool (L, L), row = query: whose content each output depends on; see influenced."""
    every = torch.arange(given[0].shape[-2])
    return influenced(run, given, other, every, threshold).T


def keys_per_query(
    run: Run, given: Sequence[Tensor], other: Sequence[Tensor], threshold: float = 0.0
) -> float:
    """Return the mean number of keys that a query's output depends on; see influenced.

    Counted up to ``EXACT_LENGTH`` positions. Beyond, the leading keys are counted and the others
    are estimated from keys evenly apart, each for its stretch. Windows come out to 0.1%, since the
    number of queries that see a key changes steadily from key to key; chunks to some 10%.
    """
    length = given[0].shape[-2]
    if length <= EXACT_LENGTH:
        return float(sight(run, given, other, threshold).sum()) / length
    rest = length - LEADING
    spread = LEADING + (torch.arange(SPREAD) * 2 + 1) * rest // (2 * SPREAD)
    keys = torch.cat([torch.arange(LEADING), spread])
    queries = influenced(run, given, other, keys, threshold).sum(1).double()
    pairs = queries[:LEADING].sum() + queries[LEADING:].mean() * rest
    return float(pairs) / length
