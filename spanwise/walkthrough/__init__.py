"""``action=walkthrough``: self-attention on a small sentence, every number shown.

    python runner.py action=walkthrough
    python runner.py action=walkthrough walkthrough.tokens='[the,cat,sat]' walkthrough.seed=3

writes results/walkthrough/: walkthrough.md (words and matrices, also printed), walkthrough.csv
(every number, exact and as shown), walkthrough.json (exact) and plots/ (the four steps, and the
weights as heat maps).
"""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spanwise.config import study_folder
from spanwise.errors import ConfigError, nearest
from spanwise.fonts import writing
from spanwise.walkthrough.figures import draw as draw_figures
from spanwise.walkthrough.numbers import draw as draw_numbers
from spanwise.walkthrough.paper import show, work_on
from spanwise.walkthrough.steps import Section, sections
from spanwise.walkthrough.text import page

KEYS = ("tokens", "d_model", "n_heads", "causal", "seed", "layer")
MOST_TOKENS = 16
MOST_WIDTH = 16


def walk(
    folder: Path,
    *,
    tokens: list[str],
    d_model: int,
    n_heads: int,
    causal: bool,
    seed: int,
    layer: Callable[..., Any],
    plots: bool = True,
) -> str:
    """Write the walk-through into ``folder`` and return its text.

    layer: class of the attention layer that computes it. plots: whether to draw as well. Raises
    ConfigError for bad settings, OSError where the folder cannot be written.
    """
    tokens = [str(token) for token in tokens]
    numbers = draw_numbers(tokens, d_model, n_heads, causal, seed)
    parts = sections(numbers, tokens, n_heads, causal, layer)
    drawn = writing(tokens)
    on_paper = work_on(parts)
    text = page(parts, tokens, on_paper, drawn.note)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "walkthrough.md").write_text(text, encoding="utf-8")
    (folder / "walkthrough.csv").write_text(table(parts), encoding="utf-8")
    exact = {
        "tokens": tokens,
        "d_model": d_model,
        "n_heads": n_heads,
        "causal": causal,
        "seed": seed,
        "missed_on_paper": on_paper.misses,
        "sections": [
            {
                "key": part.key,
                "n_heads": part.n_heads,
                "head_dim": part.head_dim,
                "matrices": [vars(matrix) for matrix in part.shown],
            }
            for part in parts
        ],
    }
    (folder / "walkthrough.json").write_text(
        json.dumps(exact, ensure_ascii=False, indent=1), encoding="utf-8"
    )
    if plots:
        draw_figures(parts, drawn, folder / "plots")
    return text


def table(parts: list[Section]) -> str:
    """Return every number as CSV: where it stands, exact, and as shown."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["section", "step", "matrix", "row", "column", "exact", "shown"])
    for part in parts:
        for matrix in part.shown:
            for name, values in zip(matrix.rows, matrix.values, strict=True):
                for column, value in zip(matrix.columns, values, strict=True):
                    exact = "" if value is None else repr(float(value))
                    place = [part.key, matrix.step, matrix.name, name, column]
                    rows.writerow([*place, exact, show(value)])
    return text.getvalue()


def check(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the walk-through, or raise ConfigError for the first bad one."""
    for key in settings:
        if key not in KEYS:
            hint = nearest(str(key), KEYS)
            raise ConfigError(f"walkthrough.{key}: no such key; allowed: {', '.join(KEYS)}.{hint}")
    tokens = settings["tokens"]
    if not isinstance(tokens, list) or not 1 <= len(tokens) <= MOST_TOKENS:
        raise ConfigError(
            f"walkthrough.tokens: found {tokens!r}; allowed: a list of 1 to {MOST_TOKENS} tokens"
        )
    if any(isinstance(t, (list, dict)) or not str(t).strip() for t in tokens):
        raise ConfigError(f"walkthrough.tokens: found {tokens!r}; allowed: words, none empty")
    for key, most in (("d_model", MOST_WIDTH), ("n_heads", MOST_WIDTH)):
        value = settings[key]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ConfigError(
                f"walkthrough.{key}: found {value!r}; allowed: a whole number from 1 to {most}"
            )
    if settings["d_model"] % settings["n_heads"]:
        raise ConfigError(
            f"walkthrough.n_heads: found {settings['n_heads']}; allowed: a divisor of "
            f"walkthrough.d_model, {settings['d_model']}"
        )
    if not isinstance(settings["causal"], bool):
        raise ConfigError(
            f"walkthrough.causal: found {settings['causal']!r}; allowed: true or false"
        )
    if not isinstance(settings["seed"], int) or isinstance(settings["seed"], bool):
        raise ConfigError(f"walkthrough.seed: found {settings['seed']!r}; allowed: a whole number")
    return dict(settings)


def _class_of(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    # Importing runs the module, which may raise anything.
    except Exception as error:
        why = " ".join(str(error).split())
        raise ConfigError(
            f"walkthrough.layer: no class {path!r} ({why}); allowed: an attention variant's "
            "dotted path, as variants.full_map.FullMap"
        ) from error


def run(config: Mapping[str, Any], choices: Mapping[str, Any]) -> int:
    """Do ``action=walkthrough``: print it, write results/walkthrough/, return the exit code."""
    settings = check(config["walkthrough"])
    settings["layer"] = _class_of(str(settings["layer"]))
    folder = study_folder({**config, "study": "walkthrough"})
    try:
        print(walk(folder, **settings))
    except OSError as error:
        raise ConfigError(f"results: cannot write {folder} ({error.strerror})") from error
    print(f"Written: {folder}")
    return 0
