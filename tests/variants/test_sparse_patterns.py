"""Sinks, dilated, strided, BigBird: what is seen, by hand; and a layout that changes nothing."""

import pytest
import torch

from spanwise.attention import rule_attention
from variants.bigbird import BigBird
from variants.dilated import Dilated
from variants.sinks import Sinks
from variants.strided import Strided

SHARED = {"d_model": 8, "n_heads": 2}


def rows(layer, length):
    return ["".join("x" if seen else "." for seen in row) for row in layer.visibility(length)]


def test_sinks_are_seen_but_see_only_their_window():
    assert rows(Sinks(2, 2, **SHARED, causal=False), 6) == [
        "xx....",
        "xxx...",
        "xxxx..",
        "xx.xx.",
        "xx..xx",
        "xx...x",
    ]
    assert rows(Sinks(2, 1, **SHARED), 5) == ["x....", "xx...", "xxx..", "x.xx.", "x..xx"]


def test_dilated_keys_lie_apart():
    assert rows(Dilated(3, 2, **SHARED), 7)[-2:] == [".x.x.x.", "..x.x.x"]
    assert rows(Dilated(3, 3, **SHARED, causal=False), 8)[3:5] == ["x..x..x.", ".x..x..x"]


def test_strided_is_local_and_every_nth():
    assert rows(Strided(3, **SHARED), 8)[-2:] == ["x..xxxx.", ".x..xxxx"]
    assert rows(Strided(3, **SHARED, causal=False), 8)[3] == "x.xxx.x."


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("make", [lambda **k: Dilated(7, 5, **k), lambda **k: Strided(9, **k)])
def test_reordered_positions_give_what_the_rule_gives(make, causal, length):
    layer = make(**SHARED, causal=causal).double()
    x = torch.randn(3, length, 8, dtype=torch.float64)
    lengths = torch.tensor([length, length // 2, 0])
    q, k, v = layer.project(x)
    expected = rule_attention(q, k, v, layer.sees, causal, lengths, layer.scale, kernel="dense")
    found = layer.attend(q, k, v, lengths)
    valid = (torch.arange(length) < lengths[:, None])[:, None, :, None]
    torch.testing.assert_close(found * valid, expected, rtol=0, atol=1e-10)


def test_random_blocks_are_the_same_at_every_length_and_reach_back_only():
    layer = BigBird(4, 1, 2, 8, **SHARED)
    long = layer.visibility(128)
    assert layer.visibility(40).equal(long[:40, :40])
    beyond = long.clone()
    place = torch.arange(128)
    beyond &= (place[:, None] - place >= 4) & (place >= 1)
    blocks = beyond.unflatten(0, (16, 8)).unflatten(2, (16, 8)).any(1).any(2)
    assert not blocks.triu(1).any()
    # Each block draws two, which may coincide with each other or with what is seen anyway.
    assert blocks.sum(1).max() <= 3
    assert blocks.tril(-2)[4:].any(1).sum() >= 8
    other = BigBird(4, 1, 2, 8, random_seed=1, **SHARED)
    assert not other.visibility(128).equal(long)


def test_random_blocks_draw_evenly_from_all_before():
    layer = BigBird(1, 0, 4, 16, **SHARED)
    drawn = torch.stack(layer._drawn)[:, 1000:2000].double()
    shares = drawn / torch.arange(1000, 2000)
    assert (shares < 1).all()
    assert abs(float(shares.mean()) - 0.5) < 0.02


def test_without_causality_a_drawn_block_looks_back():
    layer = BigBird(1, 0, 1, 4, **SHARED, causal=False)
    seen = layer.visibility(64)
    assert seen.equal(seen.T)
    assert seen.triu(8).any()


def test_more_blocks_than_are_drawn_are_refused(monkeypatch):
    monkeypatch.setattr("variants.bigbird.BLOCKS", 4)
    layer = BigBird(2, 1, 1, 3, **SHARED)
    layer(torch.zeros(1, 12, 8))
    with pytest.raises(ValueError, match="block: found 3 for 13 positions; allowed: at least 4"):
        layer(torch.zeros(1, 13, 8))
