"""One panel of a figure: its lines with their intervals, its axes, and the cells that failed."""

from __future__ import annotations

import math
from itertools import pairwise
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import patheffects, ticker
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.transforms import ScaledTranslation

from spanwise.figures import Figure, is_share, words
from spanwise.palette import Style, darker, is_light
from spanwise.scaling import COSTS
from spanwise.series import Line, Panel
from spanwise.summary import BASE

_STRIP = 0.065


def draw_panel(
    ax: Axes,
    panel: Panel,
    figure: Figure,
    look: dict[tuple[str, ...], Style],
    ticks: list[str] | None,
    log_x: bool,
    log_y: bool,
) -> None:
    """Draw ``panel`` on ``ax``; ``ticks`` are the values of an x that has no numbers."""
    if log_x:
        ax.set_xscale("log", base=2)
    if log_y:
        ax.set_yscale("log")
    for number, line in enumerate(panel.lines):
        # Lines that lie on one another are set apart a little, so that all can be seen.
        apart = number - (len(panel.lines) - 1) / 2
        offset = apart * _step(panel, figure, ticks, log_x)
        # Each line is thinner than those under it, so that equal ones still show.
        wider = min(len(panel.lines) - 1 - number, 4)
        _draw_line(ax, line, look[line.name], ticks, offset, wider)
    if is_share(figure.y):
        _accuracy_axis(ax, panel)
    ax.set_xlabel(plain_text(words(figure.x)))
    # A long name would run out of the panel, which is 2.4 inches high.
    ax.set_ylabel("\n".join(plain_text(part) for part in wrap(words(figure.y), 32)))
    _x_ticks(ax, panel, ticks, log_x)
    _y_ticks(ax, log_y)
    strips = mark_failures(ax, panel, look, ticks)
    if panel.title:
        ax.set_title(plain_text(panel.title), pad=5 + 14 * strips)
    if has_exponents(panel):
        below = ScaledTranslation(0, -36 / 72, ax.figure.dpi_scale_trans)
        ax.legend(
            handles=[handle(line, look[line.name]) for line in panel.lines],
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=ax.transAxes + below,
        )


def _step(panel: Panel, figure: Figure, ticks: list[str] | None, log_x: bool) -> float:
    """Return the distance between neighbouring lines' points: in doublings on a log axis."""
    if ticks:
        return min(0.12, 0.6 / len(panel.lines))
    xs = [float(x) for line in panel.lines for x in line.x]
    if (figure.x not in BASE and "." not in figure.x) or not xs or figure.y in COSTS:
        return 0.0
    span = math.log2(max(xs) / min(xs)) if log_x else max(xs) - min(xs)
    return span * min(0.012, 0.06 / len(panel.lines))


def _draw_line(
    ax: Axes, line: Line, look: Style, ticks: list[str] | None, offset: float, wider: int
) -> None:
    effects = [patheffects.withStroke(linewidth=2.6, foreground="#555555")]
    outline: dict[str, Any] = {"path_effects": effects} if is_light(look.colour) else {}
    if line.runs:
        # One artist a series, with a gap after each seed, so that many runs stay quick to draw.
        steps = [v for xs, _ in line.runs for v in (*xs, math.nan)]
        values = [v for _, ys in line.runs for v in (*ys, math.nan)]
        ax.plot(
            steps, values, color=look.colour, linestyle=look.line, lw=1.2, alpha=0.85, **outline
        )
    if not line.y:
        return
    x = np.asarray([ticks.index(str(v)) for v in line.x] if ticks else line.x, dtype=float)
    x = x * 2**offset if ax.get_xscale() == "log" else x + offset
    y = np.asarray(line.y)
    bounds = np.abs(np.nan_to_num(np.vstack([y - line.low, np.asarray(line.high) - y])))
    drawn = ax.errorbar(
        x,
        y,
        yerr=bounds,
        color=look.colour,
        linestyle="none" if ticks else look.line,
        marker=look.marker,
        linewidth=1.5 + 0.4 * wider,
        markersize=(7 if ticks else 5) + 0.7 * wider,
        markeredgecolor="white" if not is_light(look.colour) else "#555555",
        elinewidth=1.0,
        **outline,
    )
    for bars in drawn.lines[2]:
        bars.set_alpha(0.55)
    if np.isfinite(line.dashed).any():
        # Over the line, and darker: where a variant reaches its ceiling the two coincide.
        ax.plot(x, line.dashed, color=darker(look.colour), ls=(0, (3, 2)), lw=1.1, zorder=3)


def handle(line: Line, look: Style, joined: bool = True) -> Line2D:
    """Return the line's entry for a legend, with its exponent where one was fitted."""
    label = plain_text(line.label) + (f"   ${_exponent(line)}$" if line.exponent else "")
    light = is_light(look.colour)
    return Line2D(
        [],
        [],
        color=look.colour,
        linestyle=look.line if joined else "none",
        marker=None if line.runs else look.marker,
        markeredgecolor="#555555" if light else "white",
        label=label,
    )


