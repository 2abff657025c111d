"""The walk-through in words and matrices, as text that a reader can follow with a pencil."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from spanwise.walkthrough.paper import OnPaper, root, show
from spanwise.walkthrough.steps import Section, Shown


def page(parts: Sequence[Section], tokens: Sequence[str], on_paper: OnPaper, note: str) -> str:
    """Return the whole walk-through as Markdown.

    on_paper: how far a reader with a pencil would get. note: a line about the figures'
    characters, or empty.
    """
    lines = [
        f"# Self-attention, walked through on: {' '.join(tokens)}",
        "",
        "Each row is a token. The numbers are fixed, not learned: drawn from a seed, so that the",
        "same command always shows the same. What is computed comes from the attention layer that",
        "every study here uses. Two decimals are shown; exact values are in walkthrough.json.",
    ]
    lines.append(_promise(on_paper))
    if note:
        lines.append(f"Note: {note}.")
    for part in parts:
        lines += ["", f"## {part.title}", ""]
        lines += {"one_head": _one_head, "two_tokens": _two_tokens}.get(part.key, _heads)(part)
    return "\n".join(lines) + "\n"


def _promise(on_paper: OnPaper) -> str:
    """Return what working on from the two decimals gives, as it was found."""
    if not on_paper.misses:
        return "Working on from the two decimals on paper gives the same two decimals."
    differ = on_paper.misses - on_paper.undefined
    found = [f"{differ} of the numbers below may come out apart, by at most {on_paper.worst:.2f}"]
    if on_paper.undefined:
        found += [f"{on_paper.undefined} do not come out, being divided by a sum printed as 0.00"]
    return (
        f"On paper, working on from the two decimals, {' and '.join(found[not differ :])}: no "
        "example of this size without any was found."
    )


def _one_head(part: Section) -> list[str]:
    asking = len(part.queries) // 2
    me = part.queries[asking]
    lines = ["Given: one vector a token (X), and three matrices.", ""]
    for name in ("x", "w_q", "w_k", "w_v"):
        lines += matrix(part.get(name))
    lines += _four_steps(part, 0, asking)
    weights = part.get("weights")
    most = max(weights.row(asking))
    keys = [
        key
        for key, value in zip(part.keys, weights.values[asking], strict=True)
        if value is not None and show(value) == show(most)
    ]
    lines += [f"So {me} reads most from {' and '.join(keys)}: {show(most)} of the value each."]
    return lines


def _two_tokens(part: Section) -> list[str]:
    u, v = part.keys
    lines = [
        f"The smallest form: u = x({u}) asks, with one query q = u W_q; scores are single numbers.",
        "",
    ]
    lines += _four_steps(part, 0, 0)
    lines += [
        f"If {v} were the only key, its weight would be e^s / e^s = 1.00 whatever its score s: a",
        "softmax compares, so it takes at least two keys to say anything.",
    ]
    return lines


def _heads(part: Section) -> list[str]:
    size = part.head_dim
    lines = [
        f"Head i takes its own {size} columns of W_q, W_k and W_v (head 1 the first {size}, and so "
        "on) and does",
        f"the same four steps in that smaller space, so the division is by √{size}"
        f" = {root(size)}. Then",
        "the heads' outputs stand side by side, and W_o mixes them.",
        "",
    ]
    for head in range(part.n_heads):
        lines += [f"### Head {head + 1}", ""]
        lines += _four_steps(part, head, len(part.queries) // 2)
    lines += ["### Side by side, then W_o", ""]
    for name in ("joined", "w_o", "merged"):
        lines += matrix(part.get(name))
    me = len(part.queries) // 2
    row = part.get("joined").row(me)
    column = [line[0] for line in part.get("w_o").values]
    lines += [
        f"For {part.queries[me]}, the first number: {_dot(row, column)}"
        f" = {show(part.get('merged').values[me][0])}"
    ]
    return lines


def _four_steps(part: Section, head: int, asking: int) -> list[str]:
    """Return the steps of one head, with one row's arithmetic written out."""

    def get(name: str) -> Shown:
        return part.get(part.head(head, name))

    me, keys = part.queries[asking], part.keys
    first = get("q").columns[0]
    x = part.get("x").row(part.keys.index(me))
    w = [row[int(first) - 1] for row in part.get("w_q").values]
    lines = [
        "Step 1, project: each token makes a query (whom do I look for?), a key (who finds me?)",
        "and a value (what do I give?): Q = X W_q, K = X W_k, V = X W_v.",
        "",
    ]
    for name in ("q", "k", "v"):
        lines += matrix(get(name))
    lines += [
        f"For {me}, number {first} of the query: {_dot(x, w)} = {show(get('q').values[asking][0])}",
        "",
        "Step 2, score: how well does each query fit each key? The dot product, then divided by",
        f"√{part.head_dim} = {root(part.head_dim)}, so that scores stay small.",
        "",
        *matrix(get("scores")),
        *matrix(get("scaled")),
    ]
    query, key_rows = get("q").row(asking), get("k")
    for i, key in enumerate(keys):
        score, scaled = get("scores").values[asking][i], get("scaled").values[asking][i]
        if score is None:
            lines += [f"{me} may not look at {key}, which comes later."]
        else:
            lines += [
                f"{me} on {key}: {_dot(query, key_rows.row(i))} = {show(score)};  "
                f"{show(score)} / {root(part.head_dim)} = {show(scaled)}"
            ]
    powers, total = get("powers").row(asking), get("sum").row(asking)[0]
    weights = get("weights").row(asking)
    lines += [
        "",
        "Step 3, normalise: e to each score, over the sum of its row. Every row sums to 1.",
        "",
        *matrix(get("powers")),
        *matrix(get("sum")),
        *matrix(get("weights")),
        f"For {me}: {' + '.join(map(show, powers))} = {show(total)};  "
        + ",  ".join(
            f"{show(p)} / {show(total)} = {show(w)}" for p, w in zip(powers, weights, strict=True)
        ),
        "",
        "Step 4, weight: the output is the sum of all values, each times its weight.",
        "",
        *matrix(get("output")),
    ]
    values = get("v")
    terms = " + ".join(f"{show(w)} × {_vector(values.row(i))}" for i, w in enumerate(weights))
    lines += [f"For {me}: {terms}", f"  = {_vector(get('output').row(asking))}", ""]
    return lines


