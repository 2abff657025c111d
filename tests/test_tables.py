import json
import math
import os

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from spanwise import fairness, scaling, summary, tables
from spanwise.errors import ConfigError
from spanwise.reading import COLUMNS, detail_table, variant_params
from tests.synthetic import record, whole_study, write


def summarised(folder):
    study = tables.load(folder)
    return study, summary.summarise(study)


def test_cells_has_a_row_a_record_and_the_promised_columns_in_order(tmp_path):
    cells = tables.cells(whole_study(tmp_path, lengths=(64, 128)))
    assert len(cells) == 2 * 4 * 2 * 3
    assert list(cells.columns[: len(COLUMNS)]) == COLUMNS
    assert list(cells.columns[len(COLUMNS) :]) == sorted(cells.columns[len(COLUMNS) :])
    assert cells["length"].dtype == "Int64"


def test_failed_cells_are_rows_with_what_is_known_of_them(tmp_path):
    lost = record("windowed", status="oom", message="over the limit", display={}, length=512)
    cells = tables.cells(write(tmp_path, [record("windowed", length=64), lost]))
    row = cells[cells["status"] == "oom"].iloc[0]
    assert (row["variant"], row["length"], row["message"]) == ("windowed", 512, "over the limit")
    assert row["variant_params"] == "window=32"
    assert row["variant_label"] == "Windowed 32"  # from the cell that could still say it
    assert math.isnan(row["accuracy"])


def test_no_records_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match=r"no records in .*nothing"):
        tables.load(tmp_path / "nothing")


def test_variant_params_tells_nested_layers_apart():
    config = {
        "_target_": "variants.interleaved.Interleaved",
        "every": 4,
        "local": {"_target_": "variants.windowed.Windowed", "window": 8},
    }
    assert variant_params(config) == "every=4, local=Windowed, local.window=8"


def test_swept_keys_are_those_that_differ_within_a_task(tmp_path):
    records = [
        record(task="recall", config={"task.pairs": 4, "train.lr": 0.1, "model.scale": None}),
        record(task="recall", config={"task.pairs": 8, "train.lr": 0.1, "model.scale": 1.0}),
        record(task="text", config={"task.path": "a", "train.lr": 0.1, "model.scale": 1.0}),
        # A cost cell's training settings play no part in it.
        record(task="text", measure="cost", config={"task.path": "a", "train.lr": 0.5}),
    ]
    study = tables.load(write(tmp_path, records))
    assert study.swept == ["model.scale", "task.pairs"]
    assert set(study.cells["model.scale"].dropna()) == {"null", "1.0"}


def test_summary_is_the_mean_with_students_interval_and_the_best(tmp_path):
    values = [0.5, 0.6, 0.85]
    folder = write(tmp_path, [record(seed=s, row={"accuracy": v}) for s, v in enumerate(values)])
    _, found = summarised(folder)
    row = found.iloc[0]
    half = stats.t.ppf(0.975, 2) * np.std(values, ddof=1) / math.sqrt(3)
    assert row["accuracy"] == pytest.approx(0.65)
    assert row["accuracy_low"] == pytest.approx(0.65 - half)
    assert row["accuracy_high"] == 1.0 < 0.65 + half  # a share's interval ends at 1
    assert (row["accuracy_best"], row["accuracy_n"], row["n"]) == (0.85, 3, 3)


def test_a_single_cell_keeps_its_own_interval(tmp_path):
    measured = {"forward_ms": 5.0, "forward_ms_low": 4.5, "forward_ms_high": 6.0, "loss": 1.0}
    _, found = summarised(write(tmp_path, [record(row=measured)]))
    row = found.iloc[0]
    assert (row["forward_ms_low"], row["forward_ms_high"]) == (4.5, 6.0)
    assert math.isnan(row["loss_low"])
    assert row["forward_ms_best"] == 5.0


def test_costs_are_better_when_less(tmp_path):
    rows = [record(seed=s, row={"forward_ms": v}) for s, v in enumerate([3.0, 2.0, 4.0])]
    _, found = summarised(write(tmp_path, rows))
    assert found.iloc[0]["forward_ms_best"] == 2.0


def test_cells_of_accuracy_and_of_cost_share_a_row(tmp_path):
    records = [
        record(seed=0, measure="accuracy", row={"accuracy": 0.5}),
        record(seed=1, measure="accuracy", row={"accuracy": 0.7}),
        record(seed=0, measure="cost", row={"forward_ms": 3.0}),
    ]
    _, found = summarised(write(tmp_path, records))
    assert len(found) == 1
    assert (found.iloc[0]["accuracy_n"], found.iloc[0]["forward_ms_n"]) == (2, 1)


