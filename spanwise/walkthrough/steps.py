"""The four steps of self-attention on a small example, each matrix kept for showing.

Queries, keys, values, weights and outputs come from the product's own attention layer with the
example's matrices copied in; what lies between (the scores, before and after the division) is
formed here from the layer's queries and keys, and must lead to the layer's own weights and outputs.

Shape suffixes: H heads, L tokens, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from spanwise.errors import ConfigError
from spanwise.walkthrough.numbers import Matrix, Numbers

STEPS = ("project", "score", "normalise", "weight")


@dataclass(frozen=True)
class Shown:
    """One matrix of the walk-through.

    name: unique within its section, as in ``q`` or ``head 2: weights``. step: given, one of STEPS,
    or merge. values: one list a row; None where a query may not see a key.
    """

    name: str
    step: str
    symbol: str
    rows: list[str]
    columns: list[str]
    values: list[list[float | None]]

    def row(self, index: int) -> list[float]:
        """Return the numbers of one row, without those that are not there."""
        return [value for value in self.values[index] if value is not None]


@dataclass(frozen=True)
class Section:
    """One run of the four steps: which of the example's tokens ask, in how many heads."""

    key: str
    title: str
    n_heads: int
    head_dim: int
    queries: list[str]
    keys: list[str]
    shown: list[Shown] = field(default_factory=list)

    def get(self, name: str) -> Shown:
        """Return the matrix of this name."""
        return next(matrix for matrix in self.shown if matrix.name == name)

    def head(self, index: int, name: str) -> str:
        """Return the name of head ``index``'s matrix ``name``: a single head needs no number."""
        return name if self.n_heads == 1 else f"head {index + 1}: {name}"


def sections(
    numbers: Numbers,
    tokens: Sequence[str],
    n_heads: int,
    causal: bool,
    layer: Callable[..., Any],
) -> list[Section]:
    """Return the sections of the walk-through: one head, two tokens, several heads.

    layer: an attention variant's class (or partial); it must form the full softmax. Raises
    ConfigError, in one line, for anything else.
    """
    try:
        return _sections(numbers, tokens, n_heads, causal, layer)
    except ConfigError:
        raise
    # Any callable may stand here, so what it raises may be anything.
    except Exception as error:
        name = getattr(layer, "__name__", type(layer).__name__)
        raise ConfigError(
            f"walkthrough.layer: {name} cannot be walked through ({_one_line(error)}); allowed: "
            "an attention variant's class, as variants.full_map.FullMap"
        ) from error


def _one_line(error: Exception) -> str:
    return shorten(f"{type(error).__name__}: {error}", 160, placeholder=" …")


def _sections(
    numbers: Numbers,
    tokens: Sequence[str],
    n_heads: int,
    causal: bool,
    layer: Callable[..., Any],
) -> list[Section]:
    d_model = len(numbers.w_q)
    identity: Matrix = [[float(i == j) for j in range(d_model)] for i in range(d_model)]
    every = list(tokens)
    found = [
        _section(
            "one_head",
            "One head",
            numbers,
            identity,
            every,
            range(len(every)),
            _build(layer, numbers, identity, 1, causal),
        )
    ]
    if len(every) > 1:
        found.append(
            _section(
                "two_tokens",
                "Two tokens, one query",
                numbers,
                identity,
                every[:2],
                range(1),
                _build(layer, numbers, identity, 1, False),
            )
        )
    if n_heads > 1:
        found.append(
            _section(
                "heads",
                f"{n_heads} heads",
                numbers,
                numbers.w_o,
                every,
                range(len(every)),
                _build(layer, numbers, numbers.w_o, n_heads, causal),
            )
        )
    return found


def _build(
    layer: Callable[..., Any], numbers: Numbers, w_o: Matrix, n_heads: int, causal: bool
) -> Any:
    """Return the product's layer with the example's matrices; torch keeps them transposed."""
    built = layer(d_model=len(numbers.w_q), n_heads=n_heads, causal=causal).double().eval()
    if not hasattr(built, "attention_weights"):
        raise ConfigError(
            f"walkthrough.layer: found {type(built).__name__}, which has no softmax weights to "
            "show; allowed: an attention variant, as variants.full_map.FullMap"
        )
    with torch.no_grad():
        for name, matrix in (
            ("W_q", numbers.w_q),
            ("W_k", numbers.w_k),
            ("W_v", numbers.w_v),
            ("W_o", w_o),
        ):
            getattr(built, name).weight.copy_(torch.tensor(matrix, dtype=torch.float64).T)
    return built


