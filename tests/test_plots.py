import math

import numpy as np
import pytest
from matplotlib.colors import to_hex

from spanwise import figures, plots, summary, tables
from spanwise.errors import ConfigError
from spanwise.figures import Figure
from spanwise.palette import OKABE_ITO, distinct, hues, natural, styles
from spanwise.panel import plain_text
from spanwise.pictures import visibility
from spanwise.series import points
from tests.synthetic import curve, record, whole_study, write


def found_of(folder, figure):
    study = tables.load(folder)
    return study, points(study, summary.choose_rates(study), figure)


def canvas_of(folder, figure):
    study, found = found_of(folder, figure)
    return plots.lines(found, figure, study)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return whole_study(tmp_path_factory.mktemp("study"), lengths=(64, 128, 256))


def test_a_panel_a_task_a_line_a_variant_in_its_own_colour(study):
    canvas = canvas_of(study, Figure("accuracy"))
    shown = [ax for ax in canvas.axes if ax.get_visible()]
    assert [ax.get_title(loc="left") or ax.get_title() for ax in shown] == ["recall", "text"]
    for ax in shown:
        drawn = {to_hex(box.lines[0].get_color()).upper() for box in ax.containers}
        assert drawn == {"#000000", "#0072B2", "#D55E00", "#E69F00"}
        assert ax.get_xlabel() == "sequence length (tokens)"
        assert ax.get_xscale() == "log"
    labels = [text.get_text() for text in canvas.legends[0].get_texts()]
    assert labels == ["Full", "Full map", "Local + global 32 16", "Windowed 32"]


def test_points_are_means_over_seeds_with_their_interval(tmp_path):
    records = [
        record(length=n, seed=s, row={"accuracy": 0.5 + 0.1 * s}) for n in (64, 128) for s in (0, 1)
    ]
    _, found = found_of(write(tmp_path, records), Figure("accuracy"))
    line = found.panels[0].lines[0]
    assert line.x == [64, 128]
    assert line.y == pytest.approx([0.55, 0.55])
    assert (line.low[0], line.high[0]) == (0.0, 1.0)  # Student's, one degree: cut to a share


def test_costs_are_drawn_log_log_with_the_exponent_in_the_legend(tmp_path):
    records = [
        record(length=n, row={"forward_peak_bytes": 2**20 * n**2}) for n in (64, 128, 256, 512)
    ]
    canvas = canvas_of(write(tmp_path, records), Figure("forward_peak_bytes"))
    ax = canvas.axes[0]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert r"L^{2.00 \pm 0.00}" in ax.get_legend().get_texts()[0].get_text()
    assert ax.get_ylabel() == "peak memory, forward (MiB)"
    assert list(ax.containers[0].lines[0].get_ydata()) == pytest.approx(
        [64**2, 128**2, 256**2, 512**2]
    )


@pytest.mark.parametrize("y", ["accuracy", "forward_ms"])
def test_a_failed_cell_is_a_cross_above_the_panel_named_by_its_status(study, tmp_path, y):
    canvas = canvas_of(study, Figure(y))
    ax = canvas.axes[0]
    crosses = [text for text in ax.texts if text.get_text() == "×"]
    assert [text.xy[0] for text in crosses] == [256]
    assert crosses[0].xy[1] > 1
    assert to_hex(crosses[0].get_color()).upper() == "#E69F00"  # full_map's
    assert "oom" in [text.get_text() for text in ax.texts]
    low, high = ax.get_xlim()
    assert low <= 256 <= high


def test_a_variant_of_which_every_cell_failed_is_still_in_the_legend(tmp_path):
    records = [record("full", length=n, row={"accuracy": 0.5}) for n in (64, 128)]
    records += [record("windowed", length=n, status="timeout", message="late") for n in (64, 128)]
    canvas = canvas_of(write(tmp_path, records), Figure("accuracy"))
    assert "Windowed 32" in [text.get_text() for text in canvas.legends[0].get_texts()]


