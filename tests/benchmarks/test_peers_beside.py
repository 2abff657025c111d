"""The peers' table at toy size: what is counted, what is left out and why, who is said to win."""

import argparse

import pytest
import torch

from benchmarks import peers


@pytest.fixture
def options():
    return argparse.Namespace(
        window=8,
        heads=2,
        head_dim=8,
        batch=1,
        repetitions=3,
        seconds=0.01,
        memory_gib=4.0,
        longest=5.0,
        keys_seconds=20.0,
        device="cpu",
        dtype="float32",
    )


@pytest.mark.parametrize(
    ("setting", "contenders"),
    [
        ("causal", ["spanwise", "flex_attention", "local-attention, 2 windows"]),
        ("layer", ["spanwise", "Longformer", "projections alone"]),
    ],
)
def test_every_contender_sees_as_many_keys(setting, contenders, options, monkeypatch):
    scope, causal, kinds = peers.settings(8)[setting]
    few = {setting: (scope, causal, {name: kinds[name] for name in contenders})}
    monkeypatch.setattr(peers, "settings", lambda window: few)
    rows = {row["contender"]: row for row in peers.measure(setting, 64, options)}
    # 64 queries see 9 keys each; missing are 8 + 7 + ... + 1, or 4 + 3 + 2 + 1 at either end.
    expected = (64 * 9 - (36 if setting == "causal" else 20)) / 64
    for name, row in rows.items():
        if name != peers.PROJECTIONS:
            assert (
                row["keys_per_query"] == row["keys_measured"] == pytest.approx(expected, abs=0.01)
            )
            assert row["forward_peak_mib"] > 0
        assert row["x_floor_forward"] > 0
    assert rows["spanwise"]["x_spanwise_train"] == 1
    for name, row in rows.items():
        forward_only = name == "flex_attention"
        assert row["left_out"] == ("train: no backward pass on the CPU" if forward_only else "")
        assert ("train_ms" in row) != forward_only
    inside = [name for name, row in rows.items() if "x_inside_train" in row]
    assert inside == (["spanwise", "Longformer"] if setting == "layer" else [])


def test_what_does_not_fit_is_left_out_with_the_reason(options):
    options.memory_gib = 0.2
    made = peers.tried(
        peers.settings(8)["causal"][2]["SDPA, dense mask"], "op", True, 16384, options
    )
    assert made.left_out == {"forward": "more than 0.2 GiB", "train": "as its forward pass"}
    assert made.passes() == {}
    options.memory_gib, options.longest = 4.0, 0.0
    made = peers.tried(peers.settings(8)["causal"][2]["spanwise"], "op", True, 64, options)
    assert made.left_out == {"forward": "0 s a pass", "train": "as its forward pass"}


def test_the_limit_of_memory_ends_with_the_passes():
    with peers.memory_limit(0.05), pytest.raises(RuntimeError, match="allocate"):
        torch.ones(2**28)
    torch.ones(2**26)


def test_a_peer_that_wins_is_named():
    rows = [
        {"contender": "spanwise", "setting": "causal", "length": 8192, "x_spanwise_forward": 1.0},
        {"contender": "slow", "setting": "causal", "length": 8192, "x_spanwise_forward": 7.0},
        {"contender": "near", "setting": "causal", "length": 8192, "x_spanwise_forward": 2.0},
        {"contender": "fast", "setting": "causal", "length": 1024, "x_spanwise_forward": 0.8},
    ]
    said = peers.verdicts(rows)
    assert any("fast is ahead of ours at 1,024 tokens" in line for line in said)
    assert any("near takes less than 4 times as long as ours at 8,192" in line for line in said)
    assert not any("slow" in line for line in said)
