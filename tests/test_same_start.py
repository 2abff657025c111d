"""At one seed all variants get the same data in the same order, and start from equal weights."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from spanwise import phases
from spanwise.composition import resolve

CONFIGS = Path(__file__).parent.parent / "configs"
# Those that this repository writes itself; what is external may look ahead, or not train.
VARIANTS = sorted(path.stem for path in (CONFIGS / "variant").glob("*.yaml"))
SMALL = ["length=24", "task.test_size=4", "task.validation_size=4", "train.steps=2"]


@functools.cache
def configured(variant, *overrides):
    with initialize_config_dir(str(CONFIGS.absolute()), version_base="1.3"):
        settings = compose("config", [f"variant={variant}", "model=recall", *overrides])
    return resolve(settings, {})[0]


def hashes(variant, seed=0):
    """Return the hash of each parameter's first values, by its name and shape."""
    model = phases.build(configured(variant) | {"seed": seed}).model()
    return {
        (name, tuple(parameter.shape)): hashlib.sha256(parameter.detach().numpy()).hexdigest()
        for name, parameter in model.named_parameters()
    }


@pytest.fixture(scope="module")
def reference():
    return hashes("full"), hashes("full", seed=1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_start_equal_wherever_names_and_shapes_are(variant, reference):
    full, other_seed = reference
    ours = hashes(variant)
    if variant not in ("gru", "lstm"):
        # What is attention has all of full attention's parameters, whatever it adds.
        assert set(full) <= set(ours)
    shared = set(full) & set(ours)
    assert ("embedding.weight", (64, 32)) in shared
    for parameter in shared:
        assert ours[parameter] == full[parameter], parameter
        name, shape = parameter
        if len(shape) == 2:
            assert ours[parameter] != other_seed[parameter], name


@pytest.mark.parametrize("task", ["recall", "text"])
def test_every_variant_trains_on_the_same_bytes_in_the_same_order(task, tmp_path):
    (tmp_path / "text").write_bytes(np.random.default_rng(0).bytes(5000))
    place = [f"task.path={tmp_path / 'text'}"] if task == "text" else []

    def data_hash(variant, seed=0):
        config = configured(variant, f"task={task}", *SMALL, *place) | {"seed": seed}
        return phases.accuracy({"config": config, "threads": 1})["row"]["data_hash"]

    seen = {variant: data_hash(variant) for variant in VARIANTS}
    assert len(set(seen.values())) == 1, seen
    assert data_hash("full", seed=1) != seen["full"]
