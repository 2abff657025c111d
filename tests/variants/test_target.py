"""What is wrong with a target is one line, early, that names it and says what is allowed."""

import copy
import sys

import pytest
import third_party_targets
import torch

from variants.external import Function, Module
from variants.target import load

LAYER = {"d_model": 8, "n_heads": 2}
OURS = "third_party_targets"


def function(name, keywords=None, given=None, direction="causal", **model):
    return Function(f"{OURS}.{name}", keywords, given, direction, **LAYER | model)


def module(name, keywords=None, **model):
    return Module(f"{OURS}.{name}", keywords, {"dim": "d_model"}, "causal", **LAYER | model)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("third_party_target.causal", "no package 'third_party_target' .* mean 'third_party_tar"),
        ("toch.nn.Linear", "no package 'toch' .* Did you mean 'torch'"),
        (f"{OURS}.casual", f"{OURS} has no 'casual'; .* Did you mean 'causal'"),
        ("torch.nn.functionl.gelu", "torch.nn has no 'functionl'; .* Did you mean 'functional'"),
        ("torch.nn.GRU.forwrd", "GRU has no 'forwrd'; .* Did you mean 'forward'"),
    ],
)
def test_what_is_not_found_says_which_part_and_the_nearest(path, told):
    with pytest.raises(ValueError, match=f"^target: found '{path}', but {told}"):
        load(path)


def test_a_module_that_nobody_imported_yet_is_among_the_nearest(monkeypatch, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").touch()
    (tmp_path / "theirs" / "attention.py").write_text("def f(q, k, v): return v\n")
    (tmp_path / "theirs" / "script.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"theirs has no 'atention'; .* mean 'attention'"):
        load("theirs.atention.f")
    with pytest.raises(ValueError, match=r"importing theirs.script raises SystemExit: 3"):
        load("theirs.script.f")
    assert "theirs.attention" not in sys.modules


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"transformers.* is installed; .*'spanwise\[peers\]'"):
        load("transformers.LongformerConfig")
    with pytest.raises(ValueError, match="no package 'no_such_package' is installed"):
        load("no_such_package.module.function")


def test_a_package_that_a_module_needs_is_named(monkeypatch, tmp_path):
    (tmp_path / "needy.py").write_text("import no_such_thing\ndef f(q, k, v): return v\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="needy needs the package 'no_such_thing'"):
        load("needy.f")
    with pytest.raises(ValueError, match="importing broken raises ZeroDivisionError"):
        load("broken.f")


def test_a_method_of_a_class_is_found():
    assert load("torch.Tensor.softmax") is torch.Tensor.softmax


@pytest.mark.parametrize(
    ("name", "keywords", "told"),
    [
        ("two", {}, "two takes q, k only; allowed: what is called with q, k and v"),
        ("masked", {}, "masked needs mask after q, k, v; allowed: with a value in keywords"),
        ("windowed", {}, "windowed needs window after q, k, v"),
    ],
)
def test_a_function_of_other_arguments_is_refused(name, keywords, told):
    with pytest.raises(ValueError, match=f"^target: {OURS}.{told}"):
        function(name, keywords)


def test_keywords_that_a_function_has_not_say_which_it_has():
    with pytest.raises(
        ValueError, match=r"^keywords.windw: .* allowed: window, scale\. .*'window'"
    ):
        function("windowed", {"windw": 3})
    with pytest.raises(ValueError, match=r"^keywords.q: .* gets it as an input; allowed: window"):
        function("windowed", {"q": 3, "window": 3})
    with pytest.raises(ValueError, match=r"^given.scal: .* mean 'scale'"):
        function("windowed", {"window": 3}, {"scal": "scale"})
    with pytest.raises(ValueError, match=r"^keywords.scale: found 2, but given decides it"):
        function("windowed", {"window": 3, "scale": 2}, ["scale"])
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    expected = third_party_targets.causal(q, k, v)
    assert torch.equal(function("windowed", {"window": 3}).attend(q, k, v, None), expected)
    assert torch.equal(function("decorated").attend(q, k, v, None), expected)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Fails", r"Fails\(dim=8\) raises RuntimeError: no weights for 8; allowed: what its"),
        ("Needs", "Needs needs heads; allowed: with a value in keywords, or in given"),
        ("Silent", "Silent makes what cannot be called; allowed: a class with __call__"),
        ("NoForward", "NoForward has no forward"),
        ("Three", "Three.forward needs k and v after x; allowed: what is called with x alone"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_class_that_cannot_be_built_or_called_is_refused(name, told, device):
    with torch.device(device), pytest.raises(ValueError, match=f"^target: {OURS}.{told}"):
        module(name)


def test_a_class_that_computes_with_its_weights_is_built_without_memory_too():
    with torch.device("meta"):
        layer = module("Counts")
    assert layer.module.inner.weight.is_meta
    assert layer.module.size > 0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", r"nothing returned None; allowed: a tensor of \(1, 2, 6, 4\)"),
        ("several", "several returned a tuple that starts with None; allowed"),
        ("empty", "empty returned an empty tuple; allowed"),
        ("table", "table returned dict; allowed"),
        ("array", "array returned ndarray; allowed"),
        ("shorter", r"shorter returned a shape of \(1, 2, 5, 4\); .* \(1, 2, 6, 4\)"),
        ("merged", r"merged returned a shape of \(1, 6, 8\)"),
        ("half", "half returned float16 for inputs of float32; allowed: float32"),
        ("truth", "truth returned bool for inputs of float32"),
    ],
)
def test_an_output_that_is_none_is_told_by_the_targets_name(name, told):
    layer = function(name)
    with torch.no_grad(), pytest.raises(ValueError, match=f"^target: {OURS}.{told}"):
        layer(torch.zeros(1, 6, 8))
    # Nor does a measurement break on it in words of its own.
    if name not in ("half", "truth"):
        with pytest.raises(ValueError, match=f"^target: {OURS}.{name} returned"):
            layer.keys_per_query(6)
    with pytest.raises(ValueError, match=f"^target: {OURS}.{name} returned"):
        layer.rehearse(6, torch.float32)


def test_a_module_of_another_width_is_told():
    with pytest.raises(
        ValueError, match=r"Doubles returned a shape of \(2, 6, 16\); .*\(2, 6, 8\)"
    ):
        module("Doubles")(torch.zeros(2, 6, 8))


def test_what_a_target_raises_is_told_with_its_name_and_what_it_got():
    told = r"^target: .*raises raises RuntimeError: cannot do this \(for q, k, v of \(1, 2, 6, 4\)"
    with pytest.raises(RuntimeError, match=told):
        function("raises")(torch.zeros(1, 6, 8))
    with pytest.raises(RuntimeError, match=r"leaves raises SystemExit: 3"):
        function("leaves")(torch.zeros(1, 6, 8))


def test_an_output_without_gradient_is_refused_where_one_is_asked_for():
    layer, x = function("detached"), torch.randn(1, 6, 8)
    with pytest.raises(ValueError, match="detached returned an output that passes no gradient"):
        layer(x)
    with torch.no_grad():
        layer(x)

    class Infers(Function):
        trains_on_cpu = False

    Infers(f"{OURS}.detached", direction="causal", **LAYER)(x)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_target_may_write_to_its_inputs(mode):
    tensors = torch.randn(3, 1, 2, 6, 4).requires_grad_().unbind()
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in tensors)
    expected = third_party_targets.causal(2 * q, k, v - 1)
    layer = function("writes")
    with mode():
        for _ in range(3):  # leaves, of which torch itself forbids it
            out = layer.attend(q, k, v, None)
            torch.testing.assert_close(out, expected)
    for now, before in zip((q, k, v), tensors, strict=True):
        assert torch.equal(now, before)
    if mode is torch.enable_grad:
        found = torch.autograd.grad(out.sum(), (q, k, v))
        for one, other in zip(found, torch.autograd.grad(expected.sum(), (q, k, v)), strict=True):
            torch.testing.assert_close(one, other)
    assert layer.keys_per_query(6) == 3.5
    x = torch.randn(1, 6, 8)
    kept = x.clone()
    module("Writes")(x)
    assert torch.equal(x, kept)


