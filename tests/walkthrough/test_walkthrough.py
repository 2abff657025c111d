"""Every number of the walk-through, computed again by loops in plain Python: no torch here."""

from __future__ import annotations

import csv
import json
import math
import re

import pytest

from spanwise.errors import ConfigError
from spanwise.fonts import writing
from spanwise.walkthrough import check, run, walk
from variants.full import Full
from variants.full_map import FullMap

STEPS = ("q", "k", "v", "scores", "scaled", "powers", "sum", "weights", "output")
DEFAULTS = {"tokens": list("猫追狗"), "d_model": 4, "n_heads": 2, "causal": False, "seed": 10}
ALONE = {**DEFAULTS, "tokens": ["alone"], "n_heads": 1}


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    return made(tmp_path_factory.mktemp("walk"), plots=True, **DEFAULTS)


def made(folder, **settings):
    text = walk(folder, layer=FullMap, **{"plots": False, **settings})
    return folder, text, json.loads((folder / "walkthrough.json").read_text(encoding="utf-8"))


def times(a, b):
    out = []
    for row in a:
        out.append([])
        for j in range(len(b[0])):
            total = 0.0
            for i in range(len(b)):
                total += row[i] * b[i][j]
            out[-1].append(total)
    return out


def recomputed(section, causal):
    """The section's matrices by name, from its x and its projections alone."""
    given = {m["name"]: m["values"] for m in section["matrices"] if m["step"] == "given"}
    names = [m["rows"] for m in section["matrices"]]
    x = given["x"]
    asking = len(section["matrices"][-1]["rows"])
    out = dict(given)
    joined = [[] for _ in range(asking)]
    size = section["head_dim"]
    for head in range(section["n_heads"]):
        at = range(head * size, (head + 1) * size)
        mark = "" if section["n_heads"] == 1 else f"head {head + 1}: "
        q, k, v = (
            [[row[i] for i in at] for row in times(x, given[w])] for w in ("w_q", "w_k", "w_v")
        )
        out[f"{mark}q"], out[f"{mark}k"], out[f"{mark}v"] = q[:asking], k, v
        for name in ("scores", "scaled", "powers", "weights"):
            out[mark + name] = []
        out[f"{mark}sum"], out[f"{mark}output"] = [], []
        for i in range(asking):
            seen = [j for j in range(len(x)) if not causal or j <= i]
            scores = {j: sum(q[i][d] * k[j][d] for d in range(size)) for j in seen}
            scaled = {j: scores[j] / math.sqrt(size) for j in seen}
            powers = {j: math.exp(scaled[j]) for j in seen}
            total = sum(powers.values())
            weights = {j: powers[j] / total for j in seen}
            for name, found in (
                ("scores", scores), ("scaled", scaled), ("powers", powers), ("weights", weights)
            ):  # fmt: skip
                out[mark + name].append([found.get(j) for j in range(len(x))])
            out[f"{mark}sum"].append([total])
            read = [sum(weights[j] * v[j][d] for j in seen) for d in range(size)]
            out[f"{mark}output"].append(read)
            joined[i] += read
    if section["n_heads"] > 1:
        out["joined"], out["merged"] = joined, times(joined, given["w_o"])
    assert names
    return out


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"causal": True, "seed": 3},
        {"tokens": ["the", "cat", "sat", "the"], "d_model": 6, "n_heads": 3, "seed": 1},
        {"tokens": ["alone"], "n_heads": 1},
    ],
)
def test_every_number_is_what_loops_give(tmp_path, default, settings):
    folder, _, exact = default if not settings else made(tmp_path, **{**DEFAULTS, **settings})
    shown = {}
    with (folder / "walkthrough.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            shown.setdefault((row["section"], row["matrix"]), []).append(row)
    for section in exact["sections"]:
        causal = exact["causal"] and section["key"] != "two_tokens"
        want = recomputed(section, causal)
        assert {m["name"] for m in section["matrices"]} == set(want)
        for matrix in section["matrices"]:
            flat = [value for row in want[matrix["name"]] for value in row]
            got = [value for row in matrix["values"] for value in row]
            rows = shown[section["key"], matrix["name"]]
            for value, mine, row in zip(got, flat, rows, strict=True):
                if mine is None:
                    assert (value, row["exact"], row["shown"]) == (None, "", "·")
                else:
                    assert value == pytest.approx(mine, abs=1e-12)
                    assert float(row["exact"]) == value
                    assert row["shown"] == f"{value:.2f}".replace("-0.00", "0.00")


def numbers_in(text):
    return [float(n) for n in re.findall(r"-?\d+\.\d+", text)]


def test_paper_gives_the_printed_digits(default):
    """From each printed number to the next, with nothing but the two decimals printed."""
    folder, _, exact = default
    assert exact["missed_on_paper"] == 0
    table = {}
    with (folder / "walkthrough.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = (row["section"], row["matrix"])
            table.setdefault(name, {}).setdefault(row["row"], []).append(float(row["shown"]))

    def same(a, b):
        assert [f"{x + 0.0:.2f}" for x in a] == [f"{x + 0.0:.2f}" for x in b]

    for section in exact["sections"]:
        key, size = section["key"], section["head_dim"]
        heads = [""] if section["n_heads"] == 1 else ["head 1: ", "head 2: "]
        for mark in heads:
            get = {n: table[key, mark + n] for n in STEPS}
            for token, query in get["q"].items():
                keys, values = list(get["k"].values()), list(get["v"].values())
                scores = [sum(a * b for a, b in zip(query, k, strict=True)) for k in keys]
                same(scores, get["scores"][token])
                scaled = [s / float(f"{math.sqrt(size):.4f}") for s in get["scores"][token]]
                same(scaled, get["scaled"][token])
                same([math.exp(s) for s in get["scaled"][token]], get["powers"][token])
                same([sum(get["powers"][token])], get["sum"][token])
                weights = get["weights"][token]
                same([p / get["sum"][token][0] for p in get["powers"][token]], weights)
                assert f"{sum(weights):.2f}" == "1.00"
                read = [
                    sum(w * v[d] for w, v in zip(weights, values, strict=True)) for d in range(size)
                ]
                same(read, get["output"][token])
        if section["n_heads"] > 1:
            w_o = list(table[key, "w_o"].values())
            for token, row in table[key, "joined"].items():
                same(times([row], w_o)[0], table[key, "merged"][token])


def test_the_verb_looks_at_both_nouns_and_the_heads_share_them(default):
    """What makes the default numbers a good example: the text promises nothing it does not show."""
    exact = {s["key"]: {m["name"]: m["values"] for m in s["matrices"]}
             for s in default[2]["sections"]}  # fmt: skip
    verb = exact["one_head"]["weights"][1]
    assert verb[1] < min(verb[0], verb[2]) / 2
    heads = [exact["heads"][f"head {h}: weights"][1] for h in (1, 2)]
    assert [max(range(3), key=row.__getitem__) for row in heads] == [0, 2]


def test_figures_are_written_in_both_formats(default):
    names = {file.name for file in (default[0] / "plots").iterdir()}
    stems = ("weights", "four_steps_one_head", "four_steps_two_tokens", "four_steps_heads")
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}


def test_text_holds_every_number_of_the_table(default):
    folder, text, _ = default
    with (folder / "walkthrough.csv").open(encoding="utf-8") as file:
        shown = {float(row["shown"]) for row in csv.DictReader(file)}
    assert shown <= set(numbers_in(text))


def test_same_numbers_every_time_and_others_for_another_seed(tmp_path, default):
    again = made(tmp_path / "a", **DEFAULTS)
    assert again[1] == default[1]
    assert made(tmp_path / "b", **{**DEFAULTS, "seed": 11})[1] != default[1]


def test_fused_attention_shows_the_same(tmp_path, default):
    text = walk(tmp_path, layer=Full, plots=False, **DEFAULTS)
    assert text == default[1]


def test_chinese_is_drawn_and_what_no_font_has_becomes_code_points():
    found = writing(["猫", "追", "狗"])
    assert (found.note, found.labels["猫"]) == ("", "猫")
    missing = writing(["猫", "\U0010fffd"])
    assert missing.labels == {"猫": "猫", "\U0010fffd": "U+10FFFD"}
    assert "U+10FFFD" in missing.note


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": []}, "walkthrough.tokens: found"),
        ({"tokens": "猫追狗"}, "walkthrough.tokens: found"),
        ({"tokens": ["a", " "]}, "none empty"),
        ({"d_model": 0}, "walkthrough.d_model: found 0"),
        ({"n_heads": 3}, "a divisor of walkthrough.d_model, 4"),
        ({"causal": 1}, "walkthrough.causal: found 1"),
        ({"seed": "x"}, "walkthrough.seed: found 'x'"),
        ({"token": ["a"]}, "Did you mean 'tokens'?"),
    ],
)
def test_bad_settings_are_one_clear_line(change, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        check({**DEFAULTS, "layer": "x", **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [
        "os.getcwd",
        "variants.gru.GRU",
        "collections.OrderedDict",
        "torch.nn.Linear",
        "spanwise.walkthrough.KEYS",
        "no.such",
        "word",
    ],
)
def test_whatever_else_is_named_as_the_layer_is_one_clear_line(tmp_path, layer):
    config = {"walkthrough": {**ALONE, "layer": layer}, "results": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"^walkthrough\.layer: .*; allowed: ") as caught:
        run(config, {})
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_broken_layers_own_words_are_kept_to_one_line(tmp_path):
    class Broken(FullMap):
        def attention_weights(self, x_BLM):
            raise RuntimeError("first line\n" * 50)

    with pytest.raises(
        ConfigError, match=r"Broken cannot be walked through .*first line"
    ) as caught:
        walk(tmp_path, layer=Broken, plots=False, **ALONE)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 320