@torch.no_grad()
def _section(
    key: str,
    title: str,
    numbers: Numbers,
    w_o: Matrix,
    tokens: list[str],
    asking: range,
    layer: Any,
) -> Section:
    x = torch.tensor(numbers.x[: len(tokens)], dtype=torch.float64)[None]
    q_HLD, k_HLD, v_HLD = (part[0] for part in layer.project(x))
    weights_HLL = layer.attention_weights(x)[0]
    out_LM = layer(x)[0]
    scores_HLL = q_HLD @ k_HLD.transpose(-2, -1)
    scaled_HLL = scores_HLL / math.sqrt(layer.head_dim)
    seen_LL = layer.mask(len(tokens))[0]
    powers_HLL = scaled_HLL.exp().masked_fill(~seen_LL, 0)
    totals_HL = powers_HLL.sum(-1)
    read_HLD = weights_HLL @ v_HLD
    joined_LM = read_HLD.transpose(0, 1).flatten(1)
    if not (
        torch.allclose(powers_HLL / totals_HL[..., None], weights_HLL, atol=1e-12)
        and torch.allclose(joined_LM @ torch.tensor(w_o, dtype=torch.float64), out_LM, atol=1e-12)
    ):
        raise ConfigError(
            f"walkthrough.layer: {type(layer).__name__} does not compute "
            "softmax(q k^T / sqrt(d_k)) v, which is what is walked through"
        )
    queries = [tokens[i] for i in asking]
    section = Section(key, title, layer.n_heads, layer.head_dim, queries, tokens)
    add = section.shown.append
    width = [str(i + 1) for i in range(layer.d_model)]
    add(Shown("x", "given", "X", tokens, width, x[0].tolist()))
    for name, symbol, matrix in (
        ("w_q", "W_q", numbers.w_q),
        ("w_k", "W_k", numbers.w_k),
        ("w_v", "W_v", numbers.w_v),
    ):
        add(Shown(name, "given", symbol, width, width, [list(row) for row in matrix]))
    if layer.n_heads > 1:
        add(Shown("w_o", "given", "W_o", width, width, [list(row) for row in w_o]))
    for head in range(layer.n_heads):
        mark = "" if layer.n_heads == 1 else f"_{head + 1}"
        dims = [str(head * layer.head_dim + i + 1) for i in range(layer.head_dim)]
        pick = list(asking)

        def keep(name: str, step: str, symbol: str, columns: list[str], values: Any) -> None:
            rows = tokens if name in "kv" else queries
            add(Shown(section.head(head, name), step, symbol, rows, columns, values))  # noqa: B023

        keep("q", "project", f"Q{mark}", dims, q_HLD[head, pick].tolist())
        keep("k", "project", f"K{mark}", dims, k_HLD[head].tolist())
        keep("v", "project", f"V{mark}", dims, v_HLD[head].tolist())
        for name, step, symbol, table in (
            ("scores", "score", f"Q{mark} K{mark}ᵀ", scores_HLL[head]),
            ("scaled", "score", f"Q{mark} K{mark}ᵀ / √{layer.head_dim}", scaled_HLL[head]),
            ("powers", "normalise", "e^score", powers_HLL[head]),
        ):
            keep(name, step, symbol, tokens, _where_seen(table[pick], seen_LL[pick]))
        keep("sum", "normalise", "sum of a row", ["sum"], totals_HL[head, pick, None].tolist())
        keep(
            "weights",
            "normalise",
            f"A{mark} = softmax",
            tokens,
            _where_seen(weights_HLL[head, pick], seen_LL[pick]),
        )
        keep("output", "weight", f"A{mark} V{mark}", dims, read_HLD[head, pick].tolist())
    if layer.n_heads > 1:
        add(Shown("joined", "merge", "heads side by side", queries, width, joined_LM.tolist()))
        add(Shown("merged", "merge", "side by side × W_o", queries, width, out_LM.tolist()))
    return section


def _where_seen(table: Tensor, seen: Tensor) -> list[list[float | None]]:
    return [
        [value if visible else None for value, visible in zip(row, mask, strict=True)]
        for row, mask in zip(table.tolist(), seen.tolist(), strict=True)
    ]
