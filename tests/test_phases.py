"""What a cell says of its variant beside what it measures."""

from functools import partial

import pytest

from spanwise.model import Model
from spanwise.phases import _picture
from variants.windowed import Windowed

KEYWORDS = {
    "vocab_size": 8,
    "n_classes": 8,
    "seed": 0,
    "d_model": 8,
    "n_heads": 1,
    "n_layers": 1,
    "mlp_ratio": 0,
    "positions": "none",
    "conv": 0,
    "dropout": 0.0,
    "scale": None,
    "tied": False,
}


@pytest.mark.parametrize(
    ("window", "length", "span"),
    [(16, 64, 64), (128, 64, 64), (128, 512, 256), (128, 100, 64), (4, 33, 33)],
)
def test_a_picture_spans_the_least_length_that_shows_the_window(window, length, span):
    model = Model(partial(Windowed, window=window), length=length, causal=True, **KEYWORDS)
    found = _picture(model, length, causal=True)
    assert found["span"] == span
    rows, step = found["layers"][0], -(-span // 64)
    assert len(rows) == len(range(0, span, step))
    for i, row in enumerate(rows):
        for j, seen in enumerate(row):
            assert (seen == "1") == (0 <= (i - j) * step < window)