def test_what_a_cell_measured_before_it_failed_is_kept(tmp_path):
    lost = record(status="oom", message="cost: too much", row={"accuracy": 0.9})
    _, found = summarised(write(tmp_path, [lost]))
    assert (found.iloc[0]["accuracy"], found.iloc[0]["n"]) == (0.9, 0)
    assert found.iloc[0]["failed"] == "oom x1"


def rate_cells():
    # Test accuracy is made to disagree with validation at every rate.
    validation = {0.001: 0.3, 0.01: 0.8, 0.1: 0.7}
    test = {0.001: 0.99, 0.01: 0.6, 0.1: 0.9}
    return [
        record(
            seed=seed,
            config={"train.lr": rate},
            row={"validation_accuracy": validation[rate] + 0.01 * seed, "accuracy": test[rate]},
        )
        for rate in validation
        for seed in (0, 1)
    ]


def test_the_learning_rate_is_chosen_by_validation_and_named(tmp_path):
    _, found = summarised(write(tmp_path, rate_cells()))
    assert len(found) == 1
    row = found.iloc[0]
    assert (row["train.lr"], row["accuracy"], row["accuracy_n"]) == (0.01, 0.6, 2)
    assert (row["lr_grid"], row["lr_grid_size"]) == ("0.001, 0.01, 0.1", 3)


def test_a_rate_at_which_a_seed_diverged_loses_to_one_that_trains_every_seed(tmp_path):
    records = rate_cells()
    records[2] |= {"status": "diverged", "row": {}}  # seed 0 at 0.01, the best rate
    _, found = summarised(write(tmp_path, records))
    assert found.iloc[0]["train.lr"] == 0.1


def test_without_validation_rates_stay_apart(tmp_path):
    records = rate_cells()
    for each in records:
        del each["row"]["validation_accuracy"]
    _, found = summarised(write(tmp_path, records))
    assert sorted(found["train.lr"]) == [0.001, 0.01, 0.1]


def test_differences_are_paired_by_seed(tmp_path):
    full, windowed = {0: 0.9, 1: 0.5, 2: 0.7}, {0: 0.8, 1: 0.45, 3: 0.1}
    records = [record("full", seed=s, row={"accuracy": v}) for s, v in full.items()]
    records += [record("windowed", seed=s, row={"accuracy": v}) for s, v in windowed.items()]
    for each in records:
        each["row"]["keys_per_query"] = 32.0 if each["choices"]["variant"] == "full" else 8.0
    found = fairness.compare(tables.load(write(tmp_path, records)))
    row = found[found["metric"] == "accuracy"].iloc[0]
    assert (row["variant"], row["against"], row["n"]) == ("windowed", "full", 2)
    assert row["difference"] == pytest.approx(-0.075)  # seeds 0 and 1 only
    half = stats.t.ppf(0.975, 1) * np.std([-0.1, -0.05], ddof=1) / math.sqrt(2)
    assert row["difference_low"] == pytest.approx(-0.075 - half)


def test_cost_ratio_comes_from_paired_logarithms(tmp_path):
    records = [record("full", seed=s, row={"forward_ms": v}) for s, v in enumerate([2.0, 4.0])]
    records += [record("windowed", seed=s, row={"forward_ms": v}) for s, v in enumerate([1.0, 1.0])]
    found = fairness.compare(tables.load(write(tmp_path, records)))
    row = found[found["metric"] == "forward_ms"].iloc[0]
    assert row["ratio"] == pytest.approx(math.sqrt(1 / 2 * 1 / 4))


@pytest.mark.parametrize(
    ("row", "config", "metric", "flag"),
    [
        ({"n_heads": 4}, {}, "accuracy", "heads: 4 against 1"),
        ({"n_params": 1020}, {}, "accuracy", "parameters: +2.0%"),
        ({"steps": 50}, {}, "accuracy", "steps: 50 against 300"),
        ({"tokens": 50}, {}, "accuracy", "tokens: 50 against 9000"),
        ({"data_hash": "b"}, {}, "accuracy", "training data at the same seed"),
        ({}, {"dtype": "bfloat16"}, "accuracy", "precision: bfloat16 against float32"),
        ({}, {"threads": 2}, "forward_ms", "threads: 2 against 1"),
        ({"contended": True}, {}, "forward_ms", "contended timing"),
    ],
)
def test_what_makes_two_rows_unequal_is_flagged(tmp_path, row, config, metric, flag):
    base = {
        "accuracy": 0.5, "forward_ms": 1.0, "n_heads": 1, "n_params": 1000, "steps": 300,
        "tokens": 9000, "contended": False, "data_hash": "a",
    }  # fmt: skip
    records = [record("full", row=base), record("windowed", row=base | row, config=config)]
    found = fairness.compare(tables.load(write(tmp_path, records)))
    assert list(found.loc[found["metric"] == metric, "flags"]) == [flag]


