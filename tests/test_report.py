import io
import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from rich.console import Console

from spanwise import page, report, scaling, tables
from spanwise.answers import Value, answer, compare, digits, overall
from spanwise.errors import ConfigError
from tests.synthetic import believable, record, whole_study, write


class Page(HTMLParser):
    """The tags and the visible text of a page."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.texts, self.sources = [], [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [v for k, v in attrs if k in ("src", "href")]

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


# Every figure takes a second to draw; the defaults are seen to work with fewer cells.
QUESTION = {"figures": [{"y": "accuracy"}, {"y": "train_ms"}]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = whole_study(tmp_path_factory.mktemp("mine"), lengths=(64, 128))
    return folder, report.write(folder, QUESTION)


def test_everything_is_written(whole):
    folder, made = whole
    names = {path.name for path in folder.iterdir()}
    tables = {f"{name}.csv" for name in report.TABLES}
    assert names == {"records", "plots", "index.html", *tables}
    assert made.counts == {"ok": 41, "oom": 6, "timeout": 1}
    assert len(pd.read_csv(folder / "cells.csv")) == 48


def test_the_page_needs_no_network_and_names_only_files_beside_it(whole):
    folder, _ = whole
    for source in Page(folder / "index.html").sources:
        assert source.startswith("data:image/svg+xml;base64,") or (folder / source).is_file()


def test_the_page_shows_failed_cells_with_their_messages(whole):
    folder, _ = whole
    text = Page(folder / "index.html").text
    assert "48 cells, 41 ok, 6 oom, 1 timeout" in text
    assert "over the limit of 2 GiB" in text
    assert "over 60 seconds" in text
    assert "oom x3" in text
    assert "A processor" in text


def test_a_cost_that_failed_does_not_hide_the_accuracy_at_its_length(tmp_path):
    lost = {"status": "oom", "message": "cost: too much"}
    records = [
        record("full", measure="accuracy", row={"accuracy": 0.75}),
        record("full", measure="cost", config={"model.d_model": 512}, **lost),
        record("windowed", measure="cost", config={"model.d_model": 512}, row={"forward_ms": 2.0}),
    ]
    text = Page(report.write(write(tmp_path, records), {"figures": []}).page).text
    assert "Accuracy L = 64 Full 0.750 Forward time" in text
    assert "Full oom x1 Windowed 32 2.00" in text


def test_a_declared_figure_that_nothing_was_measured_for_is_named(tmp_path):
    wanted = [{"y": "accuracy"}, {"y": "message"}, {"y": "losss", "x": "seed"}]
    made = report.write(write(tmp_path, [record(row={"accuracy": 0.5})]), {"figures": wanted})
    assert made.problems == [
        "Not drawn, for want of measurements: message against length",
        "Not drawn, for want of measurements: losss against seed",
    ]
    assert "losss against seed" in Page(made.page).text


@pytest.mark.parametrize(("scope", "text"), [("op", "2.00 ms"), ("layer", "(not measured) ms")])
def test_what_all_cells_have_in_common_can_be_asked_for(tmp_path, scope, text):
    # A part of a study: what tells its cells apart elsewhere is the same in all of these.
    records = [
        record(length=n, measure="cost", row={"forward_ms": 2.0}, config={"cost.scope": "op"})
        for n in (64, 128)
    ]
    where = {"cost.scope": scope}
    question = {
        "figures": [{"y": "forward_ms", "where": where}],
        "answers": [{"say": "{x.value} ms", "values": {"x": {"of": "forward_ms", "where": where}}}],
    }
    made = report.write(write(tmp_path, records), question)
    drawn = "Not drawn, for want of measurements: forward_ms against length where cost.scope=layer"
    assert made.problems == ([] if scope == "op" else [drawn])
    assert text in Page(made.page).text


def test_generation_is_on_the_usual_page_where_it_was_measured(tmp_path):
    records = [
        record(length=n, measure="cost", row={"forward_ms": 1.0, "decode_ms": 0.25} | cache)
        for n, cache in ((64, {"cache_bytes": 2**20}), (128, {"cache_bytes": 2**21}))
    ]
    made = report.write(write(tmp_path, records))
    assert {"decode_ms_by_length", "cache_bytes_by_length"} <= set(made.figures)
    text = Page(made.page).text
    assert "Time of a generated token (ms) L = 64 L = 128 Full 0.250 0.250" in text
    assert "Cache for generation (MiB) L = 64 L = 128 Full 1.00 2.00" in text


def test_the_terminal_form_tells_settings_apart_by_what_was_swept(tmp_path):
    records = [
        record(
            length=n,
            measure="cost",
            row={"cache_bytes": 2.0**20 * (n // 64 + heads)},
            config={"model.kv_heads": heads, "task.pairs": n // 8},
        )
        for n in (64, 128)
        for heads in (1, 2)
    ]
    console = Console(width=120, file=io.StringIO())
    report.write(write(tmp_path, records)).show(console)
    words = [line.split() for line in console.file.getvalue().splitlines()]
    assert words[:2] == [
        ["kv", "cache"],
        ["task", "variant", "heads", "length", "MiB", "n", "failed"],
    ]
    # What follows from the length tells nothing more.
    assert words[2:6] == [
        ["recall", "Full", "1", "64", "2.00", "1"],
        ["recall", "Full", "2", "64", "3.00", "1"],
        ["recall", "Full", "1", "128", "3.00", "1"],
        ["recall", "Full", "2", "128", "4.00", "1"],
    ]


def test_flags_of_cells_and_of_comparisons_are_on_the_page(tmp_path):
    base = {"accuracy": 0.5, "forward_ms": 1.0, "n_heads": 1}
    records = [record("full", row=base | {"contended": False, "above_ceiling": True})]
    records += [record("windowed", row=base | {"contended": True, "n_heads": 4})]
    text = Page(report.write(write(tmp_path, records), {"figures": []}).page).text
    assert "above ceiling Full 64 1" in text
    assert "contended Windowed 32 64 1" in text
    assert "heads: 4 against 1; contended timing" in text


def test_building_again_gives_the_same_bytes(whole):
    folder, _ = whole

    def content():
        return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    before = content()
    report.write(folder, QUESTION)
    assert content() == before


def test_markup_in_records_is_text_on_the_page(tmp_path):
    evil = "<script>alert(1)</script><img src=x onerror=y>"
    records = [
        record("full", row={"accuracy": 0.5}),
        record(evil, status="error", message=evil, params={"a": evil}),
    ]
    records[1]["machine"]["cpu"] = evil
    records[1]["display"]["variant"]["colour"] = '"><script>'
    folder = write(tmp_path, records)
    question = {"title": evil, "claim": evil, "answers": [{"say": evil}]}
    report.write(folder, question)
    page = Page(folder / "index.html")
    assert "script" not in page.tags
    assert page.text.count("alert(1)") >= 5


def test_hostile_records_do_not_stop_the_page_and_are_listed(tmp_path):
    folder = write(tmp_path, [record(row=believable("full", "recall", 64, 0))])
    (folder / "records" / "half.json").write_text('{"version": 1')
    (folder / "records" / "newer.json").write_text('{"version": 99}')
    strange = record(seed=3, row={"n_params": -1e308, "forward_ms": 1e308})
    strange["row"] |= {"accuracy": float("inf"), "train_ms": -5, "forward_peak_bytes": 0}
    write(folder, [strange])
    made = report.write(folder)
    text = Page(folder / "index.html").text
    assert made.set_aside == 3
    assert "half.json not a whole JSON file" in text
    assert "version 99 was written by a newer program" in text
    assert (folder / "records" / "newer.json").exists()


def test_a_study_without_one_usable_record_still_has_its_page(tmp_path):
    folder = write(tmp_path, [])
    (folder / "records" / "half.json").write_text("{")
    made = report.write(folder)
    assert "half.json not a whole JSON file" in Page(made.page).text
    made.show(Console(file=io.StringIO()))


def test_the_action_takes_the_study_and_the_question_from_the_config(tmp_path, capsys):
    write(tmp_path / "mine", [record(row={"accuracy": 0.5})])
    config = {"results": str(tmp_path), "study": "mine", "report": {"title": "A title"}}
    assert report.run(config, {}) == 0
    assert "A title" in Page(tmp_path / "mine" / "index.html").text
    assert "index.html" in capsys.readouterr().out


def test_a_malformed_question_in_a_study_is_named_and_the_usual_page_made(tmp_path):
    folder = write(tmp_path, [record(row={"accuracy": 0.5})])
    (folder / "study.json").write_text(json.dumps({"report": {"figures": [{"x": "length"}]}}))
    made = report.write(folder)
    assert made.problems == ["report.figures.0.y: a column is needed"]
    assert "accuracy_by_length" in made.figures


def test_a_malformed_question_from_the_user_is_an_error(tmp_path):
    folder = write(tmp_path, [record(row={"accuracy": 0.5})])
    with pytest.raises(ConfigError, match=r"report.figures.0.y"):
        report.write(folder, {"figures": [{"x": "length"}]})


def test_the_page_opens_with_the_claim_the_answer_and_the_picture(tmp_path):
    records = [record("full", seed=s, row={"accuracy": 0.99}) for s in (0, 1)]
    records += [record("windowed", seed=s, row={"accuracy": 0.2}) for s in (0, 1)]
    question = {
        "title": "Windows forget",
        "claim": "A window keeps what full attention keeps.",
        "figures": [{"y": "accuracy", "title": "What is kept"}],
        "answers": [
            {
                "say": "A window reaches {window}, full attention {full.value}.",
                "values": {
                    "window": {"of": "accuracy", "where": {"variant": "windowed"}},
                    "full": {"of": "accuracy", "where": {"variant": "full"}},
                },
                "holds": {"window": {"above": 0.9}},
            }
        ],
    }
    made = report.write(write(tmp_path, records), question)
    text = Page(made.page).text
    order = [
        "Windows forget",
        "A window keeps what full attention keeps.",
        "does not hold The claim does not hold in this study.",
        "A window reaches 0.200 [0.200, 0.200], full attention 0.990.",
        "window is 0.200 [0.200, 0.200], expected above 0.900",
        "What is kept.",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert made.verdict == "does not hold"


def test_the_terminal_form_names_settings_failures_and_the_page(whole):
    _, made = whole
    console = Console(width=160, record=True, file=io.StringIO())
    made.show(console)
    text = console.export_text()
    assert re.search(r"recall +Full map +128 .* 0 +oom x3", text)
    assert str(made.page) in text


TABLES = {
    "cells": pd.DataFrame(
        {"variant": ["a", "a", "b"], "length": [8, 8, 8], "accuracy": [0.4, 0.6, 0.9]}
    ),
    "scaling": pd.DataFrame(
        {"exponent": [1.9], "exponent_low": [1.8], "exponent_high": [2.0], "metric": ["t"]}
    ),
}


def one(values, holds=None, say="{x}"):
    question = {"answers": [{"say": say, "values": values, "holds": holds or {}}]}
    return answer(question, TABLES)[0]


def test_a_value_is_a_mean_with_an_interval_or_what_was_asked():
    assert one({"x": {"of": "accuracy", "where": {"variant": "b"}}}).text == "0.900"
    assert one({"x": {"of": "accuracy", "take": "most"}}).text == "0.900"
    assert one({"x": {"of": "accuracy", "where": {"variant": "a"}}}, say="{x.n}").text == "2.00"
    assert one({"x": {"of": "exponent", "table": "scaling"}}).text == "1.90 [1.80, 2.00]"


def test_ratio_and_difference_of_values():
    both = {
        "a": {"of": "accuracy", "where": {"variant": "a"}, "take": "median"},
        "b": {"of": "accuracy", "where": {"variant": "b"}},
    }
    assert one(both | {"x": {"ratio": ["b", "a"]}}).text == "1.80"
    assert one(both | {"x": {"difference": ["b", "a"]}}).text == "0.400"


def test_a_difference_is_paired_where_both_have_a_row_a_seed():
    noise = [0.0, 0.3, 0.5]
    cells = pd.DataFrame(
        {
            "variant": ["a"] * 3 + ["b"] * 3,
            "seed": [0, 1, 2] * 2,
            "accuracy": noise + [x + 0.1 for x in noise],
        }
    )
    values = {
        "a": {"of": "accuracy", "where": {"variant": "a"}},
        "b": {"of": "accuracy", "where": {"variant": "b"}},
        "x": {"difference": ["b", "a"]},
    }
    question = {"answers": [{"say": "{x}", "values": values, "holds": {"x": {"above": 0.09}}}]}
    found = answer(question, {"cells": cells})[0]
    assert found.text.startswith("0.100 [0.1")
    assert found.verdict == "holds"


def test_rows_that_differ_in_a_swept_key_show_it(tmp_path):
    records = [
        record(
            "full", length=n, measure="cost", row={"forward_ms": n * k}, config={"cost.scope": s}
        )
        for n in (64, 128, 256, 512)
        for s, k in (("op", 1.0), ("layer", 2.0))
    ]
    study = tables.load(write(tmp_path, records))
    (table,) = page.exponents(study, scaling.fit(study))
    named = {row[2].text for row in table.rows}
    assert named == {"Full, scope=op", "Full, scope=layer"}


def test_the_interval_of_a_share_stays_between_0_and_1():
    # Student's interval of .9 and 1 is .95 +- .635.
    cells = pd.DataFrame({"accuracy_at_256": [0.9, 1.0], "times": [0.9, 1.0]})
    values = {"x": {"of": "accuracy_at_256"}, "y": {"of": "times"}}
    question = {"answers": [{"say": "{x}, {y}", "values": values}]}
    found = answer(question, {"cells": cells})[0]
    assert found.text == "0.950 [0.315, 1.00], 0.950 [0.315, 1.59]"


def test_what_was_not_measured_is_said():
    found = one({"x": {"of": "accuracy", "where": {"variant": "c"}}}, {"x": {"above": 0.1}})
    assert (found.text, found.verdict) == ("(not measured)", "is not measured")
    assert one({"x": {"of": "no_column"}}).text == "(not measured)"


@pytest.mark.parametrize(
    ("comparison", "bound", "verdict"),
    [
        ("above", 0.3, "holds"),
        ("above", 0.5, "is open"),
        ("above", 0.7, "does not hold"),
        ("below", 0.7, "holds"),
        ("below", 0.5, "is open"),
        ("below", 0.3, "does not hold"),
        ("within", [0.3, 0.7], "holds"),
        ("within", [0.45, 0.7], "is open"),
        ("within", [0.7, 0.8], "does not hold"),
    ],
)
def test_a_condition_holds_where_the_whole_interval_does(comparison, bound, verdict):
    assert compare(Value(0.5, 0.4, 0.6, 3), comparison, bound) == verdict


def test_the_overall_verdict_is_the_worst():
    values = {"x": {"of": "accuracy", "where": {"variant": "b"}}}
    good, bad = one(values, {"x": {"above": 0.5}}), one(values, {"x": {"below": 0.5}})
    assert overall([good, bad]) == "does not hold"
    assert overall([good]) == "holds"
    assert overall([one(values)]) == ""


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"say": "{y}", "values": {"x": {"of": "accuracy"}}}, r"\{y\} is none of the values"),
        ({"say": 3}, r"answers.0.say: a sentence is needed, found 3"),
        ({"says": "a"}, r"answers.0.says: allowed are say, values, holds. Did you mean 'say'"),
        ({"say": "", "values": {"x": {}}}, r"values.x: one of of, ratio, difference"),
        ({"say": "", "values": {"x": {"of": "a", "table": "cell"}}}, r"table: .* mean 'cells'"),
        ({"say": "", "values": {"x": {"of": "a", "take": "max"}}}, r"take: one of mean, median"),
        ({"say": "", "values": {"x": {"ratio": ["a", "b"]}}}, r"'a' is no value before it"),
        ({"say": "", "holds": {"x": {"above": 1}}}, r"holds.x: no such value"),
        (
            {"say": "", "values": {"x": {"of": "accuracy"}}, "holds": {"x": {"over": 1}}},
            r"holds.x.over: allowed are above, below, within",
        ),
        (
            {"say": "", "values": {"x": {"of": "accuracy"}}, "holds": {"x": {"within": 1}}},
            r"holds.x.within: two numbers are needed",
        ),
    ],
)
def test_a_malformed_answer_is_one_line(entry, message):
    with pytest.raises(ConfigError, match=message) as caught:
        answer({"answers": [entry]}, TABLES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.98123, "0.981"), (1.0, "1.00"), (0.0, "0"), (12.345, "12.3"), (123.45, "123"),
        (12345.6, "12,346"), (0.001234, "0.00123"), (-0.5, "-0.500"), (1e-7, "1e-07"),
        (float("inf"), "∞"), (0.9996, "1.00"), (0.0999999, "0.100"), (999.9, "1,000"),
    ],
)  # fmt: skip
def test_numbers_are_written_with_three_digits(value, text):
    assert digits(value) == text
