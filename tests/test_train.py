"""Training: the recipe's steps against torch's own, what a row holds, and its promises."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
import yaml
from torch import nn

from spanwise.errors import ConfigError
from spanwise.statistics import wilson
from spanwise.train import Diverged, Evaluation, evaluate, rate_at, train
from tasks.interface import IGNORE, Batch, Task


class Echo(Task):
    """Say the token that stands ``back`` positions before; asked at the last two positions."""

    vocab_size = n_classes = 5
    chance = 0.2

    def __init__(self, length=8, seed=0, back=0):
        self.length, self.seed, self.back = length, seed, back

    def batches(self, split, batch_size):
        generator = torch.Generator().manual_seed(self.seed + len(split))
        left = None if split == "train" else 10
        while left is None or left > 0:
            size = batch_size if left is None else min(batch_size, left)
            tokens = torch.randint(0, 5, (size, self.length), generator=generator)
            targets = torch.full_like(tokens, IGNORE)
            answers = torch.full_like(tokens, -1)
            for at in (self.length - 1, self.length - 2):
                answers[:, at] = at - self.back
                targets[:, at] = tokens[:, at - self.back]
            yield Batch(tokens, targets, answers_BL=answers)
            left = None if left is None else left - size

    def metrics(self, loss_N, correct_N):
        return {"twice_wrong": 2 * float((~correct_N).sum())}


class Pointwise(nn.Module):
    """Looks at its own position alone: learns Echo(back=0), and only that."""

    def __init__(self, dropout=0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(5, 16, generator=generator))
        self.head = nn.Parameter(torch.randn(16, 5, generator=generator) / 4)
        self.bias = nn.Parameter(torch.ones(5))
        self.dropout = nn.Dropout(dropout)
        self.asked = []

    def forward(self, tokens_BL, lengths=None, at=None):
        self.asked.append(at)
        return self.dropout(self.embedding[tokens_BL[at]]) @ self.head + self.bias


RECIPE = {"steps": 60, "batch": 16, "lr": 0.05, "warmup": 5, "eval_batch": 4}


def test_it_learns_what_the_model_can_and_nothing_else():
    row, detail = train(Pointwise(), Echo(), **RECIPE, eval_every=20)
    assert row["accuracy"] == row["validation_accuracy"] == 1.0
    assert (row["accuracy_low"], row["accuracy_high"]) == wilson(20, 20)
    assert row["n_targets"] == 20
    assert row["steps"] == 60
    assert row["tokens"] == 60 * 16 * 8
    assert row["twice_wrong"] == 0
    assert [look["step"] for look in detail["curve"]] == [20, 40, 60]
    blind, _ = train(Pointwise(), Echo(back=3), **RECIPE)
    assert blind["accuracy"] < 0.7
    assert blind["twice_wrong"] == 2 * round(20 * (1 - blind["accuracy"]))


def test_steps_are_those_of_adamw_with_decay_on_matrices_clip_and_cosine():
    model, task = Pointwise(), Echo(back=2)
    train(model, task, steps=4, batch=16, lr=0.1, warmup=2, weight_decay=0.3, clip=0.05)
    twin = Pointwise()
    matrices = [twin.embedding, twin.head]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.3}, {"params": [twin.bias], "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    batches = task.batches("train", 16)
    for lr in (0.05, 0.1, 0.1, 0.05):
        for group in optimizer.param_groups:
            group["lr"] = lr
        batch = next(batches)
        at = batch.targets_BL != IGNORE
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(batch.tokens_BL, at=at), batch.targets_BL[at]).backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in twin.parameters()))
        assert norm > 0.05
        for p in twin.parameters():
            p.grad *= 0.05 / norm
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, twin.get_parameter(name), rtol=1e-4, atol=1e-5)


def test_schedules():
    assert [rate_at(step, 10, 4, "constant") for step in (1, 4, 5, 10)] == [0.25, 1, 1, 1]
    assert rate_at(7, 8, 4, "cosine") == pytest.approx(0.5)
    assert rate_at(3, 3, 30, "cosine") == pytest.approx(0.1)
    rates = [rate_at(step, 100, 10, "cosine") for step in range(10, 101)]
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.001


def test_stop_at_is_recorded():
    row, detail = train(Pointwise(), Echo(), **RECIPE, eval_every=10, stop_at=0.95)
    assert row["validation_accuracy"] >= 0.95
    assert row["steps"] == detail["curve"][-1]["step"] < 60
    assert row["tokens"] == row["steps"] * 16 * 8


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_names_its_step(value):
    class Breaks(Pointwise):
        def forward(self, tokens_BL, lengths=None, at=None):
            logits = super().forward(tokens_BL, lengths, at)
            return logits * value if len(self.asked) == 7 else logits

    with pytest.raises(Diverged, match="at step 7") as caught:
        train(Breaks(), Echo(), **RECIPE)
    assert caught.value.step == 7


def test_data_hash_tells_the_order_of_the_batches():
    def hashed(**changes):
        return train(Pointwise(), Echo(seed=changes.pop("seed", 0)), **(RECIPE | changes))[0]

    first = hashed()["data_hash"]
    assert first == hashed(lr=0.01, clip=None)["data_hash"]
    assert len({first, *(hashed(**c)["data_hash"] for c in ({"seed": 9}, {"steps": 59}))}) == 3


def test_evaluation_is_without_dropout_and_whole_and_only_at_targets():
    model, task = Pointwise(dropout=0.5), Echo()
    model.train()
    one, two = (evaluate(model, task, "test", batch) for batch in (3, 10))
    assert model.training
    torch.testing.assert_close(one.loss_N, two.loss_N)
    assert len(one.loss_N) == 20
    assert all(at.sum() == 2 * len(at) for at in model.asked)


def test_dropout_has_a_stream_of_its_own():
    def run(seed):
        model = Pointwise(dropout=0.5)
        train(model, Echo(), **RECIPE, seed=seed)
        return model.embedding.detach()

    before = torch.random.get_rng_state()
    first = run(1)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(123)
    assert torch.equal(run(1), first)
    assert not torch.equal(run(2), first)


def test_accuracy_by_distance():
    found = Evaluation(
        loss_N=torch.zeros(6),
        correct_N=torch.tensor([True, True, False, True, False, True]),
        distance_N=torch.tensor([1, 2, 3, 9, 12, -1]),
    )
    assert found.by_distance() == [
        {"low": 1, "high": 1, "n": 1, "correct": 1},
        {"low": 2, "high": 3, "n": 2, "correct": 1},
        {"low": 8, "high": 15, "n": 2, "correct": 1},
    ]
    _, detail = train(Pointwise(), Echo(back=3), **RECIPE)
    assert [(d["low"], d["n"]) for d in detail["by_distance"]] == [(2, 20)]


def test_bfloat16_runs_the_matrix_products_in_half_precision():
    row, _ = train(Pointwise(), Echo(), **RECIPE, dtype="bfloat16")
    other, _ = train(Pointwise(), Echo(), **RECIPE)
    assert row["accuracy"] == 1.0
    assert row["loss"] != other["loss"]


def test_progress_hears_every_step():
    heard = []
    train(Pointwise(), Echo(), **RECIPE, progress=lambda step, steps: heard.append((step, steps)))
    assert heard == [(step, 60) for step in range(1, 61)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": 0}, "train.steps: found 0; allowed: a whole number from 1"),
        ({"steps": 1.5}, "train.steps: found 1.5"),
        ({"batch": "many"}, "train.batch: found 'many'"),
        ({"lr": 0}, "train.lr: found 0; allowed: a number above 0"),
        ({"lr": math.nan}, "train.lr: found nan"),
        ({"betas": [0.9, 1.0]}, "train.betas"),
        ({"warmup": -1}, "train.warmup: found -1"),
        ({"clip": 0}, "above 0, or null"),
        ({"eval_every": 0}, "train.eval_every: found 0; allowed: a whole number from 1, or null"),
        ({"stop_at": 95}, "train.stop_at: found 95"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"dtype": "float64"}, "^dtype: found 'float64'; allowed: float32, bfloat16"),
    ],
)
def test_bad_settings_are_one_line(changes, says):
    with pytest.raises(ConfigError, match=says):
        train(Pointwise(), Echo(), **(RECIPE | changes))


def test_every_shipped_recipe_names_each_setting_and_no_other(request):
    harness = {"model", "task", "seed", "device", "dtype", "progress"}
    settings = set(inspect.signature(train).parameters) - harness
    recipes = sorted((request.config.rootpath / "configs" / "train").glob("*.yaml"))
    assert len(recipes) >= 3
    for recipe in recipes:
        assert set(yaml.safe_load(recipe.read_text())) == settings, recipe.name