def test_equal_rows_have_no_flag_and_one_percent_of_parameters_is_equal(tmp_path):
    records = [record("full", row={"accuracy": 0.5, "n_params": 1000})]
    records += [record("windowed", row={"accuracy": 0.5, "n_params": 1009})]
    found = fairness.compare(tables.load(write(tmp_path, records)))
    assert list(found["flags"]) == [""]


def test_a_larger_learning_rate_grid_is_flagged(tmp_path):
    measured = {"accuracy": 0.5, "validation_accuracy": 0.5}
    records = [record("full", row=measured, config={"train.lr": rate}) for rate in (0.1, 0.2)]
    records += [record("windowed", row=measured, config={"train.lr": 0.1})]
    found = fairness.compare(tables.load(write(tmp_path, records)))
    assert "learning-rate grid size: 1 against 2" in found.iloc[0]["flags"]


def test_a_study_of_one_variant_compares_the_values_of_what_was_swept(tmp_path):
    records = [
        record(seed=s, config={"model.n_heads": h}, row={"accuracy": 0.1 * h + s, "n_heads": h})
        for h in (1, 2, 4)
        for s in (0, 1)
    ]
    found = fairness.compare(tables.load(write(tmp_path, records)))
    pairs = {(r["value"], r["against_value"]): r["difference"] for _, r in found.iterrows()}
    assert pairs[(4, 1)] == pytest.approx(0.3)
    assert set(pairs) == {(2, 1), (4, 1), (4, 2)}


def cost_study(folder, shapes):
    records = [
        record(variant, length=length, measure="cost", row={"forward_ms": shape(length)})
        for variant, shape in shapes.items()
        for length in (128, 256, 512, 1024, 2048, 4096)
    ]
    for each in records:
        each["row"]["keys_per_query"] = each["config"]["length"] / 2
        if each["choices"]["variant"] == "windowed":
            each["row"]["keys_per_query"] = 32.0
    return tables.load(write(folder, records))


def test_exponents_are_fitted_past_the_fixed_cost(tmp_path):
    study = cost_study(tmp_path, {"full": lambda n: 0.2 + 1e-6 * n**2})
    row = scaling.fit(study).iloc[0]
    # Over two steps the exponents are .54, 1.11, 1.62, 1.88: the first two are under 3/4 of 1.88.
    assert (row["from_length"], row["n_lengths"]) == (512, 4)
    assert row["exponent"] == pytest.approx(1.74, abs=0.02)
    assert row["exponent_low"] < row["exponent"] < row["exponent_high"]


def test_a_steep_start_does_not_hide_the_fixed_cost_after_it(tmp_path):
    # The first value was measured too low: its own step is steep, what follows is still flat.
    values = {128: 0.06, 256: 0.25, 512: 0.46, 1024: 1.25, 2048: 4.4, 4096: 17.0}
    row = scaling.fit(cost_study(tmp_path, {"full": values.get})).iloc[0]
    assert (row["from_length"], row["n_lengths"]) == (512, 4)


def test_a_power_law_is_fitted_over_all_of_its_lengths(tmp_path):
    study = cost_study(tmp_path, {"full": lambda n: 3e-3 * n**1.5})
    row = scaling.fit(study).iloc[0]
    assert (row["from_length"], row["to_length"], row["n_lengths"]) == (128, 4096, 6)
    assert row["exponent"] == pytest.approx(1.5)


def test_times_are_followed_in_units_of_the_product_timed_beside_them(tmp_path):
    # The machine runs every other cell at half speed, and the product with it.
    records = [
        record(
            "full",
            length=length,
            measure="cost",
            row={"forward_ms": pace * 1e-5 * length**2, "x_calibration_forward": 1e-6 * length**2},
        )
        for length, pace in zip((128, 256, 512, 1024), (1, 2, 1, 2), strict=True)
    ]
    row = scaling.fit(tables.load(write(tmp_path, records))).iloc[0]
    assert row["metric"] == "forward_ms"
    assert row["exponent"] == pytest.approx(2)
    assert row["exponent_high"] == pytest.approx(2)