def test_a_failed_cost_cell_is_no_gap_in_accuracy(tmp_path):
    records = [record(measure="accuracy", row={"accuracy": 0.5})]
    records += [record(measure="cost", status="oom", length=512)]
    _, found = found_of(write(tmp_path, records), Figure("accuracy"))
    assert found.panels[0].lines[0].failed == []


def test_ceiling_is_dashed_and_chance_is_a_line(tmp_path):
    records = [record(length=n, row={"accuracy": 0.5, "ceiling": 0.75}) for n in (64, 128)]
    for each in records:
        each["display"]["task"]["chance"] = 0.25
    canvas = canvas_of(write(tmp_path, records), Figure("accuracy", dashed="ceiling"))
    values = [set(line.get_ydata()) for line in canvas.axes[0].lines]
    assert {0.75} in values
    assert {0.25} in values
    assert "ceiling" in [text.get_text() for text in canvas.legends[0].get_texts()]


def test_what_was_swept_makes_lines_and_what_follows_from_length_does_not(tmp_path):
    records = [
        record(
            length=n,
            config={"model.positions": p, "task.pairs": n // 16},
            row={"accuracy": 0.5},
        )
        for n in (64, 128)
        for p in ("none", "rotary")
    ]
    _, found = found_of(write(tmp_path, records), Figure("accuracy"))
    assert [line.label for line in found.panels[0].lines] == [
        "positions = none",
        "positions = rotary",
    ]
    assert found.panels[0].lines[0].x == [64, 128]


def test_a_swept_key_can_be_the_axis_of_categories(tmp_path):
    records = [
        record(config={"model.positions": p}, row={"accuracy": 0.5}) for p in ("none", "rotary")
    ]
    canvas = canvas_of(write(tmp_path, records), Figure("accuracy", x="model.positions"))
    ticks = [label.get_text() for label in canvas.axes[0].get_xticklabels()]
    assert ticks == ["none", "rotary"]


def test_counts_are_ticked_where_they_are(tmp_path):
    records = [
        record(config={"model.n_heads": n}, row={"x_floor_train": 1.0 + n}) for n in (1, 2, 4)
    ]
    canvas = canvas_of(
        write(tmp_path, records), Figure("x_floor_train", x="model.n_heads", log="none")
    )
    ax = canvas.axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "4"]
    # A name longer than the panel is high goes over two lines, whole.
    assert ax.get_ylabel() == "forward + backward time over the\narithmetic floor"


def test_where_keeps_only_the_cells_asked_for(study):
    _, found = found_of(study, Figure("accuracy", where={"task": "text", "length": [64, 128]}))
    assert len(found.panels) == 1
    assert {x for line in found.panels[0].lines for x in line.x} == {64, 128}


def test_accuracy_against_cost_has_both_from_one_setting(tmp_path):
    records = [record(length=n, row={"accuracy": 0.5, "forward_ms": n / 10}) for n in (64, 128)]
    _, found = found_of(write(tmp_path, records), Figure("accuracy", x="forward_ms"))
    assert found.panels[0].lines[0].x == pytest.approx([6.4, 12.8])


def test_training_curves_have_a_line_a_seed(tmp_path):
    records = [record(seed=s, detail={"train": {"curve": curve(0.9)}}) for s in range(3)]
    canvas = canvas_of(write(tmp_path, records), Figure("curve.loss", x="curve.step"))
    (line,) = canvas.axes[0].lines
    assert np.isnan(line.get_ydata()).sum() == 3  # a gap after each seed
    assert canvas.axes[0].get_xlabel() == "training step"


def test_details_other_than_curves_are_means_over_seeds(tmp_path):
    detail = [
        {
            "train": {
                "by_distance": [{"low": 1, "n": 4, "correct": c}, {"low": 2, "n": 4, "correct": 4}]
            }
        }
        for c in (1, 3)
    ]
    records = [record(seed=s, detail=d) for s, d in enumerate(detail)]
    _, found = found_of(
        write(tmp_path, records), Figure("by_distance.accuracy", x="by_distance.low")
    )
    assert found.panels[0].lines[0].y == pytest.approx([0.5, 1.0])


