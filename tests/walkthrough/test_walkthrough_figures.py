"""The figures with long, odd and many tokens: what is written, and that nothing touches."""

from __future__ import annotations

import itertools
import re

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from spanwise.fonts import writing
from spanwise.walkthrough.figures import STYLE, four_steps, weights
from spanwise.walkthrough.numbers import Numbers
from spanwise.walkthrough.steps import sections
from variants.full_map import FullMap

ODD = ["<b>猫</b>", "$x_1$", "a&b", "supercalifragilisticexpialidocious-" + "a" * 27, "ع", "C|D",
       "猫" * 30]  # fmt: skip
TWELVE = list("一二三四五六七八九十木水")


def laid_out(make, tokens, d_model, n_heads):
    """The figure ``make`` returns for these tokens, drawn; any warning fails the test."""
    x = [[float((i * 5 + j * 3) % 3) for j in range(d_model)] for i in range(len(tokens))]
    w = [[0.5 * ((i * 7 + j * 4) % 3 - 1) for j in range(d_model)] for i in range(d_model)]
    parts = sections(Numbers(x, w, w, w, w), tokens, n_heads, False, FullMap)
    with mpl.rc_context(fname=STYLE):
        figure = make(parts, writing(tokens))
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
    return figure


def of_heads(parts, drawn):
    return four_steps(parts[-1], drawn)


def touching(texts):
    boxes = [text.get_window_extent() for text in texts if text.get_text().strip("·")]
    return [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]


@pytest.mark.parametrize("make", [weights, of_heads])
def test_odd_tokens_are_cut_and_written_as_they_are(make):
    figure = laid_out(make, ODD, 4, 2)
    labels = [label for ax in figure.axes if ax.get_visible() for label in ax.get_yticklabels()]
    drawn = {label.get_text() for label in labels}
    assert {"<b>猫</b>", r"\$x_1\$", "a&b", "supercali…", "ع", "C|D", "猫猫猫猫…"} <= drawn
    page = figure.bbox
    for ax in figure.axes:
        if not ax.get_visible():
            continue
        names = ax.get_xticklabels()
        for text in (*ax.get_yticklabels(), *names):
            box = text.get_window_extent()
            assert page.x0 <= box.x0 < box.x1 <= page.x1
            assert page.y0 <= box.y0 < box.y1 <= page.y1
        # Slanted names overlap as boxes without touching; level ones must not.
        if not names[0].get_rotation():
            assert not touching(names)
        assert not touching(ax.get_yticklabels())
        assert not touching(ax.texts)


@pytest.mark.parametrize("many", [7, 9, 12])
@pytest.mark.parametrize("make", [weights, of_heads])
def test_no_two_numbers_touch_with_many_tokens(make, many):
    figure = laid_out(make, TWELVE[:many], 8, 2)
    numbers = [text for ax in figure.axes for text in ax.texts]
    assert sum(bool(re.fullmatch(r"-?\d+\.\d\d", text.get_text())) for text in numbers) > many**2
    for ax in figure.axes:
        assert not touching(ax.texts)
        assert not touching(ax.get_yticklabels())
