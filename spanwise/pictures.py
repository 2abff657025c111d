"""The picture of a variant: which query sees which key."""

from __future__ import annotations

import math
import textwrap

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Canvas

from spanwise.palette import hues, natural
from spanwise.panel import plain_text
from spanwise.tables import Study

_MAX_PICTURES = 12


def visibility(study: Study) -> Canvas:
    """Return the pictures of the variants: which query (row) sees which key (column)."""
    colours = hues({k: v.get("colour") for k, v in study.displays.items()})
    label = {
        (variant, params): name
        for variant, params, name in study.cells[
            ["variant", "variant_params", "variant_label"]
        ].itertuples(index=False)
    }
    pictures = [
        (key, layer, len(layers))
        for key, (_, layers) in sorted(study.pictures.items(), key=lambda item: natural(item[0]))
        for layer in range(len(layers))
    ][:_MAX_PICTURES]
    columns = min(len(pictures), 4)
    rows = math.ceil(len(pictures) / columns)
    canvas = Canvas(figsize=(2.1 * columns + 0.3, 2.5 * rows))
    grid = canvas.subplots(rows, columns, squeeze=False)
    for ax, (key, layer, of) in zip(grid.flat, pictures, strict=False):
        span, layers = study.pictures[key]
        seen = np.array([[int(c) for c in row] for row in layers[layer]])
        size = len(seen)
        ax.imshow(
            seen,
            cmap=ListedColormap(["#efefef", colours[key[0]]]),
            vmin=0,
            vmax=1,
            interpolation="nearest",
            extent=(-0.5, size - 0.5, size - 0.5, -0.5),
        )
        name = textwrap.fill(plain_text(label.get(key, key[0])), 26)
        ax.set_title(name + (f"\nlayer {layer + 1}" if of > 1 else ""), fontsize=8.5)
        ax.set_xticks([0, size - 1], labels=["0", str(span - 1)])
        ax.set_yticks([0, size - 1], labels=["0", str(span - 1)])
        ax.tick_params(length=0)
        ax.grid(visible=False, which="major")
        if size <= 32:
            ax.set_xticks(np.arange(0.5, size - 1), minor=True)
            ax.set_yticks(np.arange(0.5, size - 1), minor=True)
            ax.grid(visible=True, which="minor", color="white", linewidth=0.4)
        ax.set_axisbelow(False)
        ax.tick_params(which="minor", length=0)
        for side in ax.spines.values():
            side.set_visible(False)
        ax.set_xlabel("key", labelpad=-6, fontsize=8)
        ax.set_ylabel("query", labelpad=-8, fontsize=8)
    for ax in grid.flat[len(pictures) :]:
        ax.set_visible(False)
    return canvas
