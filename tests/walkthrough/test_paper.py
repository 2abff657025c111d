"""The note on how far the printed two decimals carry, against decimal arithmetic on the table."""

from __future__ import annotations

import csv
import math
import re
from decimal import Decimal

import pytest

from spanwise.walkthrough import walk
from spanwise.walkthrough.numbers import Numbers
from spanwise.walkthrough.paper import OnPaper, work_on
from spanwise.walkthrough.steps import sections
from spanwise.walkthrough.text import page
from variants.full_map import FullMap

TWELVE = list("一二三四五六七八九十木水")


def by_hand(table, key, heads, size):
    """(number printed, number from those printed before it) of every computed number, as Decimals;
    None where a division by a printed zero has no answer."""
    x = list(table[key, "x"].values())
    divisor = Decimal(f"{math.sqrt(size):.4f}")
    for head in range(heads):
        mark = "" if heads == 1 else f"head {head + 1}: "
        get = {n: table[key, mark + n] for n in ("q", "k", "v", "scores", "scaled", "powers",
                                                 "sum", "weights", "output")}  # fmt: skip
        for name in "qkv":
            w = list(table[key, f"w_{name}"].values())
            for row, found in enumerate(get[name].values()):
                for d in range(size):
                    column = [line[head * size + d] for line in w]
                    yield found[d], sum(a * b for a, b in zip(x[row], column, strict=True))
        for token, weights in get["weights"].items():
            powers, values = get["powers"][token], list(get["v"].values())
            (total,) = get["sum"][token]
            seen = [j for j, weight in enumerate(weights) if weight is not None]
            yield total, sum(powers[j] for j in seen)
            for j in seen:
                key_row = list(get["k"].values())[j]
                score, scaled = get["scores"][token][j], get["scaled"][token][j]
                yield score, sum(a * b for a, b in zip(get["q"][token], key_row, strict=True))
                yield scaled, score / divisor
                yield powers[j], scaled.exp()
                yield weights[j], powers[j] / total if total else None
            for d in range(size):
                yield get["output"][token][d], sum(weights[j] * values[j][d] for j in seen)
    if heads > 1:
        w_o = list(table[key, "w_o"].values())
        for token, row in table[key, "joined"].items():
            for d, found in enumerate(table[key, "merged"][token]):
                yield found, sum(a * line[d] for a, line in zip(row, w_o, strict=True))


def test_the_note_says_the_worst_that_is_really_found(tmp_path):
    text = walk(tmp_path, tokens=TWELVE, d_model=8, n_heads=4, causal=True, seed=10,
                layer=FullMap, plots=False)  # fmt: skip
    table = {}
    with (tmp_path / "walkthrough.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            shown = None if row["shown"] == "·" else Decimal(row["shown"])
            name = (row["section"], row["matrix"])
            table.setdefault(name, {}).setdefault(row["row"], []).append(shown)
    pairs = [
        pair
        for key, heads, size in (("one_head", 1, 8), ("two_tokens", 1, 8), ("heads", 4, 2))
        for pair in by_hand(table, key, heads, size)
    ]
    # Where the third decimal is a 5, a reader may round either way.
    apart = [int(abs(paper - printed) * 100 + Decimal("0.500001")) for printed, paper in pairs]
    note = re.search(r"two decimals, (\d+) of the numbers .* by at most (\d\.\d\d):", text)
    assert note is not None
    assert int(note[1]) == sum(steps > 0 for steps in apart)
    assert float(note[2]) == max(apart) / 100
    # So large an example starts from smaller numbers, so that its powers can still be read.
    assert max(p for (_, name), rows in table.items() if name.endswith("powers")
               for row in rows.values() for p in row if p is not None) < 60  # fmt: skip
    assert min(s for (_, name), rows in table.items() if name.endswith("sum")
               for (s,) in rows.values()) > 0  # fmt: skip


def tiny(score):
    """One number a token, whose two tokens' scores are ``score`` and twice that."""
    one = [[1.0]]
    return Numbers([[1.0], [2.0]], [[score]], one, one, one)


def test_a_sum_printed_as_zero_is_said_to_give_nothing():
    numbers = tiny(-9.0)
    parts = sections(numbers, ["a", "b"], 1, False, FullMap)
    found = work_on(parts)
    # Four weights in the one head and two in the pair, all of them 0.00 / 0.00 on paper.
    assert found.undefined == 6
    text = page(parts, ["a", "b"], found, "")
    assert "6 do not come out, being divided by a sum printed as 0.00" in text


def test_a_large_power_is_missed_by_as_much_as_its_rounded_score_says():
    parts = sections(tiny(7.126), ["a"], 1, False, FullMap)
    # 7.126 is printed 7.13, whose power is 1248.88; the exact one is 1243.89.
    want = round(math.exp(7.13), 2) - round(math.exp(7.126), 2)
    assert work_on(parts).worst == pytest.approx(want, abs=0.02)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (OnPaper(0, 0.0, 0), "gives the same two decimals"),
        (OnPaper(3, 0.02, 0), "3 of the numbers below may come out apart, by at most 0.02: no"),
        (OnPaper(2, 0.0, 2), "the two decimals, 2 do not come out"),
        (OnPaper(5, 0.31, 2), "3 of the numbers below may come out apart, by at most 0.31 and 2 "),
    ],
)
def test_the_note_gives_only_what_there_is(found, says):
    parts = sections(tiny(1.0), ["a", "b"], 1, False, FullMap)
    assert says in page(parts, ["a", "b"], found, "")
