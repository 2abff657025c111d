import hashlib
from functools import partial

import pytest
import torch

from spanwise.errors import ConfigError
from spanwise.model import Model, ShortConvolution, build_layer, display, n_params
from variants.chunked import Chunked
from variants.full import Full
from variants.full_map import FullMap
from variants.interface import Variant
from variants.interleaved import Interleaved
from variants.windowed import Windowed

SMALL = {"vocab_size": 20, "n_classes": 20, "length": 16, "causal": True, "d_model": 16}
SMALL |= {"n_heads": 2, "mlp_ratio": 2}


def test_the_forward_pass_step_by_step():
    model = Model(Full, **SMALL, n_layers=1, conv=3, positions="learned", tied=True).double()
    tokens = torch.randint(0, 20, (2, 9))
    block = model.blocks[0]
    x = model.embedding.weight[tokens] + model.table.weight[:9]
    mixed = block.norm_mixer(x)
    x = x + block.mixer(mixed + block.conv(mixed))
    x = x + block.mlp(block.norm_mlp(x))
    expected = model.norm(x) @ model.embedding.weight.T
    torch.testing.assert_close(model(tokens), expected)


def test_logits_only_where_asked():
    model = Model(Full, **SMALL)
    tokens = torch.randint(0, 20, (3, 8))
    at = torch.rand(3, 8) > 0.6
    torch.testing.assert_close(model(tokens, at=at), model(tokens)[at])
    assert model(tokens, at=torch.zeros_like(at)).shape == (0, 20)


def test_equal_names_and_shapes_start_equal_for_every_variant():
    def digests(factory, seed=3):
        model = Model(factory, **SMALL, n_layers=2, conv=3, seed=seed)
        return {
            (name, p.shape): hashlib.sha256(p.detach().numpy().tobytes()).hexdigest()
            for name, p in model.named_parameters()
        }

    class Gated(Full):
        """One more parameter, drawn by its own constructor, before the others."""

        def __init__(self, **attention):
            super().__init__(**attention)
            self.gate = torch.nn.Linear(16, 16)

    reference = digests(Full)
    drawn = {digest for (name, _), digest in reference.items() if "weight" in name}
    assert len(drawn) > 10  # no stream serves two parameters
    for factory in (FullMap, partial(Windowed, 4), Gated, partial(Interleaved, Chunked, Full)):
        factory = partial(Chunked, 4) if factory is Chunked else factory
        if getattr(factory, "func", None) is Interleaved:
            factory = partial(Interleaved, partial(Chunked, 4), Full)
        found = digests(factory)
        assert {key: found[key] for key in reference} == reference
    assert digests(Full, seed=4) != reference


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    Model(Full, **SMALL, conv=3)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("factory", [Full, FullMap, partial(Windowed, 4)])
def test_a_causal_model_never_looks_ahead(factory):
    model = Model(factory, **SMALL, conv=3, positions="rotary").double()
    tokens = torch.randint(0, 20, (1, 12))
    before = model(tokens)
    for position in range(12):
        other = tokens.clone()
        other[0, position:] = (other[0, position:] + 7) % 20
        after = model(other)
        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=0, atol=1e-12)
        assert (after[0, position] != before[0, position]).any()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary", "alibi"])
def test_padding_never_influences_valid_positions(causal, positions):
    keywords = SMALL | {"causal": causal}
    model = Model(partial(Windowed, 4), **keywords, conv=3, positions=positions).double()
    tokens, lengths = torch.randint(0, 20, (3, 12)), torch.tensor([12, 7, 1])
    other = tokens.clone()
    other[1, 7:], other[2, 1:] = 5, 6
    out = model(tokens, lengths)
    for i, n in enumerate([12, 7, 1]):
        torch.testing.assert_close(model(other, lengths)[i, :n], out[i, :n], rtol=0, atol=1e-12)
        torch.testing.assert_close(model(tokens[i : i + 1, :n])[0], out[i, :n], rtol=0, atol=1e-10)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "alibi"])
