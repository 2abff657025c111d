"""Patterns of layers, from Python and from the shipped configs."""

from functools import partial
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from spanwise.model import Model, build_layer
from variants.full import Full
from variants.interleaved import Interleaved
from variants.stack import Stack, stack_of
from variants.windowed import Windowed

CONFIGS = str(Path(__file__).parents[2] / "configs")
KEYWORDS = {"d_model": 8, "n_heads": 2, "causal": True}


def composed(*overrides):
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        config = compose(overrides=[f"+{overrides[0]}", *overrides[1:]])
    return instantiate(config.variant, _partial_=True)


def pattern(factory, count):
    layers = [build_layer(factory, i, **KEYWORDS) for i in range(count)]
    return [layer.describe() for layer in layers]


def test_every_nth_layer_is_full():
    factory = partial(Interleaved, partial(Windowed, 8), Full, every=3)
    assert pattern(factory, 7) == ["Windowed 8", "Windowed 8", "Full"] * 2 + ["Windowed 8"]


def test_the_config_swaps_layers_and_sets_the_window():
    assert pattern(composed("variant=interleaved"), 2) == ["Windowed 32", "Full"]
    assert pattern(composed("variant=interleaved", "variant.window=5"), 2)[0] == "Windowed 5"
    assert pattern(composed("variant=interleaved", "variant.local.window=6"), 1) == ["Windowed 6"]
    swapped = composed("variant=interleaved", "variant@variant.local=chunked", "variant.every=3")
    assert pattern(swapped, 3) == ["Chunked 32", "Chunked 32", "Full"]


def test_a_window_that_no_layer_takes_is_an_error():
    factory = composed("variant=interleaved", "variant@variant.local=full_map", "variant.window=5")
    with pytest.raises(ValueError, match="window: found 5, but local takes none"):
        stack_of(factory)


def test_any_pattern_of_layers():
    layers = [partial(Windowed, 4), Full, partial(Windowed, 2)]
    assert pattern(partial(Stack, layers), 4) == ["Windowed 4", "Full", "Windowed 2", "Windowed 4"]
    found = composed(
        "variant=stack", "variant@variant.layers.b=chunked", "variant.layers.b.window=3"
    )
    assert pattern(found, 2) == ["Windowed 32", "Chunked 3"]


def test_a_stack_within_a_stack_gives_its_pattern():
    inner = partial(Interleaved, partial(Windowed, 4), Full)
    assert stack_of(partial(Stack, [inner, partial(Windowed, 2)])).period == 3
    nested = composed("variant=stack", "variant@variant.layers.a=interleaved")
    assert pattern(nested, 3)[:2] == ["Windowed 32", "Full"]


def test_a_model_of_a_composed_stack():
    factory = composed("variant=interleaved", "variant.window=4")
    model = Model(
        factory, vocab_size=9, n_classes=9, length=8, causal=True, d_model=8, n_heads=2, n_layers=4
    )
    assert [type(layer).__name__ for layer in model.layers] == ["Windowed", "Full"] * 2


def test_bad_patterns_are_named():
    with pytest.raises(ValueError, match="layers: found none"):
        Stack([])
    with pytest.raises(ValueError, match="every: found 0"):
        Interleaved(Full, Full, every=0)
