"""Rules, lengths and tables that cannot be: one line from every kernel, never torch's own words."""

import re
import warnings
from functools import lru_cache

import numpy as np
import pytest
import torch

from spanwise.attention import (
    PairwiseWarning,
    dense_mask,
    keys_per_query,
    lookup,
    plan,
    rule_attention,
)
from spanwise.errors import ConfigError

LENGTH = 40
SHORT = torch.arange(32)
QKV = [torch.ones(1, 1, LENGTH, 4)] * 3
WAYS = {
    "dense": lambda sees: rule_attention(*QKV, sees, False, kernel="dense"),
    "fused": lambda sees: rule_attention(*QKV, sees, False, kernel="fused"),
    "blocks": lambda sees: rule_attention(*QKV, sees, False, kernel="blocks"),
    "auto": lambda sees: rule_attention(*QKV, sees, False),
    "flex": lambda sees: rule_attention(*QKV, sees, False, kernel="flex"),
    "plan": lambda sees: plan(sees, LENGTH, False, 16),
    "keys_per_query": lambda sees: keys_per_query(sees, LENGTH, False),
    "dense_mask": lambda sees: dense_mask(sees, LENGTH, False),
}


def told(way, sees):
    with pytest.raises(ConfigError) as caught:
        WAYS[way](sees)
    (line,) = str(caught.value).splitlines()
    return line


