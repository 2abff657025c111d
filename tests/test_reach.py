"""Reach against boolean matrix products, gradients of real models, and a published figure."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from spanwise.attention import dense_mask
from spanwise.model import Model
from spanwise.reach import (
    Ceiling,
    Runs,
    answerable,
    ceiling,
    ceiling_columns,
    hop,
    hops,
    reach,
)
from tasks.recall import Recall
from tasks.text import Text
from variants.chunked import Chunked
from variants.full import Full
from variants.gru import GRU
from variants.local_global import LocalGlobal
from variants.stack import Stack
from variants.windowed import Windowed


def model(variant, length, n_layers=1, conv=3, **changes):
    keywords = {"vocab_size": 64, "n_classes": 64, "causal": True, "seed": 0, "d_model": 8}
    keywords |= {"n_heads": 1, "mlp_ratio": 0, "conv": conv, "n_layers": n_layers, "length": length}
    return Model(variant, **(keywords | changes))


RULES = {
    "everything": None,
    "window": lambda q, k: abs(q - k) < 3,
    "past": lambda q, k: q - k < 5,
    "strided": lambda q, k: (q - k) % 7 == 0,
    "global": lambda q, k: (k < 2) | (q < 2) | (abs(q - k) < 2),
    "chunks": lambda q, k: q // 5 == k // 5,
    "holes": lambda q, k: (q % 3 == 1) & (k % 2 == 0) & (q - k > 2),
}


@given(
    length=st.integers(1, 150),
    layers=st.lists(
        st.tuples(
            st.lists(st.sampled_from(sorted(RULES)), min_size=1, max_size=2),
            st.booleans(),
            st.integers(0, 3),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=3,
    ),
)
@settings(max_examples=60, deadline=None)
def test_reach_equals_the_product_of_boolean_matrices(length, layers):
    at = np.arange(length)
    product = np.eye(length)
    blocks = []
    for names, causal, before, after in layers:  # the last block first
        rules = [(RULES[name], causal) for name in names]
        blocks.append(hop(rules, length, before, after))
        seen = sum(dense_mask(rule, length, causal).numpy().astype(float) for rule, _ in rules)
        back = at[:, None] - at[None, :]
        span = (back <= before) & (-back <= after)
        product = ((product @ (np.eye(length) + seen) @ span) > 0).astype(float)
    for query in {0, length // 3, length // 2, length - 1}:
        assert reach(blocks, query).holds(at).tolist() == (product[query] > 0).tolist()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("variant", "n_layers"),
    [
        (partial(Windowed, window=4), 1),
        (partial(Windowed, window=4), 3),
        (partial(LocalGlobal, window=3, global_tokens=2), 2),
        (Stack([partial(Windowed, window=3), partial(Chunked, window=6)]), 2),
        (Stack([partial(Chunked, window=6), partial(Windowed, window=3)]), 4),
        (Full, 1),
    ],
)
def test_reach_is_where_a_real_models_gradient_goes(variant, n_layers, causal):
    length = 24
    net = model(variant, length, n_layers, causal=causal, d_model=4).double()
    tokens = torch.randint(0, 64, (1, length), generator=torch.Generator().manual_seed(0))
    caught = []
    net.embedding.register_forward_hook(lambda _, __, out: caught.append(out))
    logits = net(tokens)[0]
    weights = torch.randn(64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    blocks = hops(net, length)
    for query in range(length):
        (gradient,) = torch.autograd.grad(logits[query] @ weights, caught[0], retain_graph=True)
        touched = gradient[0].abs().sum(dim=1) > 0
        assert reach(blocks, query).holds(np.arange(length)).tolist() == touched.tolist()


def test_what_is_no_attention_reaches_all_that_came_before():
    found = reach(hops(model(GRU, 20, conv=0), 20), 12)
    assert (found.first.tolist(), found.last.tolist()) == ([0], [12])


def test_an_answer_needs_its_key_too():
    seen = Runs(np.array([3, 9]), np.array([5, 9]))
    assert np.flatnonzero(answerable(seen, 12, answer_span=2)).tolist() == [4, 5]
    assert np.flatnonzero(answerable(seen, 12)).tolist() == [3, 4, 5, 9]


ZOOLOGY = [(64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256)]
PUBLISHED = {8: 0.059, 16: 0.145, 32: 0.313, 64: 0.514, 128: 0.655, 256: 0.797, 512: 0.936}


def share_in_reach(window, length, pairs, n):
    # The place of the queries does not depend on the vocabulary; a smaller one draws faster.
    task = Recall(length, seed=window, pairs=pairs, vocab=1024, test_size=n)
    found = ceiling(model(partial(Windowed, window=window), length), task)
    assert found is not None
    assert found.n == n * pairs
    return found.reachable / found.n


@pytest.mark.parametrize("window", [*PUBLISHED, 1024])
def test_ceilings_of_sliding_windows_are_the_accuracies_published_for_zoology(window):
    # A convolution, then one window layer; the mean over seven settings of the paper's test. The
    # tolerance is 99.9% of sampling at a sequence as one trial (its targets are not independent;
    # this is wider than they need).
    n = 60
    shares = [share_in_reach(window, length, pairs, n) for length, pairs in ZOOLOGY]
    expected = PUBLISHED.get(window, 1.0)
    error = np.sqrt(sum(p * (1 - p) / n for p in shares)) / len(shares)
    tolerance = 0.0005 + stats.norm.ppf(0.9995) * error
    assert np.mean(shares) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(
    ("length", "pairs", "window", "expected"),
    [
        (64, 4, 8, 0.328),
        (64, 4, 16, 0.580),
        (64, 4, 32, 0.806),
        (64, 8, 16, 0.394),
        (64, 8, 32, 0.758),
        (128, 8, 16, 0.323),
        (128, 8, 64, 0.811),
        (256, 16, 64, 0.596),
    ],
)
def test_ceilings_of_small_settings(length, pairs, window, expected):
    n = 600
    tolerance = 0.0005 + stats.norm.ppf(0.9995) * np.sqrt(expected * (1 - expected) / n)
    assert share_in_reach(window, length, pairs, n) == pytest.approx(expected, abs=tolerance)


def test_flags():
    found = Ceiling(reachable=500, n=1000, guess=0.02)
    assert found.accuracy == pytest.approx(0.51)
    # 99.95% of Binomial(500, .02) is at most 22.
    assert stats.binom.cdf(21, 500, 0.02) < 0.9995 <= stats.binom.cdf(22, 500, 0.02)
    assert [found.is_exceeded(522), found.is_exceeded(523)] == [False, True]
    # Wilson's interval of 420 in 1,000 at 99.9% ends at .472, of 440 at .492.
    assert [found.is_missed(420), found.is_missed(440)] == [True, False]
    # Near nothing, three quarters of the ceiling count: .015 of 10,000 ends at .0196, .02 at .0252.
    low = Ceiling(reachable=100, n=10_000, guess=0.02)
    assert low.accuracy == pytest.approx(0.0298)
    assert [low.is_missed(150), low.is_missed(200)] == [True, False]
    assert not Ceiling(reachable=1000, n=1000).is_exceeded(1000)


def test_columns_of_a_row():
    task = Recall(64, seed=0, pairs=8, vocab=64, test_size=200)
    window, full = (model(variant, 64) for variant in (partial(Windowed, window=16), Full))
    columns = ceiling_columns(window, task, accuracy=0.99)
    assert columns["above_ceiling"]
    share = columns["reachable"]
    assert columns["ceiling"] == pytest.approx(share + (1 - share) / (32 - 7))
    assert ceiling_columns(full, task, accuracy=0.99) == {
        "ceiling": 1.0,
        "reachable": 1.0,
        "above_ceiling": False,
        "undertrained": False,
    }
    assert ceiling_columns(full, task, accuracy=0.5)["undertrained"]


def test_a_task_whose_answers_have_no_place_has_no_ceiling(tmp_path):
    (tmp_path / "text").write_bytes(np.random.default_rng(0).bytes(4000))
    task = Text(16, seed=0, path=str(tmp_path / "text"))
    assert ceiling_columns(model(Full, 16), task, accuracy=0.5) == {}


def test_the_test_sets_own_length_counts():
    task = Recall(64, seed=0, pairs=8, test_length=256, test_pairs=8, test_size=100)
    longer = ceiling(model(partial(Windowed, window=16), 64), task)
    assert longer is not None
    assert longer.reachable / longer.n < 0.35 < share_in_reach(16, 64, 8, 100)
