"""Every variant that configs/variant/ lists passes the suite, with no test code of its own."""

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from spanwise.check import assert_passes, parametrize_with_checks
from spanwise.check.subject import Subject
from spanwise.model import Model

CONFIGS = Path(__file__).parents[1] / "configs"


def listed():
    """Return the factory of each config, by its name in the group."""
    folder, factories = CONFIGS / "variant", {}
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        for path in sorted(folder.rglob("*.yaml")):
            name = str(path.relative_to(folder).with_suffix(""))
            config = compose(overrides=[f"+variant={name}"])["variant"]
            factories[name] = instantiate(config, _partial_=True)
    return factories


FACTORIES = listed()


def test_the_shipped_variants_are_listed():
    assert {"full", "full_map", "windowed", "chunked", "local_global", "interleaved"} <= set(
        FACTORIES
    )


@parametrize_with_checks(FACTORIES)
def test_conformance(factory, check):
    assert_passes(factory, check)


@pytest.mark.parametrize("name", FACTORIES)
def test_every_variant_runs_in_the_default_model(name):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        keywords = dict(compose(overrides=["+model=small"])["model"])
    for causal in Subject(FACTORIES[name]).modes:
        model = Model(
            FACTORIES[name], vocab_size=32, n_classes=32, length=40, causal=causal, **keywords
        )
        if not all(layer.trains_on_cpu for layer in model.layers):
            pytest.skip("it does not train on the CPU")
        tokens = torch.randint(0, 32, (2, 40), generator=torch.Generator().manual_seed(0))
        model(tokens).logsumexp(-1).sum().backward()
        still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert not still, "every parameter learns"


def test_colours_are_distinct():
    colours = {}
    for name, factory in FACTORIES.items():
        colours.setdefault(factory.func.colour, []).append(name)
    shared = {colour: names for colour, names in colours.items() if len(names) > 1}
    assert not shared, "variants of one colour cannot be told apart in a figure"


@pytest.mark.parametrize("name", FACTORIES)
def test_every_variant_cites_its_source(name):
    assert FACTORIES[name].func.paper or name == "stack"
