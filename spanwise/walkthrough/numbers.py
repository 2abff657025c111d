"""The numbers of the walk-through: small, fixed, and such that paper gives the same digits.

A reader who goes on from the printed two decimals must land on the next printed two decimals.
That is not so for arbitrary numbers (0.345 rounds to 0.34 or 0.35 by what came before it), so the
matrices are searched for: scores first, since everything follows from them, then each column of
W_v and of W_o by itself, because a column of the output depends on that column alone. Everything
here is plain Python on lists, from ``random.Random``, which gives the same numbers on every
machine; what the walk-through shows is computed from them by the product's own attention class.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Matrix = list[list[float]]

RESTARTS = 6
CHANGES = 600
COLUMN_DRAWS = 2000
"""How long to search for a sentence of three tokens and four numbers each; less for a larger one,
for which a search would take minutes and hardly ever find every digit."""


@dataclass(frozen=True)
class Numbers:
    """One walk-through's fixed numbers; row-vector convention, so a query is x W_q.

    x: (tokens, d_model), integers. w_q, w_k: (d_model, d_model), -1, 0 or 1. w_v, w_o: (d_model,
    d_model), halves from -1 to 1. In a large example w_q and w_k hold -0.5, 0 or 0.5, so that
    scores stay readable. With h heads, head i uses columns [i d_model/h, (i+1) d_model/h) of w_q,
    w_k and w_v.
    """

    x: Matrix
    w_q: Matrix
    w_k: Matrix
    w_v: Matrix
    w_o: Matrix


def draw(tokens: Sequence[str], d_model: int, n_heads: int, causal: bool, seed: int) -> Numbers:
    """Return the first numbers of stream ``seed`` that paper reproduces, or the nearest to it.

    Equal tokens get equal vectors. The same arguments give the same numbers everywhere.
    """
    stream = random.Random(f"walkthrough/{seed}")
    best: tuple[int, Matrix, Matrix, Matrix] | None = None
    for _ in range(RESTARTS):
        found = _descend(stream, tokens, d_model, n_heads, causal)
        if best is None or found[0] < best[0]:
            best = found
        if found[0] == 0:
            break
    assert best is not None
    _, x, w_q, w_k = best
    w_v = _value_columns(stream, x, w_q, w_k, n_heads, causal)
    w_o = _out_columns(stream, x, w_q, w_k, w_v, n_heads, causal)
    return Numbers(x, w_q, w_k, w_v, w_o)


def _descend(
    stream: random.Random, tokens: Sequence[str], d_model: int, n_heads: int, causal: bool
) -> tuple[int, Matrix, Matrix, Matrix]:
    """Return x, w_q and w_k from a random start, one entry changed at a time for the better."""
    names = list(dict.fromkeys(tokens))
    vectors = [[float(stream.choice((0, 1, 2))) for _ in range(d_model)] for _ in names]
    size = _entry(len(tokens), d_model)
    # A wider dot product has more terms: more of them are zero.
    entries = (-size, *[0.0] * 2 * max(1, d_model // 4 - 1), size)
    w_q, w_k = (
        [[stream.choice(entries) for _ in range(d_model)] for _ in range(d_model)] for _ in range(2)
    )
    x = [vectors[names.index(token)] for token in tokens]

    def cost() -> int:
        dull = _dull(vectors, x, w_q, w_k, n_heads, causal)
        return 4 * dull + _misses_of_scores(x, w_q, w_k, n_heads, causal)

    now = cost()
    for _ in range(_effort(CHANGES, len(x), d_model)):
        if now == 0:
            break
        matrix = stream.choice((vectors, w_q, w_k))
        row, column = stream.choice(matrix), stream.randrange(d_model)
        before = row[column]
        if matrix is vectors:
            row[column] = float(stream.choice((0, 1, 2)))
        else:
            row[column] = size * stream.choice((-1, 0, 1))
        after = cost()
        if after > now:
            row[column] = before
        else:
            now = after
    return now, x, w_q, w_k


def _entry(n_tokens: int, d_model: int) -> float:
    """Return the size of the entries of w_q and w_k: smaller where the search alone, which has
    more scores to tame and less time for each, would leave powers of thousands."""
    return 1.0 if n_tokens * d_model <= 24 else 0.5


def product(a: Matrix, b: Matrix) -> Matrix:
    """Return the matrix product of two lists of rows."""
    return [
        [sum(p * q for p, q in zip(row, col, strict=True)) for col in zip(*b, strict=True)]
        for row in a
    ]


def softmax(row: Sequence[float]) -> list[float]:
    """Return exp(row) over its sum."""
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


def _rows(
    x: Matrix, w_q: Matrix, w_k: Matrix, heads: int, head: int, causal: bool
) -> list[list[float]]:
    """Return each query's scaled scores over the keys it may see, for one head of ``heads``."""
    size = len(w_q) // heads
    columns = slice(head * size, (head + 1) * size)
    q, k = ([row[columns] for row in product(x, w)] for w in (w_q, w_k))
    return [
        [
            sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(size)
            for key in (k[: i + 1] if causal else k)
        ]
        for i, query in enumerate(q)
    ]


def _effort(tries: int, n_tokens: int, d_model: int) -> int:
    """Return ``tries`` lowered by the square of how much larger than 3 x 4 the example is."""
    return max(20, int(tries * min(1.0, 12 / (n_tokens * d_model)) ** 2))


