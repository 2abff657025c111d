"""The kernels' tables at toy size: what a row says, and which tables are kept under which name."""

import argparse

import pytest
import torch

from benchmarks import attention, table
from spanwise.attention import rule_attention


@pytest.fixture
def options():
    return argparse.Namespace(
        window=8,
        device="cpu",
        dtype="float32",
        flex=False,
        kernels=["auto", "blocks", "full", "dense mask"],
        seconds=0.01,
        repetitions=7,
    )


def rows_of(rule, options):
    setting = attention.Setting(rule, length=64, head_dim=8, batch=1, heads=2)
    return {row["kernel"]: row for row in attention.measure(setting, options)}


def test_a_row_compares_with_the_fastest_exact_kernel_round_by_round(options):
    rows = rows_of("window", options)
    assert list(rows) == ["auto", "blocks", "full", "dense mask"]
    assert rows["auto"]["takes"] == "fused / fused"  # so few tokens: one call with a mask
    assert rows["auto"]["keys_per_query"] == pytest.approx((64 * 8 - 28) / 64, abs=1e-3)
    for phase in ("forward", "train"):
        best = [name for name, row in rows.items() if row.get(f"over_best_{phase}") == 1]
        assert len(best) == 1
        assert best != ["full"]
        for row in rows.values():
            assert row[f"x_floor_{phase}_low"] <= row[f"x_floor_{phase}"]
        assert f"over_best_{phase}" not in rows["full"]  # it is not exact for the rule
        over = rows["blocks"]
        assert over[f"over_best_{phase}_low"] <= over[f"over_best_{phase}"]


def test_interleaved_is_a_layer_of_the_window_and_a_full_one(options):
    rows = rows_of("interleaved", options)
    window, full = (64 * 8 - 28) / 64, 65 / 2
    assert rows["auto"]["keys_per_query"] == pytest.approx((window + full) / 2, abs=1e-3)
    setting = attention.Setting("interleaved", length=64, head_dim=8, batch=1, heads=2)
    layers = attention.contenders(setting, *attention.rules(8)["interleaved"], options)["auto"]
    q, k, v = torch.randn(3, 1, 2, 64, 8)
    seen = {"window": lambda q, k: q - k < 8, "full": None}
    for attend, sees in zip(layers, seen.values(), strict=True):
        expected = rule_attention(q, k, v, sees, kernel="dense")
        torch.testing.assert_close(attend(q, k, v), expected)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "short"),
        (["--threads", "1"], "short"),
        (["--window", "8"], None),
        (["--window", "8", "--write", "narrow"], "narrow"),
        (["--no-write"], None),
        (["--no-write", "--write", "narrow"], None),
    ],
)
def test_only_a_table_as_defined_is_kept_without_a_name(arguments, name):
    parser = argparse.ArgumentParser()
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--threads", type=int)
    table.add_write(parser)
    assert table.kept_as(parser, parser.parse_args(arguments), "short") == name


def test_options_replace_what_a_table_defines(monkeypatch):
    seen = []
    monkeypatch.setattr(attention, "measure", lambda setting, options: seen.append(setting) or [])
    monkeypatch.setattr(attention, "show", lambda rows, title: None)
    monkeypatch.setattr(attention, "write", lambda *arguments: pytest.fail("kept"))
    shape = ["--lengths", "128", "--head-dim", "64", "--batch", "1"]
    attention.main(["wide", *shape, "--rules", "window,chunked"])
    assert [(one.rule, one.length, one.head_dim) for one in seen] == [
        ("window", 128, 64),
        ("chunked", 128, 64),
    ]
