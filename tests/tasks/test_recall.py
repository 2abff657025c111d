"""Recall against a slow generator written from the definition, and its promises about splits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from spanwise.errors import ConfigError
from tasks.interface import IGNORE
from tasks.recall import BUCKETS, N_BUCKETS, Recall, bucket


def slow_slots(rng, length, pairs, power):
    """The definition, one sequence at a time: numpy draws the slots without repetition."""
    space = (length - 2 * pairs) // 2
    p = np.arange(1, space + 1) ** (power - 1.0)
    return rng.choice(space, size=pairs, replace=False, p=p / p.sum())


def train_batch(batch_size=4000, **parameters):
    return next(Recall(**{"seed": 3, **parameters}).batches("train", batch_size))


@pytest.mark.parametrize("filler", ["zero", "random", "own"])
@pytest.mark.parametrize(("length", "pairs", "vocab"), [(64, 4, 64), (33, 8, 18), (4, 1, 64)])
def test_each_query_asks_for_its_pair(length, pairs, vocab, filler):
    task = Recall(length, seed=0, pairs=pairs, vocab=vocab, filler=filler)
    batch = next(task.batches("train", 50))
    assert batch.tokens_BL.shape == (50, length)
    assert batch.answers_BL is not None
    rows = zip(batch.tokens_BL, batch.targets_BL, batch.answers_BL, strict=True)
    for tokens_L, targets_L, answers_L in rows:
        keys, values = tokens_L[0 : 2 * pairs : 2].tolist(), tokens_L[1 : 2 * pairs : 2].tolist()
        assert len(set(keys)) == len(set(values)) == pairs
        assert all(1 <= key < vocab // 2 for key in keys)
        assert all(vocab // 2 <= value < vocab for value in values)
        queries = [p for p in range(length) if targets_L[p] != IGNORE]
        assert len(queries) == pairs == task.n_targets
        assert all(p >= 2 * pairs and p % 2 == 0 for p in queries)
        book = dict(zip(keys, values, strict=True))
        assert sorted(tokens_L[queries].tolist()) == sorted(keys)
        for p in queries:
            assert targets_L[p] == book[int(tokens_L[p])]
            assert tokens_L[answers_L[p]] == targets_L[p]
            assert tokens_L[answers_L[p] - 1] == tokens_L[p]
        others = [p for p in range(2 * pairs, length) if p not in queries]
        assert (answers_L[others] == -1).all()
        if filler == "zero":
            assert (tokens_L[others] == 0).all()
        if filler == "own":
            assert (tokens_L[others] >= vocab).all()
            assert (tokens_L[others] < task.vocab_size).all()


@pytest.mark.parametrize(("length", "pairs", "power"), [(24, 3, 0.01), (40, 4, 0.5), (24, 3, 1.0)])
def test_query_slots_follow_the_power_law(length, pairs, power):
    # Chi-squared against the slow generator, for the first pair's slot and for the last's: the
    # order in which slots are drawn matters, since later pairs get what earlier ones left.
    n = 8000
    batch = train_batch(n, length=length, pairs=pairs, power=power)
    assert batch.answers_BL is not None
    rng = np.random.default_rng(5)
    slow = np.stack([slow_slots(rng, length, pairs, power) for _ in range(n)])
    for pair in (0, pairs - 1):
        at = (batch.answers_BL == 2 * pair + 1).int().argmax(dim=1)
        fast = ((at - 2 * pairs) // 2).numpy()
        space = (length - 2 * pairs) // 2
        table = np.stack([np.bincount(s, minlength=space) for s in (fast, slow[:, pair])])
        table = table[:, table.sum(axis=0) >= 10]
        assert stats.chi2_contingency(table).pvalue > 1e-3


def test_keys_and_values_are_uniform():
    batch = train_batch(20_000, length=16, pairs=2, vocab=64)
    for column, low, high in [(0, 1, 32), (1, 32, 64), (2, 1, 32), (3, 32, 64)]:
        counts = torch.bincount(batch.tokens_BL[:, column], minlength=64)[low:high].numpy()
        assert counts.sum() == 20_000
        assert stats.chisquare(counts).pvalue > 1e-3


def contents(task, split, batches):
    rows = set()
    for batch in itertools.islice(task.batches(split, 512), batches):
        rows |= {tuple(row) for row in batch.tokens_BL[:, : 2 * task.pairs].tolist()}
    return rows


def test_no_split_shares_a_sequence_even_when_all_are_drawn():
    # One pair of vocabulary 24 has 11 * 12 = 132 contents: every split has drawn all of its own,
    # so any overlap would show; together they are all contents there are.
    sizes = {"validation_size": 4000, "test_size": 4000}
    splits = {"train": set(), "validation": set(), "test": set()}
    for seed in (0, 1):
        task = Recall(8, seed=seed, pairs=1, vocab=24, **sizes)
        for split, rows in splits.items():
            rows |= contents(task, split, 10)
    assert not splits["train"] & splits["test"]
    assert not splits["train"] & splits["validation"]
    assert not splits["validation"] & splits["test"]
    assert sum(map(len, splits.values())) == 132


def test_buckets_are_even_and_cover_every_split_once():
    assert sorted(b for part in BUCKETS.values() for b in part) == list(range(N_BUCKETS))
    content = torch.randint(0, 64, (40_000, 8), generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(bucket(content), minlength=N_BUCKETS).numpy()
    assert stats.chisquare(counts).pvalue > 1e-3


def test_same_seed_same_bytes_other_seed_others():
    first, again = (train_batch(8, length=64), train_batch(8, length=64))
    assert torch.equal(first.tokens_BL, again.tokens_BL)
    assert not torch.equal(first.tokens_BL, train_batch(8, length=64, seed=4).tokens_BL)


def test_the_test_set_does_not_depend_on_how_it_is_batched_and_has_its_own_sizes():
    task = Recall(64, seed=0, filler="random", test_size=70, test_length=256, test_pairs=20)
    assert task.pairs == 4
    whole = torch.cat([batch.tokens_BL for batch in task.batches("test", 70)])
    assert whole.shape == (70, 256)
    assert all(
        (batch.targets_BL != IGNORE).sum(dim=1).eq(20).all() for batch in task.batches("test", 32)
    )
    assert next(task.batches("validation", 8)).tokens_BL.shape == (8, 64)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"length": 64, "pairs": 17}, "1 to 16 pairs"),
        ({"length": 64, "pairs": 0}, "1 to 16 pairs"),
        ({"length": 3}, "at least 4"),
        ({"length": 1024, "vocab": 64}, "at least 130"),
        ({"length": 64, "pairs": 1, "vocab": 6}, "too few"),
        ({"length": 64, "test_length": 8}, "task.test_pairs=4"),
        ({"length": 64, "power": 0}, "above 0"),
        ({"length": 64, "filler": "zeros"}, "Did you mean 'zero'"),
        ({"length": 64, "test_size": 0}, "task.test_size=0"),
    ],
)
def test_bad_sizes_are_one_line_that_says_what_fits(parameters, says):
    with pytest.raises(ConfigError, match=says) as caught:
        Recall(seed=0, **parameters)
    assert "\n" not in str(caught.value)
