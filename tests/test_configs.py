"""Every shipped config says what it is, composes, and builds; every experiment is sound."""

import re

import pytest
from commands import REPOSITORY
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from hydra_plugins.spanwise_sweeper.parts_sweeper import expand
from spanwise import config, soundness, study
from spanwise.composition import Composer, resolve

CONFIGS = REPOSITORY / "configs"
GROUPS = ("variant", "task", "model", "train", "cost")
OPTIONS = [
    (group, str(path.relative_to(CONFIGS / group).with_suffix("")))
    for group in GROUPS
    for path in sorted((CONFIGS / group).rglob("*.yaml"))
]
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _hydra():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        yield


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_makes_a_cell_that_can_be_built(group, name):
    overrides = [[f"{group}={name}"]]
    if group == "variant":
        # Positions that suit every variant, attention or not; tasks that look back, and both ways.
        overrides = [
            [f"variant={name}", "model.positions=none", f"task={task}"]
            for task in ("recall", "sentences")
        ]
    for measure in ("accuracy", "cost"):
        said = [_wrong_with(given, measure) for given in overrides]
        assert "" in said or (measure == "accuracy" and "no backward pass" in said[0])


def _wrong_with(overrides, measure):
    whole = compose("config", overrides, return_hydra_config=True)
    choices = dict(whole.hydra.runtime.choices)
    plain = OmegaConf.create(OmegaConf.to_container(whole))
    del plain["hydra"]
    values, _ = resolve(plain, choices)
    config.check(values)
    (said,) = soundness.check({"configs": [values | {"measure": measure}]})
    return said


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda p: p.stem)
def test_every_config_says_what_it_is_and_what_its_defaults_mean(path):
    lines = path.read_text().splitlines()
    assert any(re.match(r"# (?!@package)\w", line) for line in lines[:2]), "no comment at its head"
    group = path.relative_to(CONFIGS).parts[0]
    if group not in GROUPS and path.name != "config.yaml":
        return
    above = ""
    for line in lines:
        found = re.match(r"( *)([a-z]\w*):(.*)", line)
        if line == "hydra:":
            break
        if found and found[2] != "defaults":
            assert "#" in line or above.lstrip().startswith("#"), f"no comment: {line}"
        above = line


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_only_cells_that_can_be_built(name):
    whole = compose("config", [f"experiment={name}"], return_hydra_config=True)
    sweeper = whole.hydra.sweeper
    params = OmegaConf.to_container(sweeper.params or OmegaConf.create({}))
    parts = OmegaConf.to_container(sweeper.parts or OmegaConf.create([{}]))
    arguments = [f"experiment={name}"]
    composer = Composer(GlobalHydra.instance().config_loader(), "config", [])
    jobs = expand(OverridesParser.create(), params, parts, arguments)
    cells = [study.Cell(*composer.compose(job), overrides=job) for job in jobs]
    assert whole.hydra.mode.name == "MULTIRUN"
    assert {cell.config["study"] for cell in cells} == {name}, "its study is named otherwise"
    assert len({cell.key for cell in cells}) == len(cells), "a cell stands in it twice"
    for cell in cells:
        config.check(cell.config)
    study.check(cells)
