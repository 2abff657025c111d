"""What a reader with a pencil gets: each printed number from the printed numbers before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spanwise.walkthrough.steps import Section

UNSEEN = "·"


def show(value: float | None) -> str:
    """Return two decimals, with no minus before a zero; a dot where there is nothing to see."""
    if value is None:
        return UNSEEN
    return f"{value:.2f}".replace("-0.00", "0.00") if abs(value) < 0.005 else f"{value:.2f}"


def root(size: int) -> str:
    """Return the square root of ``size`` as the walk-through prints it."""
    value = math.sqrt(size)
    return str(int(value)) if value == int(value) else f"{value:.4f}"


@dataclass(frozen=True)
class OnPaper:
    """How far the printed numbers lead astray.

    misses: numbers that come out otherwise, or may where the third decimal is a 5 to be rounded
    either way. worst: the largest difference, in printed units. undefined: those of the misses
    that are a division by a printed 0.00 and so do not come out at all.
    """

    misses: int
    worst: float
    undefined: int


def work_on(parts: Sequence[Section]) -> OnPaper:
    """Compute every number of the steps from the printed two decimals before it, and compare."""
    apart = [steps for part in parts for steps in _section(part)]
    finite = [steps for steps in apart if steps is not None]
    undefined = len(apart) - len(finite)
    misses = undefined + sum(steps > 0 for steps in finite)
    return OnPaper(misses, max(finite, default=0) / 100, undefined)


def _section(part: Section) -> list[int | None]:
    """Return by how many hundredths each number of a section is missed; None: no number."""
    found: list[int | None] = []

    def printed(name: str) -> list[list[float | None]]:
        return [[_read(value) for value in row] for row in part.get(name).values]

    def compare(name: str, work: Callable[[int, int], float | None]) -> None:
        for i, row in enumerate(printed(name)):
            for j, value in enumerate(row):
                if value is not None:
                    found.append(_hundredths(work(i, j), value))

    for head in range(part.n_heads):
        _head(part, head, printed, compare)
    if part.n_heads > 1:
        joined, w_o = printed("joined"), printed("w_o")
        compare("merged", lambda i, j: _dot(joined[i], [row[j] for row in w_o]))
    return found


def _head(
    part: Section,
    head: int,
    printed: Callable[[str], list[list[float | None]]],
    compare: Callable[[str, Callable[[int, int], float | None]], None],
) -> None:
    """Compare the steps of one head, in the order in which they are printed."""

    def name(step: str) -> str:
        return part.head(head, step)

    def get(step: str) -> list[list[float | None]]:
        return printed(name(step))

    columns = [int(column) - 1 for column in part.get(name("q")).columns]
    x = printed("x")
    asking = [part.keys.index(query) for query in part.queries]

    def projected(
        rows: Sequence[int], w: list[list[float | None]]
    ) -> Callable[[int, int], float | None]:
        return lambda i, j: _dot(x[rows[i]], [row[columns[j]] for row in w])

    compare(name("q"), projected(asking, printed("w_q")))
    compare(name("k"), projected(range(len(x)), printed("w_k")))
    compare(name("v"), projected(range(len(x)), printed("w_v")))
    q, k, v = get("q"), get("k"), get("v")
    scores, scaled, powers = get("scores"), get("scaled"), get("powers")
    total, weights = get("sum"), get("weights")
    divisor = float(root(part.head_dim))
    compare(name("scores"), lambda i, j: _dot(q[i], k[j]))
    compare(name("scaled"), lambda i, j: _number(scores[i][j]) / divisor)
    compare(name("powers"), lambda i, j: math.exp(_number(scaled[i][j])))
    compare(name("sum"), lambda i, _: sum(map(_number, powers[i])))
    compare(name("weights"), lambda i, j: _share(powers[i][j], total[i][0]))
    compare(name("output"), lambda i, j: _dot(weights[i], [row[j] for row in v]))


def _read(value: float | None) -> float | None:
    return None if value is None else float(show(value))


def _number(value: float | None) -> float:
    return 0.0 if value is None else value


def _share(power: float | None, total: float | None) -> float | None:
    return _number(power) / total if total else None


def _dot(a: Sequence[float | None], b: Sequence[float | None]) -> float:
    return sum(_number(p) * _number(q) for p, q in zip(a, b, strict=True))


def _hundredths(paper: float | None, printed: float) -> int | None:
    """Return how far apart two decimals of ``paper`` may be from ``printed``."""
    if paper is None:
        return None
    # The excess over a half is rounding error of the arithmetic: a tie may be rounded either way.
    return math.floor(abs(paper - printed) * 100 + 0.5 + 1e-6)
