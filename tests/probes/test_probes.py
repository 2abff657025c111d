"""Probes against the same figures found another way."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from spanwise import probes
from spanwise.errors import ConfigError
from spanwise.model import Model
from spanwise.probes.heads import attention_maps, heads, part_of
from spanwise.probes.lengths import lengths
from spanwise.probes.maps import maps
from spanwise.probes.order import permutation
from spanwise.probes.path import path
from spanwise.probes.scores import scores
from tasks.interface import IGNORE, Batch, Task
from tasks.lookups import Lookups
from tasks.order import Order
from tasks.recall import Recall
from tasks.sentences import Sentences
from variants.full import Full
from variants.gru import GRU
from variants.local_global import LocalGlobal
from variants.windowed import Windowed


def subject_of(task, factory=Full, config=None, **model):
    keywords = {
        "vocab_size": task.vocab_size,
        "n_classes": task.n_classes,
        "causal": task.causal,
        "length": task.length,
        "seed": 0,
        "d_model": 16,
        "n_heads": 2,
        "n_layers": 2,
        "mlp_ratio": 0,
        **model,
    }
    settings = {"seed": 0, "device": "cpu", "dtype": "float32", "length": task.length}
    made = Model(factory, **keywords).eval()
    return probes.Subject({**settings, **(config or {})}, task, factory, keywords, made, False)


@pytest.mark.parametrize("d_k", [4, 256])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_scores_of_one_pair_of_keys_follow_the_logistic(d_k, scale):
    """Two keys: a weight is 1/(1 + e^-x), x normal with twice the scores' variance."""
    task = Recall(64, seed=0)
    subject = subject_of(task, d_model=d_k, n_heads=1, scale=scale)
    row = scores(subject, keys=2, rows=4000).row
    assert row["d_k"] == d_k
    assert row["score_variance"] == pytest.approx(1 if scale is None else d_k, rel=0.1)
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    # A dot product of d_k = 4 numbers is not normal yet, so only the wide one is compared closely.
    weight = torch.sigmoid(x * math.sqrt(2 * (1 if scale is None else d_k)))
    largest = torch.maximum(weight, 1 - weight)
    mean = float(torch.trapezoid(largest * density, x))
    assert row["largest_weight"] == pytest.approx(mean, rel=0.03 if d_k == 256 else 0.06)
    entropy = torch.special.entr(weight) + torch.special.entr(1 - weight)
    if d_k == 256:
        assert row["entropy"] == pytest.approx(
            float(torch.trapezoid(entropy * density, x)), rel=0.1, abs=0.005
        )


def test_scores_gradient_is_autograds():
    """One head at the layer's own scale: q's gradient is the softmax input's, times k, scaled."""
    subject = subject_of(Recall(64, seed=0), d_model=8, n_heads=1)
    row = scores(subject, keys=16, rows=1600).row
    assert row["gradient_scores"] > 0
    # |sum_j g_j k_j| / sqrt(d) for independent normal k_j has mean square |g|^2.
    assert row["gradient_q"] == pytest.approx(row["gradient_scores"], rel=0.25)


def test_scores_needs_a_softmax():
    with pytest.raises(ConfigError, match="GRU"):
        scores(subject_of(Recall(64, seed=0), GRU))


@pytest.mark.parametrize(
    ("factory", "length", "steps"),
    [
        (Full, 50, 1),
        (functools.partial(Windowed, window=8), 50, 7),  # 49 positions, 7 a step
        (functools.partial(Windowed, window=8), 51, 8),
        (functools.partial(Windowed, window=2), 20, 19),
        (functools.partial(LocalGlobal, window=4, global_tokens=1), 50, 1),
        (GRU, 20, 19),
    ],
)
def test_path_counts_the_steps_of_a_signal(factory, length, steps):
    subject = subject_of(Recall(64, seed=0), factory)
    found = path(subject, at=[length])
    assert found.row == {f"path_at_{length}": steps}
    assert found.table == [{"length": length, "steps": steps}]


def test_permutation_error_is_rounding_only_where_there_are_no_positions():
    errors = {
        positions: permutation(subject_of(Order(20, seed=0), positions=positions)).row
        for positions in ("none", "learned", "sinusoidal", "rotary", "alibi")
    }
    found = {name: row["permutation_error"] for name, row in errors.items()}
    assert found.pop("none") < 1e-13
    assert all(error > 1e-3 for error in found.values())


def test_a_causal_mask_tells_order_without_positions():
    subject = subject_of(Order(20, seed=0, causal=True), positions="none")
    assert permutation(subject).row["permutation_error"] > 1e-3


def test_lengths_tests_at_other_lengths_and_not_past_learned_positions(monkeypatch):
    settings = {"_target_": "tasks.order.Order", "tokens": 4, "test_size": 50}
    subject = subject_of(
        Order(12, seed=0, tokens=4), config={"task": settings}, positions="learned"
    )
    found = lengths(subject, at=[6, 12, 24], task={"test_size": 40})
    assert found.row["accuracy_at_24"] is None
    assert [entry["length"] for entry in found.table] == [6, 12]
    assert 0 <= found.row["accuracy_at_6"] <= 1
    assert found.table[0]["accuracy"] * 40 == pytest.approx(round(found.table[0]["accuracy"] * 40))


class Fixed(Task):
    """Four tokens, the last asks; its answer stands at position 1."""

    causal, vocab_size, n_classes, length, seed = True, 4, 4, 4, 0

    def batches(self, split, batch_size):
        yield Batch(
            torch.tensor([[1, 2, 1, 3], [2, 2, 2, 2]]),
            torch.tensor([[IGNORE, IGNORE, IGNORE, 2]] * 2),
            answers_BL=torch.tensor([[-1, -1, -1, 1]] * 2),
        )