def test_visibility_shows_each_layer_of_each_variant(tmp_path):
    stack = record("local_global", visibility=[["10", "11"], None, ["10", "01"]])
    drawn = visibility(tables.load(write(tmp_path, [record("full"), stack])))
    pictures = [ax for ax in drawn.axes if ax.images]
    assert [ax.get_title(loc="left") or ax.get_title() for ax in pictures] == [
        "Full",
        "Local + global 32 16\nlayer 1",
        "Local + global 32 16\nlayer 2",
    ]
    assert pictures[2].images[0].get_array().tolist() == [[1, 0], [0, 1]]


def test_visibility_of_a_wide_window_is_a_sample_that_tells_its_span(tmp_path):
    wide = record("full", visibility={"span": 128, "layers": [["10", "11"]]})
    small = record("full", seed=1, visibility={"span": 2, "layers": [["10", "11"]]})
    drawn = visibility(tables.load(write(tmp_path, [small, wide])))
    assert [t.get_text() for t in drawn.axes[0].get_xticklabels()] == ["0", "127"]


def test_too_many_series_are_cut_and_counted(tmp_path):
    records = [record("windowed", params={"window": w}, row={"accuracy": 0.5}) for w in range(40)]
    _, found = found_of(write(tmp_path, records), Figure("accuracy"))
    assert [line.name[1] for line in found.panels[0].lines][:2] == ["window=0", "window=1"]
    assert len(found.panels[0].lines) == 24
    assert found.left_out == "16 of 40 series"


def test_the_same_records_give_the_same_bytes_and_stale_figures_go(study):
    def build():
        loaded = tables.load(study)
        plots.draw(loaded, summary.choose_rates(loaded), [Figure("accuracy"), Figure("train_ms")])
        return {path.name: path.read_bytes() for path in (study / "plots").iterdir()}

    (study / "plots").mkdir(exist_ok=True)
    (study / "plots" / "gone.png").write_bytes(b"")
    (study / "plots" / "mine.txt").write_bytes(b"a note")
    first, second = build(), build()
    assert first == second
    assert sorted(first) == [
        *(f"accuracy_by_length.{kind}" for kind in ("png", "svg")),
        "mine.txt",
        *(
            f"{name}.{kind}"
            for name in ("train_ms_by_length", "visibility")
            for kind in ("png", "svg")
        ),
    ]


def test_declared_colours_are_kept_and_clashes_get_free_ones():
    given = hues({"a": "#0072B2", "b": "#0072b2", "c": None, "d": "red", "e": "#E69F00"})
    assert (given["a"], given["e"]) == ("#0072B2", "#E69F00")
    assert len(set(given.values())) == 5
    assert set(given.values()) <= set(OKABE_ITO)


def test_parameter_sets_of_a_variant_differ_in_line_and_marker_and_not_in_hue():
    series = [("windowed", f"window={w}") for w in (8, 16, 32)]
    look = styles([*series, ("full", "")], {"windowed": "#0072B2", "full": "#000000"})
    assert len({look[name].marker for name in series}) == 3
    assert len({str(look[name].line) for name in series}) == 3
    assert look[("full", "")].colour == "#000000"
    blue = [int(look[name].colour[5:], 16) - int(look[name].colour[1:3], 16) for name in series]
    assert min(blue) > 60  # still blue


def test_series_without_variants_to_tell_apart_get_hues_of_their_own():
    look = distinct([("none",), ("rotary",), ("learned",)])
    assert len({style.colour for style in look.values()}) == 3


def test_numbers_in_names_are_ordered_as_numbers():
    names = [("window=128",), ("window=8",), ("window=16",), ("a",)]
    assert sorted(names, key=natural) == [("a",), ("window=8",), ("window=16",), ("window=128",)]