def test_only_a_target_that_writes_gets_copies(monkeypatch):
    seen = []
    monkeypatch.setattr(third_party_targets, "two", lambda q, k, v: seen.append(q) or v + 0)
    layer = function("two")
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    for _ in range(3):
        layer.attend(q, k, v, None)
    assert [one is q for one in seen] == [False, True, True]
    # In training it may be another.
    layer.train(False).attend(q, k, v, None)
    assert seen[-1] is not q


def test_a_target_that_writes_in_training_only_is_found():
    layer = Function(f"{OURS}.WritesInTraining", direction="causal", **LAYER).eval()
    q, k, v = torch.randn(3, 1, 2, 6, 4).requires_grad_().unbind()
    kept = q.detach().clone()
    for training in (False, True, False, True):
        layer.train(training).attend(q, k, v, None)
        assert torch.equal(q, kept)


def test_a_target_that_writes_only_later_is_refused():
    layer = function("writes_late")
    layer.attend(*torch.randn(3, 1, 2, 6, 4), None)
    with pytest.raises(ValueError, match="writes_late wrote to its inputs, as it did not when"):
        layer.attend(*torch.randn(3, 1, 2, 9, 4), None)


def test_a_copy_of_a_layer_knows_what_the_layer_knows():
    layer = function("writes")
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    out = layer.attend(q, k, v, None)
    assert torch.equal(copy.deepcopy(layer).attend(q, k, v, None), out)


def test_a_target_that_draws_is_measured_with_the_same_draws():
    # A query whose own key is dropped everywhere may lose one; none gains any.
    assert function("dropping", n_heads=8).keys_per_query(12) == pytest.approx(6.5, abs=0.1)


def test_weights_that_start_at_zero_hide_nothing():
    assert module("Means").keys_per_query(9) == 9
