"""Records to figures: PNG and SVG, the same bytes from the same records.

What is drawn is decided in ``series``; this file only draws. A cell that failed is a cross in a
strip above the panel, in its line's colour and named by its status, never a gap.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from spanwise.figures import Figure, is_power_law, words
from spanwise.palette import Style, distinct, natural, styles
from spanwise.panel import draw_panel, handle, has_exponents, plain_text
from spanwise.pictures import visibility
from spanwise.series import Points, points
from spanwise.tables import Study, write_atomic

RESOLUTION = 160
"""Dots an inch of a PNG."""
STYLE = Path(__file__).with_name("spanwise.mplstyle")


@dataclass(frozen=True)
class Drawn:
    """A figure on disk: its stem under ``plots/``, what it shows, and its text for those who
    cannot see it."""

    name: str
    title: str
    caption: str
    wide: bool = False


def draw(study: Study, cells: pd.DataFrame, wanted: Sequence[Figure]) -> list[Drawn]:
    """Draw the wanted figures and the visibility pictures into ``plots/``; remove stale ones.

    ``cells`` are those of ``choose_rates``. A figure of which no cell measured anything is left
    out.
    """
    drawn: list[Drawn] = []
    with style.context(STYLE):
        for figure in wanted:
            found = points(study, cells, figure)
            if found is None:
                continue
            canvas = lines(found, figure, study)
            names = [words(column).split(" (")[0] for column in (figure.y, figure.x)]
            title = figure.title or " against ".join(names)
            title = title[:1].upper() + title[1:]
            drawn.append(Drawn(figure.name, title, _caption(found), canvas.get_figwidth() > 5.6))
            save(canvas, study.folder / "plots", figure.name)
        if study.pictures:
            save(visibility(study), study.folder / "plots", "visibility")
            drawn.append(
                Drawn(
                    "visibility",
                    "Which query sees which key",
                    "One square a pair, at a small length: coloured where the query (row) sees "
                    "the key (column).",
                    wide=True,
                )
            )
    kept = {f"{each.name}.{kind}" for each in drawn for kind in ("png", "svg")}
    for file in (study.folder / "plots").glob("*"):
        if file.suffix in (".png", ".svg") and file.name not in kept:
            file.unlink(missing_ok=True)
    return drawn


def save(canvas: Canvas, folder: Path, name: str) -> None:
    """Write a figure as PNG and SVG, without dates, so that equal figures are equal files."""
    agg = FigureCanvasAgg(canvas)
    canvas.dpi = RESOLUTION
    # Laid out once and printed by the canvases themselves: savefig would draw five times.
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")
    raster, vector = io.BytesIO(), io.BytesIO()
    agg.print_png(raster, metadata={"Software": None})
    FigureCanvasSVG(canvas).print_svg(vector, metadata={"Date": None, "Creator": None})
    write_atomic(folder / f"{name}.png", raster.getvalue())
    write_atomic(folder / f"{name}.svg", vector.getvalue())


def lines(found: Points, figure: Figure, study: Study) -> Canvas:
    """Return the figure of ``found``: a panel a facet, a line a series, intervals drawn."""
    n = len(found.panels)
    columns = min(n, 3)
    rows = math.ceil(n / columns)
    width = 4.2 if n == 1 else 3.7
    below = max(len(panel.lines) for panel in found.panels)
    height = 3.3 + (0.17 * below if any(map(has_exponents, found.panels)) else 0)
    longest = max(len(plain_text(line.label)) for p in found.panels for line in p.lines)
    beside = 0.75 + 0.065 * longest if _needs_legend(found) else 0.0
    if any(map(has_exponents, found.panels)):
        # Legends stand below their panels: room for the longest, its exponent and its line.
        width, beside = max(width, 2.1 + 0.065 * longest), 0.0
    canvas = Canvas(figsize=(width * columns + beside, height * rows))
    grid = canvas.subplots(rows, columns, squeeze=False)
    names = [line.name for panel in found.panels for line in panel.lines]
    colours = {k: v.get("colour") for k, v in study.displays.items()}
    look = styles(names, colours) if found.by_variant else distinct(names)
    # A line without a name: nothing of what was to tell lines apart differs between the cells.
    if not found.by_variant and all(names) and len({n[0] for n in names}) == len(set(names)) == 1:
        look = styles(names, colours) if names[0][0] in colours else look
    log_x, log_y = _logarithmic(found, figure)
    ticks = _categories(found)
    for ax, panel in zip(grid.flat, found.panels, strict=False):
        draw_panel(ax, panel, figure, look, ticks, log_x, log_y)
    for ax in grid.flat[n:]:
        ax.set_visible(False)
    if _needs_legend(found) and not any(map(has_exponents, found.panels)):
        _shared_legend(canvas, found, look)
    return canvas


def _needs_legend(found: Points) -> bool:
    lines = [line for panel in found.panels for line in panel.lines]
    dashed = any(np.isfinite(line.dashed).any() for line in lines)
    return found.by_variant or dashed or len({line.name for line in lines}) > 1


def _logarithmic(found: Points, figure: Figure) -> tuple[bool, bool]:
    everything = [line for panel in found.panels for line in panel.lines]
    xs = [x for line in everything for x in line.x]
    ys = [y for line in everything for y in line.y]
    can_x = found.numeric_x and bool(xs) and min(xs) > 0
    can_y = bool(ys) and min(ys) > 0
    if figure.log == "auto":
        wide = can_y and max(ys) >= 3 * min(ys)
        power = figure.x == "length" or is_power_law(figure.x) or (can_x and _doubles(xs))
        spread = can_x and max(xs) >= 2 * min(xs)
        return bool(spread and power), bool(wide and is_power_law(figure.y))
    return can_x and figure.log in ("x", "both"), can_y and figure.log in ("y", "both")


def _doubles(xs: list[float]) -> bool:
    """Say whether values lie more evenly by ratio than by difference: 16, 32, 64 and the like."""
    distinct = np.unique(np.asarray(xs, dtype=float))
    if len(distinct) < 3 or distinct[0] <= 0:
        return False
    steps, ratios = np.diff(distinct), np.diff(np.log(distinct))
    return bool(ratios.std() / ratios.mean() < steps.std() / steps.mean())


def _categories(found: Points) -> list[str] | None:
    if found.numeric_x:
        return None
    values = {str(x) for p in found.panels for line in p.lines for x in line.x}
    values |= {str(x) for p in found.panels for line in p.lines for x, _ in line.failed}
    return sorted(values, key=lambda value: natural([value]))


def _shared_legend(canvas: Canvas, found: Points, look: dict[tuple[str, ...], Style]) -> None:
    handles: dict[tuple[str, ...], Line2D] = {}
    for panel in found.panels:
        for line in panel.lines:
            handles.setdefault(line.name, handle(line, look[line.name], found.numeric_x))
    shown = [handles[name] for name in sorted(handles, key=natural)]
    if any(np.isfinite(line.dashed).any() for panel in found.panels for line in panel.lines):
        shown.append(Line2D([], [], color="#555555", ls=(0, (3, 2)), lw=1.0, label=found.dashed))
    canvas.legend(handles=shown, loc="outside right upper", borderaxespad=0.4)


def _caption(found: Points) -> str:
    text = "Mean over seeds; bars are 95% intervals."
    every = [line for panel in found.panels for line in panel.lines]
    if any(line.runs for line in every):
        text = "One line a seed."
    if any(line.failed for line in every):
        text += " Crosses above a panel: cells that failed."
    return text + (f" Not drawn: {found.left_out}; the tables have all." if found.left_out else "")