def _dull(vectors: Matrix, x: Matrix, w_q: Matrix, w_k: Matrix, n_heads: int, causal: bool) -> int:
    """Return how many things would make the example dull: equal vectors, flat or one-hot rows."""
    dull = len(vectors) - len({tuple(row) for row in vectors})
    dull += sum(not any(row) for row in vectors)
    dull += sum(not any(row) for w in (w_q, w_k) for row in product(vectors, w))
    if len(x) > 1:
        first, second = _rows(x, w_q, w_k, 1, 0, False)[0][:2]
        dull += first == second
    for heads in (1, n_heads):
        for head in range(heads):
            rows = [r for r in _rows(x, w_q, w_k, heads, head, causal) if len(r) > 1]
            dull += sum(abs(score) > 2.5 for row in rows for score in row)
            dull += sum(max(row) == min(row) for row in rows)
            if heads == 1:
                dull += sum(max(softmax(row)) > 0.85 for row in rows)
                dull += len(rows) - len({tuple(row) for row in rows})
    return dull


def _misses_of_scores(x: Matrix, w_q: Matrix, w_k: Matrix, n_heads: int, causal: bool) -> int:
    """Return the misses over every printed softmax: one head, several heads, and the pair."""
    return sum(
        _score_misses(row)
        for heads in (1, n_heads)
        for head in range(heads)
        for row in _rows(x, w_q, w_k, heads, head, causal)
    ) + _score_misses(_rows(x, w_q, w_k, 1, 0, False)[0][:2])


def _show(value: float) -> float:
    """Return what two decimals show of ``value``."""
    return round(value, 2) + 0.0


def _tie(value: float) -> bool:
    """Whether rounding to two decimals is decided by less than the arithmetic's own error."""
    return abs(abs(value) * 100 % 1 - 0.5) < 1e-6


def _score_misses(row: list[float]) -> int:
    """Return how many of a row's printed powers, sum and weights paper would miss."""
    powers = [math.exp(value) for value in row]
    paper_powers = [_show(math.exp(_show(value))) for value in row]
    misses = sum(_show(p) != w for p, w in zip(powers, paper_powers, strict=True))
    total = sum(paper_powers)
    misses += _show(sum(powers)) != _show(total)
    weights = [power / sum(powers) for power in powers]
    misses += sum(
        _show(w) != _show(p / max(total, 0.01)) for w, p in zip(weights, paper_powers, strict=True)
    )
    misses += _show(sum(_show(w) for w in weights)) != 1.0
    return misses + sum(map(_tie, [*row, *powers, *weights]))


def _weights(
    x: Matrix, w_q: Matrix, w_k: Matrix, heads: int, head: int, causal: bool
) -> list[list[float]]:
    return [softmax(row) for row in _rows(x, w_q, w_k, heads, head, causal)]


def _weighted_misses(weights: Sequence[float], values: Sequence[float]) -> int:
    """Return 1 where a weighted sum from the printed weights differs in its printed digits."""
    used = values[: len(weights)]
    exact = sum(w * v for w, v in zip(weights, used, strict=True))
    paper = sum(_show(w) * v for w, v in zip(weights, used, strict=True))
    return int(_show(exact) != _show(paper) or _tie(exact) or _tie(paper))


def _search_columns(
    stream: random.Random, d: int, tries: int, misses_of: Callable[[int, list[float]], int]
) -> Matrix:
    """Return a (d, d) matrix of halves, each column the first that misses nothing (or least)."""
    columns: Matrix = []
    for index in range(d):
        best: tuple[int, list[float]] | None = None
        for _ in range(tries):
            column = [stream.choice((-1.0, -0.5, 0.0, 0.0, 0.5, 1.0)) for _ in range(d)]
            if sum(value != 0 for value in column) < min(2, d) or column in columns:
                continue
            found = misses_of(index, column)
            if best is None or found < best[0]:
                best = (found, column)
            if found == 0:
                break
        if best is None:
            best = (0, [1.0] * d)
        columns.append(best[1])
    return [list(row) for row in zip(*columns, strict=True)]


def _value_columns(
    stream: random.Random, x: Matrix, w_q: Matrix, w_k: Matrix, n_heads: int, causal: bool
) -> Matrix:
    d = len(w_q)
    whole = _weights(x, w_q, w_k, 1, 0, causal)
    heads = [_weights(x, w_q, w_k, n_heads, head, causal) for head in range(n_heads)]
    pair = softmax(_rows(x, w_q, w_k, 1, 0, False)[0][:2])

    def misses_of(index: int, column: list[float]) -> int:
        values = [sum(a * b for a, b in zip(row, column, strict=True)) for row in x]
        if len(values) > 1 and max(values) == min(values):
            return 99  # a column that gives every token the same value shows nothing
        rows = [*whole, *heads[index // (d // n_heads)], pair]
        return sum(_weighted_misses(row, values) for row in rows)

    return _search_columns(stream, d, _effort(COLUMN_DRAWS, len(x), d), misses_of)


def _out_columns(
    stream: random.Random,
    x: Matrix,
    w_q: Matrix,
    w_k: Matrix,
    w_v: Matrix,
    n_heads: int,
    causal: bool,
) -> Matrix:
    d = len(w_q)
    size = d // n_heads
    v = product(x, w_v)
    joined: Matrix = [[] for _ in x]
    for head in range(n_heads):
        values = [row[head * size : (head + 1) * size] for row in v]
        for i, row in enumerate(_weights(x, w_q, w_k, n_heads, head, causal)):
            joined[i] += product([row], values[: len(row)])[0]

    def misses_of(_: int, column: list[float]) -> int:
        misses = 0
        for row in joined:
            exact = sum(a * b for a, b in zip(row, column, strict=True))
            paper = sum(_show(a) * b for a, b in zip(row, column, strict=True))
            misses += int(_show(exact) != _show(paper) or _tie(exact) or _tie(paper))
        return misses

    return _search_columns(stream, d, _effort(COLUMN_DRAWS, len(x), d), misses_of)