def test_crossover_is_where_the_variant_gets_cheaper_than_the_reference(tmp_path):
    shapes = {"full": lambda n: 1e-6 * n**2, "windowed": lambda n: 6e-4 * n}
    found = scaling.crossovers(cost_study(tmp_path, shapes))
    row = found.iloc[0]
    assert (row["variant"], row["against"]) == ("windowed", "full")
    assert row["length"] == pytest.approx(600, rel=1e-6)
    assert row["reading"] == "cheaper from 600"


def test_crossover_that_is_never_reached_is_infinite_and_says_so(tmp_path):
    shapes = {"full": lambda n: 1e-6 * n, "windowed": lambda n: 6e-4 * n}
    row = scaling.crossovers(cost_study(tmp_path, shapes)).iloc[0]
    assert math.isinf(row["length"])
    assert row["reading"] == "not cheaper at 4096"


HOSTILE = {
    "a list": "[1, 2]",
    "half a file": '{"version": 1, "key": "x',
    "no JSON": "\x00\x01",
    "nothing": "",
    "newer": json.dumps(record(seed=90) | {"version": 2, "key": "newer"}),
    "bad status": json.dumps(record(seed=91) | {"status": "fine", "key": "bad status"}),
    "bad accuracy": json.dumps(record(row={"accuracy": "high"}) | {"key": "bad accuracy"}),
    "row is text": json.dumps(record(seed=93) | {"row": "none", "key": "row is text"}),
    "deep": "[" * 100_000,
    "another key": json.dumps(record(seed=94)),
}


def test_hostile_records_are_set_aside_with_a_reason(tmp_path):
    folder = write(tmp_path, [record(row={"accuracy": 0.5})])
    for name, text in HOSTILE.items():
        (folder / "records" / f"{name}.json").write_text(text)
    os.mkfifo(folder / "records" / "pipe.json")
    (folder / "records" / "folder.json").mkdir()
    study = tables.load(folder)
    named = {each.file.removesuffix(".json") for each in study.rejected}
    assert named == {*HOSTILE, "pipe", "folder"}
    assert all("\n" not in each.reason and len(each.reason) < 400 for each in study.rejected)
    assert list(study.cells["accuracy"].dropna()) == [0.5]


def test_a_config_nested_too_deep_stops_nothing(tmp_path):
    folder = write(tmp_path, [record(row={"accuracy": 0.5})])
    text = json.dumps(record(seed=95) | {"key": "deep"})
    deep = '{"a":' * 900 + "1" + "}" * 900
    (folder / "records" / "deep.json").write_text(text.replace('"n_layers": 2', f'"b": {deep}'))
    assert tables.load(folder).cells["accuracy"].count() == 1


def test_strange_values_do_not_spoil_the_columns_of_other_records(tmp_path):
    good = [record(seed=s, row={"accuracy": 0.5, "mine": 1.0}) for s in range(3)]
    strange = record(
        seed=7,
        row={
            "accuracy": float("nan"),
            "mine": "one",
            "huge": 10**400,
            "<b>": 1,
            "long": "x" * 10**6,
            "nested": {"a": 1},
        },
        message="y" * 10**6,
        display=[],
        machine="none",
        visibility=[["10", "1"]],
        detail={"train": {"curve": [{"step": "a"}]}},
    )
    study = tables.load(write(tmp_path, [*good, strange]))
    assert study.cells["mine"].dtype == float
    assert study.cells["mine"].sum() == 3.0
    assert len(study.cells["message"].dropna().iloc[-1]) < 3000
    assert "<b>" not in study.cells
    assert summary.summarise(study).iloc[0]["accuracy_n"] == 3


def test_detail_tables_are_read_from_points_and_from_columns():
    points = detail_table([{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}])
    assert list(points) == ["loss", "step"]
    assert math.isnan(points["loss"][1])
    columns = detail_table({"n": [4, 0], "correct": [1, 0]})
    assert columns["accuracy"][0] == 0.25
    assert math.isnan(columns["accuracy"][1])
    assert len(detail_table({"a": [0.0] * 5000, "b": [1.0] * 5000})["a"]) == 200
    assert detail_table({"a": [1, 2], "b": [1]}) is None
    assert detail_table([1, 2]) is None


def test_tables_are_written_whole_and_alike(tmp_path):
    frame = pd.DataFrame({"a": [1 / 3, 1e-7, 2.0**40], "b": ["x, y", None, '"']})
    path = tmp_path / "t.csv"
    tables.write_csv(frame, path)
    first = path.read_bytes()
    assert first == b'a,b\n0.333333333,"x, y"\n0.0000001,\n1099511630000,""""\n'
    tables.write_csv(frame, path)
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]