def test_positions_break_the_symmetry_that_full_attention_has_without(positions):
    tokens, order = torch.randint(0, 20, (1, 10)), torch.randperm(10)
    tokens[0, :2] = torch.tensor([1, 2])
    order[:] = torch.tensor([1, 0, *range(2, 10)])
    keywords = SMALL | {"causal": False}
    plain = Model(Full, **keywords).double()
    torch.testing.assert_close(plain(tokens[:, order]), plain(tokens)[:, order])
    placed = Model(Full, **keywords, positions=positions).double()
    assert (placed(tokens[:, order]) - placed(tokens)[:, order]).abs().max() > 1e-4


@pytest.mark.parametrize(("causal", "before", "after"), [(True, 3, 0), (False, 1, 2)])
def test_convolution_is_a_sum_over_its_span(causal, before, after):
    conv = ShortConvolution(6, 4, causal).double()
    conv.reset_parameters()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    peer = torch.nn.Conv1d(6, 6, 4, groups=6).double()
    with torch.no_grad():
        peer.weight.copy_(conv.weight.T[:, None])
        peer.bias.copy_(conv.bias)
    wide = torch.nn.functional.pad(x.transpose(1, 2), (before, after))
    torch.testing.assert_close(conv(x), peer(wide).transpose(1, 2))


def test_a_layer_alone_has_the_weights_of_that_layer_in_the_model():
    stack = partial(Interleaved, partial(Windowed, 4), Full)
    model = Model(stack, **SMALL, n_layers=4, seed=5)
    keywords = {"d_model": 16, "n_heads": 2, "causal": True}
    for index, kind in enumerate((Windowed, Full, Windowed, Full)):
        layer = build_layer(stack, index, seed=5, **keywords)
        assert type(layer) is kind
        assert torch.equal(layer.W_q.weight, model.layers[index].W_q.weight)


def test_figures_of_a_stack_are_those_of_its_layers():
    model = Model(partial(Interleaved, partial(Windowed, 4), Full), **SMALL, n_layers=2)
    assert model.keys_per_query(8) == ((1 + 2 + 3 + 4 * 5) / 8 + 36 / 8) / 2
    local, full = model.visibility(8)
    assert local.sum() == 26
    assert full.equal(torch.ones(8, 8, dtype=torch.bool).tril())


def test_parameters_are_counted():
    model = Model(Full, **SMALL, n_layers=1, tied=True)
    block = 4 * 16 * 16 + 2 * 2 * 16 + (16 * 32 + 32) + (32 * 16 + 16)
    assert n_params(model) == 20 * 16 + block + 2 * 16


def test_display_of_a_factory():
    assert display(partial(Windowed, 4))["label"] == "Windowed"
    assert display(partial(Interleaved, every=2))["colour"].startswith("#")


@pytest.mark.parametrize(
    ("factory", "keywords", "message"),
    [
        (Full, {"n_layers": 0}, "model.n_layers: found 0"),
        (Full, {"conv": -1}, "model.conv: found -1"),
        (Full, {"mlp_ratio": -1}, "model.mlp_ratio: found -1"),
        (Full, {"positions": "learnt"}, "Did you mean 'learned'"),
        (Full, {"tied": True, "n_classes": 3}, "model.tied"),
        (partial(Interleaved, Full, Full, 4), {"n_layers": 2}, "fewer than the 4 layers"),
        (lambda **k: torch.nn.Identity(), {}, "a subclass of Variant"),
    ],
)
def test_bad_values_are_one_line(factory, keywords, message):
    with pytest.raises(ConfigError, match=message):
        Model(factory, **SMALL | keywords)


def test_learned_positions_end():
    model = Model(Full, **SMALL, positions="learned")
    with pytest.raises(ConfigError, match="end at 16, found a sequence of 17"):
        model(torch.zeros(1, 17, dtype=torch.int64))


def test_what_is_no_attention_fits_too():
    class Mean(Variant):
        """The running mean."""

        def forward(self, x, lengths=None):
            return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]

    model = Model(Mean, **SMALL, conv=3, positions="learned")
    assert model(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 5, 20)
    assert model.keys_per_query(5) is None
    with pytest.raises(ValueError, match="positions: found 'rotary'"):
        Model(Mean, **SMALL, positions="rotary")