def _exponent(line: Line) -> str:
    assert line.exponent is not None
    half = (line.exponent.high - line.exponent.low) / 2
    if math.isnan(half):
        return rf"\propto L^{{{line.exponent.value:.2f}}}"
    return rf"\propto L^{{{line.exponent.value:.2f} \pm {half:.2f}}}"


def _accuracy_axis(ax: Axes, panel: Panel) -> None:
    tops = [v for line in panel.lines for v in (*line.y, *(y for run in line.runs for y in run[1]))]
    if tops and max(tops) > 0.6:
        ax.set_ylim(-0.02, 1.03)
    chances = {round(line.chance, 9) for line in panel.lines if math.isfinite(line.chance)}
    for chance in sorted(chances)[:1]:
        ax.axhline(chance, color="#888888", lw=0.9, ls=(0, (1, 2)), zorder=1)
        ax.annotate(
            "chance",
            (1, chance),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 2),
            textcoords="offset points",
            ha="right",
            fontsize=7,
            color="#777777",
        )


def _x_ticks(ax: Axes, panel: Panel, ticks: list[str] | None, log_x: bool) -> None:
    if ticks:
        ax.set_xticks(range(len(ticks)), [plain_text(tick) for tick in ticks])
        ax.set_xlim(-0.5, len(ticks) - 0.5)
        ax.grid(visible=False, axis="x")
        if len(ticks) > 6:
            ax.tick_params(axis="x", rotation=40)
        return
    xs = sorted({x for line in panel.lines for x in line.x} | _failed_at(panel))
    whole = all(float(x).is_integer() for x in xs)
    # On a linear axis the labels of lengths that double would run into one another.
    apart = log_x or all((b - a) * 10 >= xs[-1] - xs[0] for a, b in pairwise(xs))
    if 0 < len(xs) <= 8 and whole and apart:
        ax.xaxis.set_major_locator(ticker.FixedLocator([float(x) for x in xs]))
        ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.xaxis.set_minor_locator(ticker.NullLocator())
    elif log_x:
        ax.xaxis.set_minor_formatter(ticker.NullFormatter())
        ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))


def _y_ticks(ax: Axes, log_y: bool) -> None:
    if not log_y:
        ax.yaxis.set_major_locator(ticker.MaxNLocator(6))
        return
    low, high = ax.get_ylim()
    decades = math.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    ax.yaxis.set_major_locator(ticker.LogLocator(base=10, subs=subs))
    if decades < 5:
        ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
    else:
        ax.yaxis.set_major_formatter(ticker.LogFormatterMathtext())
    ax.yaxis.set_minor_formatter(ticker.NullFormatter())


def _failed_at(panel: Panel) -> set[Any]:
    return {x for line in panel.lines for x, _ in line.failed}


def mark_failures(
    ax: Axes, panel: Panel, look: dict[tuple[str, ...], Style], ticks: list[str] | None
) -> int:
    """Mark failed cells in a strip a status above the panel; return the number of strips."""
    statuses = sorted({status for line in panel.lines for _, status in line.failed})
    place = ax.get_xaxis_transform()
    for number, status in enumerate(statuses):
        middle = 1 + _STRIP * (number + 0.5)
        ax.add_patch(
            Rectangle(
                (0, 1 + _STRIP * number),
                1,
                _STRIP * 0.92,
                transform=ax.transAxes,
                clip_on=False,
                facecolor="#f4f0f0",
                edgecolor="none",
            )
        )
        ax.text(
            -0.015,
            middle,
            status,
            transform=ax.transAxes,
            ha="right",
            va="center",
            fontsize=7.5,
            color="#7a2020",
        )
        at: dict[Any, int] = {}
        for line in panel.lines:
            for x, why in line.failed:
                if why != status:
                    continue
                beside = at.get(x, 0)
                at[x] = beside + 1
                where = ticks.index(str(x)) if ticks else float(x)
                ax.annotate(
                    "×",
                    (where, middle),
                    xycoords=place,
                    xytext=(7 * beside, 0),
                    textcoords="offset points",
                    ha="center",
                    va="center",
                    fontsize=12,
                    fontweight="bold",
                    color=look[line.name].colour,
                    annotation_clip=False,
                )
    return len(statuses)


def has_exponents(panel: Panel) -> bool:
    """Say whether a legend must give exponents, which differ between panels."""
    return any(line.exponent for line in panel.lines)


def plain_text(text: str) -> str:
    """Return text that matplotlib draws as it is: no mathematics, no line longer than 48."""
    short = " ".join(str(text).split(" ")) if len(text) <= 48 else f"{text[:46]}…"
    return short.replace("\\", "\\\\").replace("$", r"\$")
