"""Every shipped experiment at toy size: one cell of each part, its page, and no figure empty."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from hydra_plugins.spanwise_sweeper.parts_sweeper import expand
from spanwise import cell, figures, isolation, phases, records, report
from spanwise.composition import Composer

CONFIGS = Path(__file__).parents[1] / "configs"
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))
TOY = {
    "train": {"steps": 2, "batch": 4, "eval_every": 1, "eval_batch": 8, "warmup": 1},
    "variant": {"compiled_from": 1 << 20},
    "cost": {"budget_seconds": 0.01, "least": 3, "most": 3},
    "task": {"validation_size": 8, "test_size": 8},
    "probes": {"heads": {"sequences": 4}, "lengths": {"at": [64, 80]}, "scores": {"rows": 64}},
}


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    """Run phases without a process of their own: what isolation adds has tests of its own."""

    def call(target, payload, **_):
        value = getattr(phases, target.partition(":")[2])(payload)
        return isolation.Outcome("ok", value=value)

    monkeypatch.setattr(isolation, "call", call)
    monkeypatch.setattr(cell, "threads", lambda *_: 1)


def parts_of(name):
    """The first and the last config of each part, or the last alone where parts are many."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        whole = compose("config", [f"experiment={name}"], return_hydra_config=True)
        sweeper = whole.hydra.sweeper
        params = OmegaConf.to_container(sweeper.params or OmegaConf.create({}))
        parts = OmegaConf.to_container(sweeper.parts or OmegaConf.create([{}]))
        composer = Composer(GlobalHydra.instance().config_loader(), "config", [])
        for part in parts:
            jobs = expand(OverridesParser.create(), params, [part], [f"experiment={name}"])
            few = len(parts) < 6
            for job in jobs[:1] * few + jobs[few:][-1:]:
                yield composer.compose(job)


def toy(config):
    config = copy.deepcopy(config)
    for group, values in TOY.items():
        for key, value in values.items():
            if isinstance(value, dict):
                if key in config[group]:
                    config[group][key] |= value
            elif key in config[group]:
                config[group][key] = value
    if config["measure"] == "cost":
        config["length"] = min(config["length"], 256)
    config["model"]["d_model"] = min(config["model"]["d_model"], 64)
    return config


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_and_answers(tmp_path, name):
    question = {}
    for config, choices in parts_of(name):
        record = cell.measure(toy(config), choices)
        assert record["status"] == "ok", record["message"] + record["traceback"]
        question = config["report"]
        # The page must find the cell under the settings that the experiment gave it.
        record["config"] = config | {"results": str(tmp_path)}
        record["row"]["length"] = config["length"]
        records.write(tmp_path / name, record)
    made = report.write(tmp_path / name, question)
    assert made.problems == []
    if question.get("claim"):
        assert question["title"]
        # The usual figures, where none are declared, are drawn only of what was measured.
        declared = [f.name for f in figures.declared(question)] if "figures" in question else []
        assert [n for n in declared if n not in made.figures] == []
        assert made.verdict != ""
