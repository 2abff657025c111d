"""``action=maps``: what each head of a trained model looks at, drawn from the records.

    python runner.py action=maps study=alignment
        every cell of the study whose record holds maps (``probes=maps``)
    python runner.py action=maps task=sentences length=16 probes=maps probes.maps.sequence=7
        that one cell, trained first where it has no record yet

writes results/<study>/maps/, a figure a cell with a panel a layer and head: row = the position
that looks, column = the one looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from spanwise import records
from spanwise.config import study_folder
from spanwise.errors import ConfigError
from spanwise.fonts import Writing, writing
from spanwise.reading import mapping, variant_params

STYLE = Path(__file__).parent / "spanwise.mplstyle"
COLOURS = LinearSegmentedColormap.from_list("share", ["#ffffff", "#56B4E9", "#0072B2", "#001a33"])
MOST_LABELS = 32
"""Longer inputs get numbers on their axes, not their tokens."""


def run(config: dict[str, Any], choices: dict[str, Any]) -> int:
    """Draw the maps that the command asks for; return the exit code."""
    folder = study_folder(config)
    chosen = "maps" in config["probes"]
    found = [] if chosen else kept(folder)
    if not chosen and not found:
        # Training a cell because a study's name was misspelt would help nobody.
        raise ConfigError(
            f"study: no record of {config['study']!r} holds maps; allowed: a study that was run "
            "with probes=maps, or the keys of one cell to train, probes=maps among them"
        )
    if not found:
        from spanwise import study

        if config["measure"] not in ("accuracy", "probe", "both"):
            raise ConfigError(
                f"measure: found {config['measure']!r}; allowed with action=maps: accuracy, "
                "or probe for the model before training"
            )
        one = study.Cell(config, choices)
        code = study.run_one(config, choices)
        if code:
            return code
        found = [records.read(records.path_of(folder, one.key))]
    for record in found:
        print(f"Drawn: {draw(record, folder / 'maps')}")
    return 0


def kept(folder: Path) -> list[dict[str, Any]]:
    """Return the study's records that hold maps, in the order of their files' names."""
    found = []
    for file in sorted((folder / "records").glob("*.json")):
        try:
            record = records.read(file)
        except records.BadRecord:
            continue
        if _layers(record):
            found.append(record)
    return found


def draw(record: Mapping[str, Any], folder: Path) -> Path:
    """Draw a record's maps, as PNG and SVG; return the PNG's path."""
    kept_maps = mapping(mapping(record.get("detail")).get("maps"))
    tokens = [str(token) for token in kept_maps["tokens"]]
    figure = picture(_layers(record), tokens, title_of(record))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_stem(record)}.png"
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    figure.savefig(path, metadata={"Software": None})
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
    return path


def title_of(record: Mapping[str, Any]) -> str:
    """Return what was trained on what, in a line."""
    row, config = mapping(record.get("row")), mapping(record.get("config"))
    shown = mapping(mapping(record.get("display")).get("variant"))
    name = shown.get("describe") or mapping(record.get("choices")).get("variant")
    task = mapping(record.get("choices")).get("task")
    accuracy = row.get("accuracy")
    trained = f"accuracy {accuracy:.2f}" if isinstance(accuracy, float) else "before training"
    return f"{name} on {task}, seed {config.get('seed')}: {trained}"


def picture(layers: list[np.ndarray], tokens: list[str], title: str) -> Figure:
    """Return the figure: a row a layer, a column a head."""
    heads = max(len(layer) for layer in layers)
    size = min(3.4, max(1.5, 0.21 * len(tokens) + 0.6)) if heads > 4 else 0.21 * len(tokens) + 0.9
    size = min(max(size, 1.9), 4.2)
    with mpl.rc_context(fname=STYLE):
        figure = Figure(
            figsize=(max(size * heads + 0.6, 3.6), size * len(layers) + 0.5), layout="constrained"
        )
        grid = figure.subplots(len(layers), heads, squeeze=False)
        drawn = writing(tokens)
        for number, layer in enumerate(layers):
            for head in range(heads):
                ax = grid[number, head]
                if head >= len(layer):
                    ax.set_visible(False)
                    continue
                image = ax.imshow(layer[head], cmap=COLOURS, vmin=0, vmax=1)
                ax.set_title(f"layer {number + 1}, head {head + 1}", fontsize=8)
                _label(ax, tokens, drawn, names=size >= 0.13 * len(tokens) + 0.5)
        figure.colorbar(image, ax=grid, shrink=0.7, label="weight")
        figure.suptitle(title, fontsize=9.5)
    return figure


def _label(ax: Axes, tokens: list[str], drawn: Writing, names: bool) -> None:
    ax.grid(visible=False)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color("#bbbbbb")
    if len(tokens) > MOST_LABELS or not names:
        return
    labels = [drawn.labels[token] for token in tokens]
    look: dict[str, Any] = {"family": list(drawn.families), "fontsize": 7}
    turn = 90 if max(map(len, labels)) > 1 else 0
    ax.set_xticks(range(len(tokens)), labels, rotation=turn, **look)
    ax.set_yticks(range(len(tokens)), labels, **look)


def _layers(record: Mapping[str, Any]) -> list[np.ndarray]:
    """Return a record's maps, heads x L x L a layer; nothing where it holds none that are whole."""
    kept_maps = mapping(mapping(record.get("detail")).get("maps"))
    tokens, layers = kept_maps.get("tokens"), kept_maps.get("layers")
    if not isinstance(tokens, list) or not isinstance(layers, list):
        return []
    try:
        found = [np.asarray(layer, dtype=float) / 1000 for layer in layers]
    except (TypeError, ValueError):
        return []
    whole = all(m.ndim == 3 and m.shape[1:] == (len(tokens),) * 2 and m.size for m in found)
    return found if whole else []


def _stem(record: Mapping[str, Any]) -> str:
    config, choices = mapping(record.get("config")), mapping(record.get("choices"))
    params = variant_params(mapping(config.get("variant")))
    heads = mapping(config.get("model")).get("n_heads")
    parts = [choices.get("variant"), params, choices.get("task"), f"heads-{heads}"]
    parts += [f"seed-{config.get('seed')}", str(record.get("key"))[:8]]
    return re.sub(r"[^\w-]+", "-", "_".join(str(part) for part in parts if part))