BRANCHES = "write & | ~ with each comparison in brackets"
BAD_RULES = {
    "table too short": (
        lambda q, k: lookup(SHORT, k) < 5,
        "lookup(values, k): k runs from 0 to 39 at length 40, but values has 32 entries; "
        "allowed: 0 to 31",
    ),
    "table too short for both": (
        lambda q, k: lookup(SHORT, q - 2 * k) < 5,
        "lookup(values, q - (2 * k)): q - (2 * k) runs from -78 to 39",
    ),
    "index before the table": (lambda q, k: lookup(SHORT, q - 35) == k, "from -35 to 4 "),
    "hidden by the rest of the rule": (lambda q, k: (k < 32) & (lookup(SHORT, k) < 5), "0 to 39"),
    "table of a table": (lambda q, k: lookup(SHORT, lookup(3 * SHORT, q % 32)) < k, "0 to 93"),
    "constant index": (lambda q, k: lookup(SHORT, 32) < k, "x runs from 32 to 32"),
    "no trace, table too short": (lambda q, k: lookup(SHORT, k) < q / 2, "x runs from 0 to 39"),
    "table of words": (
        lambda q, k: lookup(["a"], k) == q,
        "1-D integer or bool tensor, got a list",
    ),
    "no table": (lambda q, k: lookup(None, k) == q, "1-D integer or bool tensor, got a NoneType"),
    "index a half": (lambda q, k: lookup(SHORT, q / 2) == k, "whole numbers as x"),
    "index a truth": (lambda q, k: lookup(SHORT, q < 3) == k, "whole numbers as x"),
    "division by a position": (
        lambda q, k: q // k < 3,
        "divides by 0: q // k at query 0, key 0",
    ),
    "remainder by a position": (lambda q, k: q % (k - 7) < 3, "q % (k - 7) at query 0, key 7"),
    "division by both": (lambda q, k: q // (q - k - 20) < 3, "at query 20, key 0"),
    "division by 0": (lambda q, k: q // 0 < 3, "q // 0"),
    "and": (lambda q, k: q >= k and q - k < 8, BRANCHES),
    "or": (lambda q, k: q < k or q - k < 8, BRANCHES),
    "not": (lambda q, k: not (q < k), BRANCHES),
    "if": (lambda q, k: (k > 3) if q > 5 else (k > 4), BRANCHES),
    "chain": (lambda q, k: 0 <= q - k < 8, BRANCHES),
    "in": (lambda q, k: k in (0, 5), BRANCHES),
    "max": (lambda q, k: max(q, k) < 9, BRANCHES),
    "in a set": (lambda q, k: k in {0, 5}, "write (k == 0) | (k == 5)"),
    "in a dict": (lambda q, k: {0: True}.get(k, False), "write (k == 0) | (k == 5)"),
    "as an index": (lambda q, k: [True] * 40 and [True, False][k], "use lookup(values, x)"),
    "nothing returned": (lambda q, k: None, "must return truth values, got NoneType"),
    "words returned": (lambda q, k: "yes", "must return truth values, got str"),
    "numbers returned": (lambda q, k: abs(q - k), "truth values, got the number abs(q - k)"),
    "halves returned": (lambda q, k: q / 2, "must return truth values, got a tensor of"),
    "another shape": (lambda q, k: torch.ones(3, dtype=torch.bool), "one truth value for every"),
    "one argument": (lambda q: q < 3, "takes 1 positional argument"),
    "its own mistake": (lambda q, k: q < nothing, "NameError: name 'nothing'"),  # noqa: F821
    "huge": (lambda q, k: q - k < 10**30, "64 bits"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BAD_RULES)
def test_a_bad_rule_is_one_line_from_every_kernel(name, way):
    sees, message = BAD_RULES[name]
    line = told(way, sees)
    assert message in line or (way == "keys_per_query" and "runs from" in line)
    assert "Boolean value of Tensor" not in line
    assert len(line) < 300


def test_a_rule_is_named_by_where_it_was_written():
    def between(q, k):
        return 0 <= q - k < 8

    assert told("plan", between).startswith(f"rule {__name__}.test_a_rule_is_named")
    assert ".between: " in told("plan", between)


def test_a_table_beyond_reach_of_a_long_sequence_is_found_without_looking_at_every_pair():
    table = torch.arange(1 << 20)
    with pytest.raises(ConfigError) as caught:
        plan(lambda q, k: lookup(table, q - 2 * k) > 3, 1 << 20)
    found = re.search(r"q - \(2 \* k\) is (-\d+) at query (\d+), key (\d+)", str(caught.value))
    index, q, k = map(int, found.groups())
    assert index == q - 2 * k < -(1 << 20)
    with pytest.raises(ConfigError, match=r"q runs from 0 to 1048576 at length 1048577"):
        plan(lambda q, k: lookup(table, q) == lookup(table, k), (1 << 20) + 1)
    # 300 entries, for 0 to 299 and, from the end, for -1 to -300: all that q - k can be at 300.
    assert plan(lambda q, k: lookup(table[:300], q - k) < 8, 300).pairs_seen == 300 * 8 - 28


RULES_THAT_WORK = {
    "one beside": lambda q, k: q // (2 * k - 1) < 3,
    "remainder by what is never 0": lambda q, k: q % (2 * k - 5) < 3,
    "divided by both": lambda q, k: (q + 7) // (3 * (q - k) + 1) > 2,
    "negative quotients": lambda q, k: (q - 40) // (2 * (k - 30) + 1) == -1,
    "remainder by both": lambda q, k: (q - 70) % (4 * (q - k) + 2) == 1,
    "by what intervals hold for 0": lambda q, k: q // (abs(q - k) + 1) == 1,
}


@pytest.mark.parametrize("name", RULES_THAT_WORK)
@pytest.mark.parametrize("causal", [True, False])
def test_a_divisor_that_is_never_0_plans_as_the_mask_says(name, causal):
    # Worked out by Python's own whole numbers, pair by pair.
    sees, length = RULES_THAT_WORK[name], 90
    expected = [[sees(q, k) and (k <= q or not causal) for k in range(length)] for q in range(90)]
    assert dense_mask(sees, length, causal).tolist() == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = plan(sees, length, causal, 8)
        qkv = [torch.randn(1, 2, length, 4, dtype=torch.float64) for _ in range(3)]
        got = rule_attention(*qkv, sees, causal, kernel="blocks")
    assert made.pairs_seen == np.sum(expected)
    assert torch.allclose(got, rule_attention(*qkv, sees, causal, kernel="dense"))


def test_rules_that_work_on_tensors_only_go_on_working():
    matrix = torch.arange(LENGTH * LENGTH).reshape(LENGTH, LENGTH) % 3 == 0

    @lru_cache
    def remembered(q, k):  # asks a position for its hash, which a tensor has
        return q - k < 7

    def branching_on_all(q, k):
        return matrix[q, k] if (q >= 0).all() else matrix[k, q]

    for sees in (remembered, branching_on_all):
        expected = dense_mask(sees, LENGTH, True)
        with pytest.warns(PairwiseWarning, match="pair by pair"):
            assert plan(sees, LENGTH, True, 16).pairs_seen == expected.sum()
        for kernel in ("auto", "blocks", "fused"):
            got = rule_attention(*QKV, sees, kernel=kernel)
            assert torch.allclose(got, rule_attention(*QKV, sees, kernel="dense"))


def test_what_runs_out_of_memory_is_no_bad_rule():
    def greedy(q, k):
        return (q / 2 < k) & bool(torch.empty(1 << 50)[0])

    with pytest.raises(RuntimeError, match="allocate") as caught:
        plan(greedy, 16)
    assert not isinstance(caught.value, ConfigError)


def test_a_lookup_at_a_constant_is_that_entry():
    assert lookup(SHORT + 5, 3) == 8
    assert lookup([False, True], -1) is True
    mask = dense_mask(lambda q, k: lookup(SHORT, 3) == k, 8, False)
    assert mask.nonzero()[:, 1].tolist() == [3] * 8


def test_a_table_may_be_indexed_by_any_whole_numbers():
    # torch itself takes an index of bytes for a mask.
    assert lookup(SHORT + 5, torch.tensor([1, 2], dtype=torch.uint8)).tolist() == [6, 7]


@pytest.mark.parametrize("length", [2.5, True, "8", None, 0, -1, float("nan"), np.float64(8)])
def test_a_length_is_a_whole_number_of_at_least_1(length):
    asked = re.escape(f"length must be a whole number of at least 1, got {length!r}")
    for function in (plan, keys_per_query, dense_mask):
        with pytest.raises(ConfigError, match=asked):
            function(None, length, True)


def test_numpy_lengths_are_lengths():
    for kind in (np.int64, np.int32, np.uint8):
        assert plan(None, kind(8)) is plan(None, 8)
        assert keys_per_query(None, kind(8)) == 4.5
        assert dense_mask(None, kind(8), True).sum() == 36


@pytest.mark.parametrize("causal", ["no", 0, 1, None])
def test_causal_is_true_or_false(causal):
    for function in (plan, keys_per_query, dense_mask):
        with pytest.raises(ConfigError, match="causal must be True or False, got"):
            function(None, 8, causal)


def test_tile_and_rule_and_inputs_are_checked_too():
    with pytest.raises(ConfigError, match=r"tile must be a whole number of at least 1, got 2\.5"):
        plan(None, 8, True, 2.5)
    for function in (plan, keys_per_query, dense_mask):
        with pytest.raises(ConfigError, match="sees must be a function"):
            function("window", 8, True)
    with pytest.raises(ConfigError, match=r"k must be a tensor \(B, H, L, D\), got list"):
        rule_attention(QKV[0], [1], QKV[2], None)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16])
@pytest.mark.parametrize(
    "compare",
    [
        lambda t: lambda q, k: lookup(t, q) - lookup(t, k) <= 1,
        lambda t: lambda q, k: lookup(t, q) * 2 > 150,
        lambda t: lambda q, k: lookup(t, q) + lookup(t, k) > 160,
    ],
)
def test_a_narrow_table_counts_as_a_wide_one(dtype, compare):
    numbers = [100] * 100 + [0] * 100 + [90] * 100
    wide = dense_mask(compare(torch.tensor(numbers)), 300, False)
    narrow = compare(torch.tensor(numbers).to(dtype))
    assert torch.equal(dense_mask(narrow, 300, False), wide)
    assert plan(narrow, 300, False, 32).pairs_seen == int(wide.sum())
    q, k, v = torch.randn(3, 1, 1, 300, 8)
    torch.testing.assert_close(
        rule_attention(q, k, v, narrow, False, kernel="blocks"),
        rule_attention(q, k, v, narrow, False, kernel="dense"),
    )


def test_a_table_beyond_signed_numbers_is_one_line():
    values = torch.tensor([1, 2**63], dtype=torch.uint64)
    with pytest.raises(ConfigError, match=r"below 2\*\*63"):
        dense_mask(lambda q, k: lookup(values, k) > 0, 2, False)
