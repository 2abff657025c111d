"""A short run before any cell refuses what is not as its config says, and nothing else."""

import pytest
import torch

from variants.external import Function, Module

LAYER = {"d_model": 8, "n_heads": 2}
OURS = "third_party_targets"
FLOAT = torch.float32


def function(name, given=None, direction="causal", **model):
    return Function(f"{OURS}.{name}", None, given, direction, **LAYER | model)


@pytest.mark.parametrize("length", [5, 16, 300, 5000])
def test_what_looks_ahead_is_not_causal(length):
    shown = min(length, 256)
    told = rf"^direction: found causal, but {OURS}.both looks ahead: the output at position 0 of "
    with pytest.raises(ValueError, match=told + f"{shown} changes with the inputs from 1 on"):
        function("both").rehearse(length, FLOAT)
    with pytest.raises(ValueError, match=r"^direction: found causal, but .*Means looks ahead"):
        Module(f"{OURS}.Means", None, {"dim": "d_model"}, "causal", **LAYER).rehearse(length, FLOAT)
    function("both", direction="bidirectional", causal=False).rehearse(length, FLOAT)


def test_what_ignores_that_it_is_told_to_be_causal_is_found():
    with pytest.raises(ValueError, match=r"^given.is_causal: found causal, True, but .* ahead"):
        function("ignores", {"is_causal": "causal"}, None).rehearse(16, FLOAT)
    function("ignores", {"is_causal": "causal"}, None, causal=False).rehearse(16, FLOAT)


def test_what_looks_back_only_may_be_called_bidirectional():
    function("causal", direction="bidirectional", causal=False).rehearse(16, FLOAT)


@pytest.mark.parametrize("length", [1, 2, 3, 16, 256])
@pytest.mark.parametrize(
    "name", ["causal", "writes", "dropping", "transformed", "float_only", "decorated"]
)
def test_what_is_causal_passes(name, length):
    function(name).rehearse(length, FLOAT)


def test_what_gives_no_two_alike_is_not_said_to_look_ahead():
    function("Counting").rehearse(16, FLOAT)


def test_numbers_that_are_not_finite_are_told_by_place():
    with pytest.raises(ValueError, match=r"NaN or infinity at position 3 of 16, .*; allowed: fini"):
        function("nan_at_three").rehearse(16, FLOAT)


def test_the_type_asked_for_is_the_cells():
    function("float_only").rehearse(16, FLOAT)
    with pytest.raises(ValueError, match="float_only returned float32 for inputs of bfloat16"):
        function("float_only").rehearse(16, torch.bfloat16)


def test_a_length_that_the_target_cannot_take_is_left_to_the_cell():
    function("eights").rehearse(13, FLOAT)
    # What is wrong at a length that it can take is wrong.
    with pytest.raises(ValueError, match="eights_only_half returned float16"):
        function("eights_only_half").rehearse(13, FLOAT)


def test_what_raises_something_of_its_own_is_left_to_the_cell():
    function("raises").rehearse(16, FLOAT)
    function("leaves").rehearse(16, FLOAT)


def test_what_no_length_helps_against_is_told():
    with pytest.raises(ValueError, match=r"wrong_inside raises TypeError: causal\(\) takes 3 pos"):
        function("wrong_inside").rehearse(16, FLOAT)
    # It has no signature to be read.
    layer = Function("torch.nn.functional.gelu", direction="causal", **LAYER)
    with pytest.raises(ValueError, match=r"gelu raises TypeError: .*; allowed: what can be called"):
        layer.rehearse(16, FLOAT)
