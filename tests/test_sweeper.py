"""Parts become jobs; the quick composition of a job equals Hydra's own."""

import pytest
from commands import REPOSITORY
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from hydra_plugins.spanwise_sweeper.parts_sweeper import expand
from spanwise.composition import Composer, resolve


def jobs(params, parts, *arguments):
    return expand(OverridesParser.create(), params, parts, arguments)


def test_parts_are_a_union_of_products():
    parts = [{"variant": "full,windowed", "length": "16,32"}, {"variant": "gru", "length": 16}]
    assert jobs({}, parts, "seed=1") == [
        ["variant=full", "length=16", "seed=1"],
        ["variant=full", "length=32", "seed=1"],
        ["variant=windowed", "length=16", "seed=1"],
        ["variant=windowed", "length=32", "seed=1"],
        ["variant=gru", "length=16", "seed=1"],
    ]


def test_params_are_shared_and_a_part_may_set_them_otherwise():
    assert jobs({"measure": "cost", "seed": "0,1"}, [{"seed": 5}, {"length": 8}]) == [
        ["measure=cost", "seed=5"],
        ["measure=cost", "seed=0", "length=8"],
        ["measure=cost", "seed=1", "length=8"],
    ]


def test_the_command_line_replaces_the_values_of_every_part():
    parts = [{"length": "16,32", "seed": "0,1"}, {"length": 64}]
    assert jobs({}, parts, "length=128,256", "study=mine") == [
        ["length=128", "seed=0", "study=mine"],
        ["length=128", "seed=1", "study=mine"],
        ["length=256", "seed=0", "study=mine"],
        ["length=256", "seed=1", "study=mine"],
        ["length=128", "study=mine"],
        ["length=256", "study=mine"],
    ]


def test_equal_jobs_of_two_parts_are_one():
    assert len(jobs({}, [{"seed": "0,1"}, {"seed": "1,2"}])) == 3


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ([8, 16], ["x=8", "x=16"]),
        (OmegaConf.create([8, 16]), ["x=8", "x=16"]),
        ("range(3)", ["x=0", "x=1", "x=2"]),
        ("[1,2],[3]", ["x=[1,2]", "x=[3]"]),
        (None, ["x=null"]),
        (True, ["x=True"]),
        (1e-3, ["x=0.001"]),
    ],
)
def test_how_the_values_of_a_part_are_read(value, written):
    assert [job[0].lower() for job in jobs({}, [{"x": value}])] == [w.lower() for w in written]


@pytest.fixture
def composer():
    with initialize_config_dir(str(REPOSITORY / "configs"), version_base="1.3"):
        yield Composer(GlobalHydra.instance().config_loader(), "config", [])


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["length=32", "seed=3"],
        ["variant=windowed", "variant.window=5", "length=32"],
        ["variant.window=5", "variant=windowed"],
        ["train=recall", "train.betas=[0.5,0.6]", "train.betas.0=0.7"],
        ["variant=interleaved", "variant.every=3", "variant.local.window=7"],
        ["variant=interleaved", "variant@variant.local=chunked", "variant.local.window=7"],
        ["+report.title=x", "report.title=y"],
        ["++variant.window=3", "variant=windowed"],
        ["limits={memory_gib:1,seconds:null}"],
        ["task=text", "task.path=null", "model=text", "measure=both"],
        ["study='a,b'", "length=${seed}", "seed=8"],
    ],
)
def test_the_quick_composition_is_hydras(composer, overrides):
    # After another job, whose values must not stay.
    composer.compose(["length=999", "limits.seconds=1", "train.betas=[0,0]"])
    whole = compose("config", overrides, return_hydra_config=True)
    choices = whole.hydra.runtime.choices
    plain = OmegaConf.create(OmegaConf.to_container(whole))
    del plain["hydra"]
    assert composer.compose(overrides) == resolve(plain, choices)


@pytest.mark.parametrize("text", ["lenght=3", "variant.window=3", "train.foo.bar=1", "seed.x=1"])
def test_an_unknown_key_is_an_error_as_with_hydra(composer, text):
    with pytest.raises(ConfigCompositionException, match="Could not override"):
        compose("config", [text])
    with pytest.raises(ConfigCompositionException, match="Could not override"):
        composer.compose([text])


def test_jobs_that_differ_in_values_are_composed_once(composer, monkeypatch):
    composed = []
    whole = composer._compose

    def counting(overrides):
        composed.append(overrides)
        return whole(overrides)

    monkeypatch.setattr(composer, "_compose", counting)
    for variant in ("full", "windowed"):
        for seed in range(20):
            composer.compose([f"variant={variant}", f"seed={seed}", "length=8"])
    assert composed == [("variant=full",), ("variant=windowed",)]
