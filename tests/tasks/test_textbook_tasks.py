"""Order, lookups and sentences against readings of their definitions, token by token."""

from __future__ import annotations

import itertools

import pytest
import torch

from spanwise.errors import ConfigError
from tasks.interface import IGNORE
from tasks.lookups import Lookups
from tasks.order import FIRST, QUESTION, Order
from tasks.sentences import NOUNS, VERBS, WORDS, Sentences


def first_batch(task, split="train", size=400):
    return next(task.batches(split, size))


def rows(batch):
    return zip(batch.tokens_BL.tolist(), batch.targets_BL.tolist(), strict=True)


@pytest.mark.parametrize("length", [5, 9, 64])
def test_order_asks_which_came_first(length):
    batch = first_batch(Order(length, seed=0, tokens=5))
    for (tokens, targets), answers in zip(rows(batch), batch.answers_BL.tolist(), strict=True):
        assert tokens[-1] == QUESTION
        there = [(i, t) for i, t in enumerate(tokens[:-1]) if t]
        assert len(there) == 2
        assert there[0][1] != there[1][1]
        assert targets[:-1] == [IGNORE] * (length - 1)
        assert targets[-1] == there[0][1] - FIRST
        assert answers[-1] == there[0][0]


def test_order_cannot_be_told_from_the_tokens_alone():
    """Whichever of the two has the lower number is first half of the time."""
    batch = first_batch(Order(16, seed=0, tokens=8), size=4000)
    two = batch.tokens_BL[:, :-1][batch.tokens_BL[:, :-1] > 0].unflatten(0, (-1, 2))
    lower_first = (two.min(dim=1).values - FIRST == batch.targets_BL[:, -1]).double().mean()
    assert abs(lower_first - 0.5) < 0.04


def test_lookups_answer_is_the_values_in_order():
    task = Lookups(25, seed=0, pairs=4, relations=3, keys=9, values=5)
    batch = first_batch(task)
    marks = task.marks(batch)
    for i, (tokens, targets) in enumerate(rows(batch)):
        book = dict(zip(tokens[0:8:2], tokens[1:8:2], strict=True))
        assert len(book) == 4
        asking = [j for j, target in enumerate(targets) if target != IGNORE]
        assert asking == [10, 13, 16, 19, 22]
        for j in asking:
            keys = tokens[j - 2 : j + 1]
            assert len(set(keys)) == 3
            a, b, c = (book[key] - 1 - 9 for key in keys)
            assert targets[j] == 25 * a + 5 * b + c
            for r, key in enumerate(keys):
                seen = marks[f"value_{r + 1}"][i, j].nonzero().flatten().tolist()
                assert seen == [tokens[0:8:2].index(key) * 2 + 1]
        assert tokens[23:] == [0, 0]


def noun_of_phrase(words):
    """The noun that the grammar makes the head: the last word, behind any side phrase."""
    if "旁" in words:
        assert words[1:3] == ["旁", "的"]
        words = words[3:]
    assert len(words) <= 2
    return words[-1]


def test_sentences_ask_for_subject_and_object():
    task = Sentences(16, seed=0, nouns=6, beside=0.7)
    batch = first_batch(task)
    marks = task.marks(batch)
    for i, (tokens, targets) in enumerate(rows(batch)):
        length = int(batch.lengths_B[i])
        assert tokens[length:] == [0] * (16 - length)
        words = [WORDS[t] for t in tokens[:length]]
        verb = next(j for j, w in enumerate(words) if w in VERBS)
        left, right = words[:verb], words[verb + 1 :]
        if left[0] in ("今天", "昨天", "早上", "晚上"):
            left = left[1:]
        if left[-1] in ("又", "常", "不", "也"):
            left = left[:-1]
        subject, other = noun_of_phrase(left), noun_of_phrase(right)
        assert subject != other
        assert [j for j, t in enumerate(targets) if t != IGNORE] == [verb]
        assert targets[verb] == 6 * NOUNS.index(subject) + NOUNS.index(other)
        looked = {n: m[i, verb].nonzero().flatten().tolist() for n, m in marks.items()}
        assert [words[j] for j in looked["subject"]] == [subject]
        assert [words[j] for j in looked["object"]] == [other]
        assert all(words[j + 1] == "旁" for j in looked["distractor"])
        everyone = {j for j, w in enumerate(words) if w in NOUNS}
        assert {*looked["subject"], *looked["object"], *looked["distractor"]} == everyone


TASKS = [
    lambda seed: Order(12, seed=seed, tokens=6, test_size=300),
    lambda seed: Lookups(20, seed=seed, test_size=300),
    lambda seed: Sentences(16, seed=seed, test_size=300),
]


@pytest.mark.parametrize("make", TASKS)
def test_splits_share_no_sequence_and_are_the_same_every_time(make):
    def contents(split, seed, count):
        batches = itertools.islice(make(seed).batches(split, 100), count)
        return [tuple(row) for batch in batches for row in batch.tokens_BL.tolist()]

    train, validation, test = (
        set(contents("train", 1, 20)),
        set(contents("validation", 1, 9)),
        set(contents("test", 2, 9)),
    )
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert contents("test", 1, 9) == contents("test", 1, 9)
    assert len(contents("test", 1, 9)) == 300
    assert contents("train", 1, 1) != contents("train", 2, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Order(2, seed=0), "length=2"),
        (lambda: Order(64, seed=0, tokens=1), "task.tokens=1"),
        (lambda: Order(3, seed=0, tokens=2), "at least 64"),
        (lambda: Order(64, seed=0, test_size=0), "task.test_size=0"),
        (lambda: Lookups(13, seed=0), "length=13"),
        (lambda: Lookups(24, seed=0, pairs=1), "task.pairs=1: must be at least 2"),
        (lambda: Lookups(24, seed=0, keys=5), "task.keys=5: must be at least 6"),
        (lambda: Lookups(24, seed=0, values=80), "6400 different answers"),
        (lambda: Sentences(12, seed=0), "at least 13"),
        (lambda: Sentences(16, seed=0, nouns=2), "task.nouns=2"),
        (lambda: Sentences(16, seed=0, beside=1.5), "task.beside=1.5"),
    ],
)
def test_bad_sizes_are_named(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tasks_tell_readers_what_tokens_are():
    task = Lookups(14, seed=0, pairs=2, keys=6, values=3)
    text = task.written(first_batch(task, size=1))[0]
    assert text[0].startswith("k")
    assert text[1].startswith("v")
    assert torch.tensor(first_batch(task, size=1).tokens_BL.tolist()).max() < task.vocab_size