def test_text_that_looks_like_mathematics_is_drawn_as_it_is():
    assert plain_text("$x$ and \\frac") == r"\$x\$ and \\frac"
    assert len(plain_text("long " * 100)) < 50


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"y": "accuracy", "colour": "red"}, r"report.figures.0.colour: allowed are y, x"),
        ({"x": "length"}, r"report.figures.0.y: a column is needed"),
        ({"y": "accuracy", "log": "z"}, r"report.figures.0.log: one of auto, none, x, y, both"),
        ("accuracy", r"report.figures.0: a mapping"),
        ({"y": "accuracy", "by": 3}, r"report.figures.0.by: columns are needed, found 3"),
    ],
)
def test_a_figure_that_cannot_be_declared_so_is_one_line(entry, message):
    with pytest.raises(ConfigError, match=message):
        figures.declared({"figures": [entry]})


def test_units_are_in_the_labels():
    assert figures.words("prefill_ms") == "prefill (ms)"
    assert figures.words("saved_bytes") == "saved (MiB)"
    assert figures.scale("saved_bytes") == 2**-20
    assert not math.isnan(figures.scale("accuracy"))


def test_a_variants_own_parameter_can_be_the_x_and_those_without_it_are_left_out(tmp_path):
    records = [
        record("windowed", params={"window": w, "other": 2 * w}, row={"accuracy": w / 100})
        for w in (8, 64)
    ]
    records.append(record("full", row={"accuracy": 1.0}))
    figure = Figure("accuracy", x="variant.window", by=("variant",))
    _, found = found_of(write(tmp_path, records), figure)
    (line,) = found.panels[0].lines
    assert (line.x, line.y) == ([8, 64], [0.08, 0.64])
    other = Figure("accuracy", x="length", by=("variant.other",))
    _, found = found_of(tmp_path, other)
    assert [line.label for line in found.panels[0].lines[:2]] == ["other = 16", "other = 128"]


def test_an_axis_is_logarithmic_where_its_values_double(tmp_path):
    def scale_of(values):
        records = [record(config={"model.d_k": v}, row={"accuracy": 0.5}) for v in values]
        folder = write(tmp_path / str(values[1]), records)
        return canvas_of(folder, Figure("accuracy", x="model.d_k")).axes[0].get_xscale()

    assert scale_of((4, 16, 64, 256)) == "log"
    assert scale_of((1, 2, 3, 4)) == "linear"


def test_a_figure_without_one_whole_point_is_left_out(tmp_path):
    records = [record(measure="accuracy", row={"accuracy": 0.5})]
    records += [record(measure="cost", length=512, row={"forward_ms": 1.0})]
    _, found = found_of(write(tmp_path, records), Figure("accuracy", x="forward_ms"))
    assert found is None


def test_a_measured_x_has_a_point_a_setting_in_order(tmp_path):
    records = [
        record(
            config={"model.d_model": d, "model.scale": scale},
            seed=seed,
            row={"d_k": d, "score_variance": d if scale else 1.0},
        )
        for d in (64, 4, 16)
        for scale in (None, 1)
        for seed in (0, 1)
    ]
    figure = Figure("score_variance", x="d_k", by=("model.scale",), log="both")
    _, found = found_of(write(tmp_path, records), figure)
    lines = {line.label: (line.x, line.y) for line in found.panels[0].lines}
    assert lines == {
        "scale = 1": ([4, 16, 64], [4, 16, 64]),
        "scale = null": ([4, 16, 64], [1] * 3),
    }


def test_a_setting_of_which_one_seed_failed_is_a_point_and_a_cross(tmp_path):
    records = [record(seed=s, row={"accuracy": 0.5}) for s in (0, 1)]
    records.append(record(seed=2, status="timeout", message="late"))
    _, found = found_of(write(tmp_path, records), Figure("accuracy"))
    (line,) = found.panels[0].lines
    assert (line.x, line.failed) == ([64], [(64, "timeout")])
