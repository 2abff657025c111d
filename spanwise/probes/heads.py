"""What each head of a model looks at: distances, entropies, and shares on named positions.

The maps come from ``attention_weights`` of the model's own layers: for a fused kernel they are
computed again from its queries and keys.

Shape suffixes: B batch, L sequence length, H heads.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from spanwise.arguments import AtLeast
from spanwise.errors import ConfigError
from spanwise.probes import Found, Subject
from spanwise.statistics import mean_interval
from tasks.interface import Batch


@torch.no_grad()
def heads(
    subject: Subject,
    *,
    sequences: Annotated[int, AtLeast(1)] = 128,
    batch: Annotated[int, AtLeast(1)] = 32,
) -> Found:
    """Measure what each head looks at, over the first ``sequences`` of the test set.

    The table has a row a layer and head: distance (mean number of positions looked away),
    entropy (nats), and the share of the weight on the previous position, on earlier or later
    places of the same token, on itself, on the variant's global tokens (where it has some), on
    the position of the answer (from those that ask), and on whatever pairs the task names
    (``Task.marks``); each share is the mean over the queries that have such a key. ``before_`` is
    the same of the model before training.

    Columns attention_NAME for each of the task's names and the answer: the share of the head
    that gives it most, with its 95% interval over sequences (_low, _high) and before_; and
    head_spread, the largest difference between two heads' shares of one layer, averaged over
    names: 0 where all heads take the same view.
    """
    after = _measure(subject, subject.model, sequences, batch)
    before = _measure(subject, subject.untrained().eval(), sequences, batch)
    found = Found()
    for place, values in after.items():
        row: dict[str, Any] = {"layer": place[0], "head": place[1]}
        for name, per_sequence in values.items():
            row[name] = _mean(per_sequence)
            row[f"before_{name}"] = _mean(before[place][name])
        found.table.append(row)
    for name in sorted({name for values in after.values() for name in values} - _GENERAL):
        found.row |= _best(name, after, before)
    found.row["head_spread"] = _spread(after)
    return found


_GENERAL = frozenset(("distance", "entropy", "previous", "same", "itself", "globals"))

Measured = dict[tuple[int, int], dict[str, Tensor]]
"""By (layer, head), from 1: by name, one figure a sequence, NaN where it has no such key."""


def _measure(subject: Subject, model: Any, sequences: int, batch: int) -> Measured:
    gathered: dict[tuple[int, int], dict[str, list[Tensor]]] = {}
    left = sequences
    for whole in subject.task.batches("test", batch):
        size = min(left, len(whole.tokens_BL))
        part = part_of(whole, slice(0, size))
        maps = attention_maps(model, part, subject.config["device"])
        for layer, weights_BHLL in enumerate(maps):
            named = _pairs(subject, model.layers[layer], part)
            for head in range(weights_BHLL.shape[1]):
                into = gathered.setdefault((layer + 1, head + 1), {})
                for name, values_B in _figures(weights_BHLL[:, head], named, part).items():
                    into.setdefault(name, []).append(values_B)
        left -= size
        if left <= 0:
            break
    return {
        place: {name: torch.cat(parts) for name, parts in values.items()}
        for place, values in gathered.items()
    }


def part_of(batch: Batch, rows: slice) -> Batch:
    """Return some sequences of a batch."""
    cut: dict[str, Any] = {name: None if t is None else t[rows] for name, t in vars(batch).items()}
    return Batch(**cut)


def attention_maps(model: Any, batch: Batch, device: str = "cpu") -> list[Tensor]:
    """Return each layer's weights (B, H, L, L) on a batch, on the CPU, as the model computes it.

    Raises ConfigError where a layer is no attention.
    """
    seen: list[Tensor] = []

    def look(layer: Any, inputs: tuple[Any, ...], _: Any) -> None:
        seen.append(layer.attention_weights(*inputs).cpu())

    for layer in model.layers:
        if not hasattr(layer, "attention_weights"):
            raise ConfigError(
                f"probes: {layer.describe()} has no attention weights to look at; "
                "allowed: attention variants"
            )
    hooks = [layer.register_forward_hook(look) for layer in model.layers]
    try:
        lengths = None if batch.lengths_B is None else batch.lengths_B.to(device)
        model.hidden(batch.tokens_BL.to(device), lengths)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _pairs(subject: Subject, layer: Any, batch: Batch) -> dict[str, Tensor]:
    """Return the named pairs, bool (B, L, L), row = the position that looks."""
    tokens_BL = batch.tokens_BL
    length = tokens_BL.shape[1]
    place_L = torch.arange(length)
    apart_LL = place_L[:, None] - place_L
    named = {
        "previous": (apart_LL == 1).expand(len(tokens_BL), -1, -1),
        "itself": (apart_LL == 0).expand(len(tokens_BL), -1, -1),
        "same": (tokens_BL[:, :, None] == tokens_BL[:, None, :]) & (apart_LL != 0),
    }
    if isinstance(n := getattr(layer, "global_tokens", None), int) and n > 0:
        named["globals"] = (place_L < n).expand(len(tokens_BL), length, -1)
    if batch.answers_BL is not None:
        answer_BL1 = batch.answers_BL[..., None]
        named["answer"] = (place_L == answer_BL1) & (answer_BL1 >= 0)
    return named | subject.task.marks(batch)


def _figures(weights_BLL: Tensor, named: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    length = weights_BLL.shape[-1]
    place_L = torch.arange(length)
    real_BL = torch.ones(batch.tokens_BL.shape, dtype=torch.bool)
    if batch.lengths_B is not None:
        real_BL = place_L < batch.lengths_B[:, None]
    apart_LL = (place_L[:, None] - place_L).abs()
    figures = {
        "distance": _mean_over((weights_BLL * apart_LL).sum(-1), real_BL),
        "entropy": _mean_over(torch.special.entr(weights_BLL).sum(-1), real_BL),
    }
    for name, pairs_BLL in named.items():
        asking_BL = pairs_BLL.any(-1) & real_BL
        figures[name] = _mean_over((weights_BLL * pairs_BLL).sum(-1), asking_BL)
    return figures


def _mean_over(values_BL: Tensor, where_BL: Tensor) -> Tensor:
    """Return the mean over the True positions of each sequence, NaN where there is none, (B,)."""
    total_B = (values_BL.double() * where_BL).sum(-1)
    return total_B / where_BL.sum(-1)


def _mean(values_B: Tensor) -> float | None:
    value = float(values_B.nanmean())
    return None if math.isnan(value) else value


def _best(name: str, after: Measured, before: Measured) -> dict[str, Any]:
    """Return the share of the head that gives ``name`` most, and what that head gave before."""
    means = {place: _mean(values[name]) for place, values in after.items() if name in values}
    known = {place: mean for place, mean in means.items() if mean is not None}
    if not known:
        return {}
    best = max(known, key=lambda place: known[place])
    values = after[best][name]
    interval = mean_interval(values[~values.isnan()].tolist())
    return {
        f"attention_{name}": interval.value,
        f"attention_{name}_low": interval.low,
        f"attention_{name}_high": interval.high,
        f"attention_{name}_before": _mean(before[best][name]),
        f"attention_{name}_head": f"{best[0]}.{best[1]}",
    }


def _spread(after: Measured) -> float | None:
    spans = []
    for layer in {place[0] for place in after}:
        rows = [values for place, values in after.items() if place[0] == layer]
        for name in rows[0]:
            means = [_mean(values[name]) for values in rows]
            if name not in ("distance", "entropy") and None not in means:
                spans.append(max(means) - min(means))  # type: ignore[type-var,operator]
    return sum(spans) / len(spans) if spans else None
