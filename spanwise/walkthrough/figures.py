"""The walk-through's figures: the four steps as matrices with their numbers, and the weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure

from spanwise.fonts import Writing
from spanwise.panel import plain_text
from spanwise.walkthrough.paper import show
from spanwise.walkthrough.steps import Section, Shown
from spanwise.walkthrough.text import width

STYLE = Path(__file__).parents[1] / "spanwise.mplstyle"
SHARE = LinearSegmentedColormap.from_list("share", ["#ffffff", "#0072B2"])
SIGNED = LinearSegmentedColormap.from_list("signed", ["#D55E00", "#ffffff", "#0072B2"])
MOST_CELLS = 12
"""A matrix larger than this in either direction is drawn without numbers."""
MOST_LABEL = 10
"""A longer token is cut; in columns of a terminal, of which a Chinese character takes two."""
NUMBER = 0.38
"""Inches that a number takes beside its neighbours: a cell is no narrower."""
COLUMN = 0.085
"""Inches of one column of a label."""


def draw(parts: Sequence[Section], writing: Writing, folder: Path) -> list[str]:
    """Write the figures into ``folder`` as PNG and SVG; return their names."""
    with mpl.rc_context(fname=STYLE):
        made = {"weights": weights(parts, writing)}
        for part in parts:
            made[f"four_steps_{part.key}"] = four_steps(part, writing)
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in made.items():
            FigureCanvasAgg(figure)
            # Lay out once, not once a format: that is most of the time a figure takes.
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            figure.savefig(folder / f"{name}.png", metadata={"Software": None})
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
    return list(made)


def four_steps(part: Section, writing: Writing) -> Figure:
    """Return the steps left to right, a row of panels a head, and the merge below."""
    panels = [
        [
            [part.get(part.head(head, name)) for name in names]
            for names in (("q", "k", "v"), ("scores", "scaled"), ("powers", "weights"), ("output",))
        ]
        for head in range(part.n_heads)
    ]
    size = len(part.keys)
    dims = len(part.get("x").columns)
    many = max(size, dims)
    cell = min(0.5, max(4.5 / many, NUMBER))
    left, below = _room(part.keys, writing)
    slanted = 2 * below  # under scores and scaled scores, or powers and weights
    row_height = 3 * (size * min(cell, 0.3) + 0.5) + slanted
    extra = max(1.6, 0.21 * many + 0.7) if part.n_heads > 1 else 0
    figure = Figure(
        figsize=(4 * (many * cell + 0.9 + left), row_height * part.n_heads + extra + 0.5),
        layout="constrained",
    )
    heights = [row_height] * part.n_heads + ([extra] if extra else [])
    bands = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    titles = ("1  project", "2  score", "3  normalise", "4  weight")
    for head, columns in enumerate(panels):
        band = bands[head]
        if part.n_heads > 1:
            band.suptitle(f"Head {head + 1}", x=0.01, ha="left", weight="bold", fontsize=10)
        for place, title, stack in zip(band.subfigures(1, 4), titles, columns, strict=True):
            place.suptitle(title, fontsize=10, weight="bold", color="#555555")
            grid = place.subplots(len(stack), 1, squeeze=False)[:, 0]
            for ax, matrix in zip(grid, stack, strict=True):
                _draw_matrix(ax, matrix, writing)
    if part.n_heads > 1:
        grid = bands[-1].subplots(1, 3)
        bands[-1].suptitle("Then together", x=0.01, ha="left", weight="bold", fontsize=10)
        for ax, name in zip(grid, ("joined", "w_o", "merged"), strict=True):
            _draw_matrix(ax, part.get(name), writing)
    return figure


def weights(parts: Sequence[Section], writing: Writing) -> Figure:
    """Return the softmax weights of every head as heat maps: row = query, column = key."""
    maps = [
        (
            part.title if part.n_heads == 1 else f"Head {head + 1} of {part.n_heads}",
            part.get(part.head(head, "weights")),
        )
        for part in parts
        for head in range(part.n_heads)
        if len(part.queries) == len(part.keys)
    ]
    size = max(len(matrix.columns) for _, matrix in maps)
    cells = size * NUMBER if size <= MOST_CELLS else 4.0
    left, below = _room(parts[0].keys, writing)
    across, down = max(2.5, cells + 1.0) + left, max(2.6, cells / 2 + 1.2) + below
    columns = min(4, len(maps), max(1, int(14 / across)))
    rows = -(-len(maps) // columns)
    figure = Figure(figsize=(across * columns + 0.4, down * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for ax in grid.flat[len(maps) :]:
        ax.set_visible(False)
    for ax, (title, matrix) in zip(grid.flat, maps, strict=False):
        _draw_matrix(ax, matrix, writing, title)
        ax.set_xlabel("key: looked at")
        ax.set_ylabel("query: looks")
    return figure


def _label(name: str, writing: Writing) -> str:
    """Return the token as a figure writes it: cut where long, and never as mathematics."""
    text = " ".join(writing.labels.get(name, name).split())
    if width(text) > MOST_LABEL:
        cut = text
        while width(cut) >= MOST_LABEL:
            cut = cut[:-1]
        text = f"{cut.rstrip()}…"
    return plain_text(text)


def _room(tokens: Sequence[str], writing: Writing) -> tuple[float, float]:
    """Return the inches that the tokens' labels take more than a character's, beside and below."""
    longest = max(width(_label(token, writing)) for token in tokens)
    return (longest - 2) * COLUMN if longest > 2 else 0.0, _slant(longest)


def _slant(longest: int) -> float:
    """Return the inches that slanted labels take below more than level ones; 0 where level."""
    return 0.0 if longest * COLUMN <= NUMBER else longest * COLUMN * 0.7


def _draw_matrix(ax: Axes, matrix: Shown, writing: Writing, title: str = "") -> None:
    values = np.array([[np.nan if v is None else v for v in row] for row in matrix.values], float)
    share = matrix.symbol.endswith("softmax")
    top = 1.0 if share else max(1e-9, float(np.nanmax(np.abs(values))))
    colours: Colormap = SHARE if share else SIGNED
    # Paler than the scale's ends, so that black numbers can be read on every cell.
    span = (0, 1.3 * top) if share else (-1.8 * top, 1.8 * top)
    ax.imshow(values, cmap=colours, vmin=span[0], vmax=span[1], aspect="auto")
    ax.set_box_aspect(0.5 * values.shape[0] / max(values.shape[1], 2))
    ax.set_title(_formula(title or matrix.symbol), fontsize=9, weight="normal", loc="center")
    families = list(writing.families)
    for set_ticks, names in ((ax.set_xticks, matrix.columns), (ax.set_yticks, matrix.rows)):
        labels = [_label(name, writing) for name in names]
        set_ticks(range(len(names)), labels, family=families)
        if set_ticks == ax.set_xticks and _slant(max(map(width, labels))):
            for tick in ax.get_xticklabels():
                tick.set(rotation=45, ha="right", rotation_mode="anchor")
    ax.tick_params(length=0)
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color("#bbbbbb")
    if max(values.shape) > MOST_CELLS:
        return
    for i, row in enumerate(matrix.values):
        for j, value in enumerate(row):
            ax.text(j, i, show(value), ha="center", va="center", fontsize=8, color="#111111")


def _formula(symbol: str) -> str:
    """Return a symbol with its subscripts and transposes set as mathematics."""
    names = {"e^score": r"$e^{\mathrm{score}}$", "side by side × W_o": r"side by side × $W_o$"}
    if symbol in names:
        return names[symbol]
    words = []
    for word in symbol.split(" "):
        plain = word.removesuffix("ᵀ")
        if "_" in plain or plain != word or (len(plain) == 1 and plain.isalpha()):
            base, _, below = plain.partition("_")
            mathematics = base + (f"_{{{below}}}" if below else "") + ("^T" * (plain != word))
            words.append(f"${mathematics}$")
        elif word.startswith("√"):
            words.append(rf"$\sqrt{{{word[1:]}}}$")
        else:
            words.append(word)
    return " ".join(words)