def matrix(shown: Shown) -> list[str]:
    """Return a matrix as lines: its symbol, its column names, and a line a row."""
    cells = [[show(value) for value in row] for row in shown.values]
    left = max(map(width, [*shown.rows, ""]))
    columns = [
        max(width(name), *(len(row[i]) for row in cells)) for i, name in enumerate(shown.columns)
    ]
    lines = [f"    {shown.symbol}"]
    heads = [_right(name, columns[i]) for i, name in enumerate(shown.columns)]
    lines += ["    " + " " * left + "  " + "  ".join(heads)]
    for name, row in zip(shown.rows, cells, strict=True):
        body = [_right(cell, columns[i]) for i, cell in enumerate(row)]
        lines += ["    " + name + " " * (left - width(name)) + "  " + "  ".join(body)]
    return [*lines, ""]


def width(text: str) -> int:
    """Return the columns a text takes on a terminal: two for a Chinese character."""
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _right(text: str, columns: int) -> str:
    return " " * (columns - width(text)) + text


def _vector(values: Sequence[float]) -> str:
    return "(" + ", ".join(map(show, values)) + ")"


def _dot(a: Sequence[float | None], b: Sequence[float | None]) -> str:
    return " + ".join(
        f"{show(p)}×{show(q)}" if q is None or q >= 0 else f"{show(p)}×({show(q)})"
        for p, q in zip(a, b, strict=True)
    )
