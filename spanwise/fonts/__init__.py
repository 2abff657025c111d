"""Fonts that can draw a token, so that no figure ever shows an empty box for a character.

A free subset with the 3,755 most common Chinese characters ships here (OFL.txt). A character that
neither matplotlib's own font nor the subset has is looked for in the system's fonts; where none
has it, the text is written as code points and the caller is told.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from matplotlib import font_manager, ft2font

BUNDLED = Path(__file__).parent / "SpanwiseSansSC-Regular.otf"
DEFAULT = "DejaVu Sans"


@dataclass(frozen=True)
class Writing:
    """How to draw some texts: families to try in order, what to write, and what to tell."""

    families: tuple[str, ...]
    labels: dict[str, str]
    note: str


def writing(texts: list[str]) -> Writing:
    """Return font families that draw every one of ``texts``, and the label to draw for each.

    A text with a character that no font at hand has becomes its code points, as in
    ``U+2A6D6``; ``note`` then says so in one line (it is empty where nothing was replaced).
    """
    families = [_family(Path(font_manager.findfont(DEFAULT))), _family(BUNDLED)]
    have = _characters(Path(font_manager.findfont(DEFAULT))) | _characters(BUNDLED)
    lacking = {ord(character) for text in texts for character in text} - have
    if lacking:
        for path in map(Path, sorted(font_manager.findSystemFonts())):
            found = lacking & _characters(path)
            if found:
                families.append(_family(path))
                lacking -= found
            if not lacking:
                break
    labels = {
        text: " ".join(f"U+{ord(c):04X}" for c in text)
        if lacking & {ord(c) for c in text}
        else text
        for text in texts
    }
    replaced = [f"{label} for {text!r}" for text, label in labels.items() if label != text]
    note = (
        f"no font here has these characters, so figures show code points: {', '.join(replaced)}"
        if replaced
        else ""
    )
    return Writing(tuple(dict.fromkeys(families)), labels, note)


@functools.cache
def _family(path: Path) -> str:
    """Return the family of a font file, made known to matplotlib."""
    font_manager.fontManager.addfont(path)
    return font_manager.FontProperties(fname=path).get_name()


@functools.cache
def _characters(path: Path) -> frozenset[int]:
    """Return the code points a font file has; none for a file that cannot be read."""
    try:
        return frozenset(ft2font.FT2Font(path).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()