def test_heads_measures_what_the_maps_show():
    """One head a layer with weights 1/n on the n keys it sees, so every share is known."""
    subject = subject_of(Fixed(), n_layers=1, n_heads=1)
    with torch.no_grad():
        subject.model.layers[0].W_q.weight.zero_()
    found = heads(subject, sequences=2)
    (row,) = found.table
    assert (row["layer"], row["head"]) == (1, 1)
    assert row["previous"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert row["itself"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert row["answer"] == pytest.approx(1 / 4)
    assert row["distance"] == pytest.approx((0 + 1 / 2 + 1 + 3 / 2) / 4)
    assert row["entropy"] == pytest.approx((math.log(2) + math.log(3) + math.log(4)) / 4)
    # Sequence 1 repeats token 1 once (position 2 sees position 0), sequence 2 everywhere; a key
    # that lies ahead is looked for in vain. Queries without any such key do not count.
    first = (0 + 1 / 3) / 2
    second = (0 + 1 / 2 + 2 / 3 + 3 / 4) / 4
    assert row["same"] == pytest.approx((first + second) / 2)
    assert found.row["attention_answer"] == pytest.approx(1 / 4)
    assert found.row["attention_answer_before"] != pytest.approx(1 / 4)


def test_heads_counts_globals_and_the_tasks_own_marks():
    factory = functools.partial(LocalGlobal, window=4, global_tokens=3)
    subject = subject_of(Lookups(24, seed=0), factory, n_layers=1)
    found = heads(subject, sequences=10)
    with torch.no_grad():
        batch = part_of(next(subject.task.batches("test", 32)), slice(0, 10))
        maps_BHLL = attention_maps(subject.model, batch)[0]
    assert found.table[1]["globals"] == pytest.approx(
        float(maps_BHLL[:, 1, :, :3].sum(-1).mean()), abs=1e-6
    )
    assert {"value_1", "value_2"} <= set(found.table[0])
    assert found.row["attention_value_2_head"] in ("1.1", "1.2")


def test_heads_ignores_padding():
    task = Sentences(16, seed=0)
    model = subject_of(task).model
    batch = next(task.batches("test", 5))
    padded = Batch(
        torch.nn.functional.pad(batch.tokens_BL, (0, 8)),
        torch.nn.functional.pad(batch.targets_BL, (0, 8), value=IGNORE),
        batch.lengths_B,
    )
    with torch.no_grad():
        both = zip(attention_maps(model, batch), attention_maps(model, padded), strict=True)
    for short, long in both:
        torch.testing.assert_close(short, long[..., :16, :16])


def test_maps_are_the_layers_own_whatever_kernel():
    """The layer's output is the map times its values: what is shown is what was computed."""
    subject = subject_of(Recall(32, seed=0, pairs=2), functools.partial(Windowed, window=6))
    batch = next(subject.task.batches("test", 3))
    inputs, outputs = [], []
    hook = subject.model.layers[1].register_forward_hook(
        lambda layer, x, y: inputs.append(x[0]) or outputs.append(y)
    )
    with torch.no_grad():
        weights = attention_maps(subject.model, batch)[1]
        hook.remove()
        layer = subject.model.layers[1]
        _, _, v = layer.project(inputs[0])
        torch.testing.assert_close(
            layer.W_o((weights @ v).transpose(1, 2).flatten(2)), outputs[0], rtol=1e-4, atol=1e-5
        )


def test_maps_keeps_a_chosen_sequence():
    subject = subject_of(Sentences(16, seed=0))
    kept = maps(subject, sequence=3).table
    batch = next(Sentences(16, seed=0).batches("test", 5))
    length = int(batch.lengths_B[3])
    assert kept["tokens"] == Sentences(16, seed=0).written(batch)[3][:length]
    assert [len(layer) for layer in kept["layers"]] == [2, 2]
    assert all(abs(sum(row) - 1000) <= length / 2 for row in kept["layers"][1][0])
    own = maps(subject, tokens=[3, 15, 4]).table
    assert own["tokens"] == ["猫", "追", "狗"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: maps(s, sequence=5000), "probes.maps.sequence: found 5000; allowed: 0 to 999"),
        (lambda s: maps(s, tokens=[99]), "probes.maps.tokens: found [99]; allowed: token ids"),
        (lambda s: path(s, at=[4]), "probes.path: found a bidirectional task"),
    ],
)
def test_bad_options_are_named(call, message):
    with pytest.raises(ConfigError) as caught:
        call(subject_of(Sentences(16, seed=0)))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    ["heads", {"heads": 3}, {"heads": {"_target_": "spanwise.probes.nope.heads"}}],
)
def test_a_probe_that_is_none_is_named(wrong):
    with pytest.raises(ConfigError, match="probes"):
        probes.named(wrong)


class Callable:
    def __call__(self, subject, *, option=1):
        return probes.Found()


def loose(subject, option=1):
    return probes.Found()


def test_a_probe_is_known_by_its_parameters(monkeypatch):
    monkeypatch.setattr(probes, "mine", Callable(), raising=False)
    monkeypatch.setattr(probes, "loose", loose, raising=False)
    assert "mine" in probes.named({"mine": {"_target_": "spanwise.probes.mine"}})
    with pytest.raises(ConfigError, match=r"probes.a._target_: .*loose takes \(subject, option"):
        probes.named({"a": {"_target_": "spanwise.probes.loose"}})
