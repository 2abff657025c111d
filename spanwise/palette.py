"""Colours, lines and markers: the same for a variant in every figure of a study.

The colour is the variant's own display fact. Where two variants declare the same one, or none,
the free colours of Okabe and Ito's palette (jfly.uni-koeln.de/color), which the colour-blind can
tell apart, are given out in order of name; markers and lines differ too, for print.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.colors import to_hex, to_rgb

OKABE_ITO = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#000000",
    "#F0E442",
)
LINES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")


@dataclass(frozen=True)
class Style:
    """How one series is drawn."""

    colour: str
    line: Any
    marker: str


def hues(declared: Mapping[str, str | None]) -> dict[str, str]:
    """Return a colour for each name: its declared one, unless an earlier name has it already."""
    given: dict[str, str] = {}
    for name in sorted(declared):
        colour = declared[name] or ""
        if re.fullmatch(r"#[0-9A-Fa-f]{6}", colour) and colour.upper() not in given.values():
            given[name] = colour.upper()
    free = [colour for colour in OKABE_ITO if colour not in given.values()]
    for number, name in enumerate(sorted(set(declared) - set(given))):
        given[name] = free[number] if number < len(free) else OKABE_ITO[number % len(OKABE_ITO)]
    return given


def styles(
    series: Sequence[tuple[str, ...]], declared: Mapping[str, str | None]
) -> dict[tuple[str, ...], Style]:
    """Return a style for each series, a tuple whose first entry names its variant.

    Several series of one variant keep its hue in shades, with lines and markers of their own.
    """
    colours = hues(declared)
    styled: dict[tuple[str, ...], Style] = {}
    ordered = sorted(set(series), key=natural)
    for variant in sorted({name[0] for name in ordered}):
        own = [name for name in ordered if name[0] == variant]
        place = sorted(colours).index(variant)
        for number, name in enumerate(own):
            styled[name] = Style(
                shade(colours[variant], number, len(own)),
                LINES[number % len(LINES)],
                MARKERS[(place + number * 5) % len(MARKERS)],
            )
    return styled


def distinct(series: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], Style]:
    """Return a style of its own hue for each series: where all are of one variant."""
    ordered = sorted(set(series), key=natural)
    return {
        name: Style(
            OKABE_ITO[i % len(OKABE_ITO)], LINES[i // len(OKABE_ITO) % 5], MARKERS[i % len(MARKERS)]
        )
        for i, name in enumerate(ordered)
    }


def shade(colour: str, number: int, of: int) -> str:
    """Return shade ``number`` out of ``of`` of a colour, from darker to lighter."""
    if of < 2:
        return colour
    rgb = to_rgb(colour)
    darkest = 0.0 if max(rgb) < 0.2 else -0.35
    amount = darkest + (0.5 - darkest) * number / (of - 1)
    goal = 1.0 if amount > 0 else 0.0
    red, green, blue = (c + (goal - c) * abs(amount) for c in rgb)
    return to_hex((red, green, blue)).upper()


def darker(colour: str) -> str:
    """Return the colour mixed with as much black."""
    red, green, blue = (c * 0.5 for c in to_rgb(colour))
    return to_hex((red, green, blue)).upper()


def natural(name: Iterable[object]) -> list[tuple[int, float, str]]:
    """Return a sort key under which ``window=8`` comes before ``window=16``."""
    parts: list[tuple[int, float, str]] = []
    for entry in name:
        for piece in re.split(r"(\d+(?:\.\d+)?)", str(entry)):
            number = re.fullmatch(r"\d+(?:\.\d+)?", piece)
            parts.append((0, float(piece), "") if number else (1, 0.0, piece))
        parts.append((-1, 0.0, ""))
    return parts


def is_light(colour: str) -> bool:
    """Say whether a line of this colour needs an outline on white paper."""
    red, green, blue = to_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.75
