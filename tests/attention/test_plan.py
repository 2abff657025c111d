import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.attention import (
    PairwiseWarning,
    dense_mask,
    kernel_flops,
    keys_per_query,
    lookup,
    plan,
)
from tests.attention.strategies import LENGTHS, RULES


def picture(made):
    """The plan drawn as a mask: what a kernel that follows it would let through."""
    side = made.blocks * made.tile
    drawn = torch.zeros(side, side, dtype=torch.bool)
    for row, col, pattern in zip(made.rows, made.cols, made.pattern, strict=True):
        block = True if pattern < 0 else made.masks(pattern[None])[0]
        at = (slice(x * made.tile, (x + 1) * made.tile) for x in (row, col))
        drawn[tuple(at)] = block
    return drawn


@settings(deadline=None, max_examples=150)
@given(RULES, LENGTHS, st.booleans(), st.sampled_from([8, 16, 64, 100]))
def test_a_plan_holds_exactly_the_pairs_of_the_dense_mask(sees, length, causal, tile):
    # Unsound intervals would drop a seen tile, or leave a mask off a tile that needs one.
    mask = dense_mask(sees, length, causal)
    made = plan(sees, length, causal, tile)
    drawn = picture(made)
    assert torch.equal(drawn[:length, :length], mask)
    assert not drawn[:, length:].any()
    assert made.pairs_seen == int(mask.sum())


@settings(deadline=None, max_examples=50)
@given(RULES, LENGTHS, st.booleans())
def test_keys_per_query_is_the_mean_row_sum_of_the_dense_mask(sees, length, causal):
    expected = dense_mask(sees, length, causal).sum().item() / length
    assert keys_per_query(sees, length, causal) == pytest.approx(expected, rel=1e-12)


def test_a_causal_window_plans_tightly():
    made = plan(lambda q, k: q - k < 256, 65_536, True, 128)
    # Each query block sees its own key block and the two before it; only the first and the last
    # of the three are cut, and all rows share the same two masks.
    assert made.tiles_computed == 3 * 512 - 3
    assert len(made.examples) == 2
    assert made.pairs_seen == 256 * 65_536 - 256 * 255 // 2
    assert not made.dense_tiles


def test_equal_masks_are_one_pattern_wherever_they_stand():
    made = plan(lambda q, k: (q - k < 64) | (k < 16), 1024, True, 64)
    # The diagonal, the window's far edge, the first column (16 keys), and those two in one tile.
    assert len(made.examples) == 4
    assert made.pairs_seen == int(
        dense_mask(lambda q, k: (q - k < 64) | (k < 16), 1024, True).sum()
    )


def test_a_strided_rule_is_flagged_as_touching_nearly_every_tile():
    made = plan(lambda q, k: (q - k) % 64 == 0, 8_192, True, 128)
    assert made.dense_tiles
    assert made.pairs_seen == sum(q // 64 + 1 for q in range(8_192))
    assert not plan(None, 8_192, True, 128).dense_tiles


def test_operations_of_full_attention_are_its_matrix_products():
    length, heads, dim, batch = 128, 3, 16, 2
    scores_and_sums = batch * heads * 2 * (2 * length * length * dim)
    made = plan(None, length, causal=False)
    assert kernel_flops(made.pairs_seen, heads, dim, batch) == scores_and_sums
    assert kernel_flops(made.pairs_seen, heads, dim, batch, train=True) == 3.5 * scores_and_sums
    # Wholly seen but for the last block, cut short: what is computed is counted without padding.
    assert plan(None, 100, False, 64).pairs_computed == 100 * 100


def test_planning_a_long_window_never_looks_at_many_tiles(monkeypatch):
    from spanwise.attention import interval

    seen = []
    compute = interval.Tiles.__call__
    monkeypatch.setattr(
        interval.Tiles, "__call__", lambda self, *at: seen.append(len(at[0])) or compute(self, *at)
    )
    plan(lambda q, k: q - k < 251, 1_048_576, True, 128)
    assert sum(seen) < 500_000  # of 67,108,864 tiles
    assert max(seen) <= 1 << 16


class Mutable:
    def __init__(self, window):
        self.window = window
        self.flags = torch.zeros(64, dtype=torch.bool)

    def sees(self, q, k):
        return (q - k < self.window) | lookup(self.flags, k)


def test_a_rule_changed_after_its_first_use_gets_a_new_plan():
    rule = Mutable(3)
    first = plan(rule.sees, 64, True, 16)
    assert plan(rule.sees, 64, True, 16) is first
    rule.window = 9
    assert plan(rule.sees, 64, True, 16).pairs_seen == dense_mask(rule.sees, 64, True).sum()
    rule.flags[5] = True
    assert plan(rule.sees, 64, True, 16).pairs_seen == dense_mask(rule.sees, 64, True).sum()
    rule.flags.numpy()[7] = True  # a write that torch does not see
    assert plan(rule.sees, 64, True, 16).pairs_seen == dense_mask(rule.sees, 64, True).sum()
    # ... and the first plan still holds the mask of the rule it was made for.
    assert int(picture(first)[:64, :64].sum()) == first.pairs_seen


def test_equal_arithmetic_shares_a_plan_and_different_constants_do_not():
    assert plan(lambda q, k: q - k < 5, 64) is plan(lambda a, b: a - b < 5, 64)
    assert plan(lambda q, k: q - k < 5, 64) is not plan(lambda q, k: q - k < 6, 64)
    assert plan(lambda q, k: q - k < 5, 64) is not plan(lambda q, k: k - q < 5, 64)
    table = torch.tensor([0, 1] * 32)
    assert plan(lambda q, k: lookup(table, k) == 1, 64) is not plan(
        lambda q, k: lookup(1 - table, k) == 1, 64
    )


def test_the_plan_cache_is_bounded():
    from spanwise.attention.plan import CACHE_PLANS, _cache

    for window in range(1, CACHE_PLANS + 20):
        plan(lambda q, k, w=window: q - k < w, 32, True, 16)
    assert len(_cache) <= CACHE_PLANS


def test_what_intervals_do_not_understand_is_evaluated_pair_by_pair_and_says_so_once():
    matrix = torch.rand(200, 200, generator=torch.Generator().manual_seed(0)) < 0.1

    def arbitrary_sees(q, k):
        return matrix[q, k] & (q * 0.5 < k)

    with pytest.warns(PairwiseWarning, match="arbitrary_sees is evaluated pair by pair"):
        made = plan(arbitrary_sees, 200, True, 32)
    mask = dense_mask(arbitrary_sees, 200, True)
    assert torch.equal(picture(made)[:200, :200], mask)
    assert made.pairs_seen == int(mask.sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan(arbitrary_sees, 200, True, 32)


def test_a_rule_that_returns_numbers_is_refused():
    with pytest.raises(ValueError, match="truth values"):
        plan(lambda q, k: q - k, 16)
    with pytest.raises(ValueError, match="truth values"):
        dense_mask(lambda q, k: q - k, 16, True)


def test_lookup_refuses_what_is_not_a_table_of_whole_numbers():
    with pytest.raises(ValueError, match="1-D integer or bool"):
        lookup(torch.rand(5), torch.arange(3))
