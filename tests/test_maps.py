"""Attention maps drawn from records: of a study that holds them, or of a cell run for them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spanwise import maps, records


def record_with(tmp_path, layers, tokens=("猫", "追", "狗"), key="a" * 64):
    record = {
        "version": 1,
        "key": key,
        "status": "ok",
        "config": {"seed": 3, "variant": {"window": 4}, "model": {"n_heads": 2}},
        "choices": {"variant": "windowed", "task": "sentences"},
        "row": {"accuracy": 0.987},
        "detail": {"maps": {"tokens": list(tokens), "layers": layers}},
        "display": {"variant": {"describe": "Windowed 4"}},
    }
    folder = records.folder(tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{key}.json").write_text(json.dumps(record), encoding="utf-8")
    return record


LAYERS = [[[[1000, 0, 0], [500, 500, 0], [200, 300, 500]]] * 2] * 2


def test_a_panel_a_layer_and_head_with_the_recorded_weights(tmp_path):
    record = record_with(tmp_path, LAYERS)
    figure = maps.picture([np.array(layer) / 1000 for layer in LAYERS], list("猫追狗"), "title")
    panels = [ax for ax in figure.axes if ax.images and ax.get_title(loc="left") + ax.get_title()]
    assert len(panels) == 4
    for ax in panels:
        np.testing.assert_allclose(
            ax.images[0].get_array(), [[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]]
        )
        assert [label.get_text() for label in ax.get_xticklabels()] == ["猫", "追", "狗"]
    assert maps.title_of(record) == "Windowed 4 on sentences, seed 3: accuracy 0.99"


def test_only_records_that_hold_whole_maps_are_drawn(tmp_path):
    record_with(tmp_path, LAYERS, key="a" * 64)
    record_with(tmp_path, [[[[1000, 0]]]], key="b" * 64)
    record_with(tmp_path, "nothing", key="c" * 64)
    (records.folder(tmp_path) / f"{'d' * 64}.json").write_text("{", encoding="utf-8")
    found = maps.kept(tmp_path)
    assert [record["key"][0] for record in found] == ["a"]
    path = maps.draw(found[0], tmp_path / "maps")
    assert path.name == "windowed_window-4_sentences_heads-2_seed-3_aaaaaaaa.png"
    assert path.with_suffix(".svg").exists()


@pytest.mark.parametrize("long", [False, True])
def test_long_inputs_have_numbers_on_their_axes(long):
    n = 40 if long else 5
    figure = maps.picture([np.eye(n)[None]], [f"k{i}" for i in range(n)], "")
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert ("k3" in shown) != long


def test_the_command_runs_the_cell_it_needs_and_then_draws_what_it_has(command):
    arguments = [
        "report=null",
        "action=maps",
        "task=sentences",
        "length=16",
        "measure=probe",
        "study=seen",
    ]
    assert command(*arguments, "probes=maps").code == 0
    drawn = sorted((command.results / "seen" / "maps").glob("*.png"))
    assert len(drawn) == 1
    assert command("action=maps", "study=seen").code == 0
    assert sorted((command.results / "seen" / "maps").glob("*.png")) == drawn
    unknown = command("action=maps", "study=sen")
    assert unknown.code == 2
    assert "study: no record of 'sen' holds maps" in unknown.err
    assert not (command.results / "sen").exists()
    own = command(*arguments, "probes=maps", "probes.maps.tokens=[3,15,4]", "study=own")
    assert own.code == 0
    assert len(list((command.results / "own" / "maps").glob("*.svg"))) == 1
    wrong = command(*arguments, "probes=maps", "probes.maps.tokens=7", "study=wrong")
    assert wrong.code == 2
    assert "probes.maps.tokens: found 7" in wrong.err
