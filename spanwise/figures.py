"""Which figures a study's page shows: by default the usual ones, or those its config declares.

An experiment declares figures as data, in ``report.figures``: a list of mappings with ``y`` and
optionally ``x``, ``by``, ``facet``, ``where``, ``log``, ``dashed`` and ``title``. A column is one
of cells.csv or, written ``name.column``, of a table in the records' details (``curve.loss``), or a
variant's own parameter (``variant.window``; not for y).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spanwise.errors import ConfigError, nearest

AXES = ("auto", "none", "x", "y", "both")


@dataclass(frozen=True)
class Figure:
    """One declared figure.

    y, x: columns; x is ``length`` by default. by: the columns that make a line (by default the
    variant, its parameters and whatever else was swept). facet: the columns that make a panel.
    where: only cells with these values (a list: any of them). log: which axes are logarithmic.
    dashed: a second column, drawn dashed beside y. title: a line above.
    """

    y: str
    x: str = "length"
    by: tuple[str, ...] | None = None
    facet: tuple[str, ...] | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    log: str = "auto"
    dashed: str | None = None
    title: str | None = None

    @property
    def name(self) -> str:
        """The file's stem: what is drawn against what."""
        group = self.y.rpartition(".")[0]
        parts = [self.y, "by", self.x.removeprefix(f"{group}.") if group else self.x]
        if self.by is not None:
            parts += ["and", *self.by]
        parts += [f"{key}-{value}" for key, value in self.where.items()]
        return re.sub(r"[^A-Za-z0-9-]+", "_", "_".join(parts)).strip("_")[:100]


DEFAULT = (
    Figure("accuracy", dashed="ceiling"),
    Figure("bits_per_byte"),
    Figure("forward_ms"),
    Figure("train_ms"),
    Figure("forward_peak_bytes"),
    Figure("train_peak_bytes"),
    Figure("decode_ms"),
    Figure("cache_bytes"),
    Figure("accuracy", x="forward_ms"),
    Figure("accuracy", x="keys_per_query"),
    Figure("by_distance.accuracy", x="by_distance.low"),
    Figure("curve.loss", x="curve.step"),
    Figure("curve.validation_accuracy", x="curve.step"),
)
_KEYS = ("y", "x", "by", "facet", "where", "log", "dashed", "title")


def declared(question: Mapping[str, Any]) -> tuple[Figure, ...]:
    """Return the figures of a report block, or the default ones where it declares none.

    Raises ``ConfigError`` in one line for a key or value that no figure has.
    """
    wanted = question.get("figures")
    if wanted is None:
        return DEFAULT
    if not isinstance(wanted, Sequence) or isinstance(wanted, str):
        raise ConfigError(f"report.figures: a list is needed, found {wanted!r}")
    return tuple(_figure(f"report.figures.{i}", entry) for i, entry in enumerate(wanted))


def _figure(place: str, entry: Any) -> Figure:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{place}: a mapping with at least y is needed, found {entry!r}")
    for key in entry:
        if key not in _KEYS:
            allowed = ", ".join(_KEYS)
            raise ConfigError(f"{place}.{key}: allowed are {allowed}.{nearest(str(key), _KEYS)}")
    if "y" not in entry:
        raise ConfigError(f"{place}.y: a column is needed")
    values: dict[str, Any] = {k: v for k, v in entry.items() if v is not None}
    for key in ("y", "x", "dashed", "title", "log"):
        if key in values and not isinstance(values[key], str):
            raise ConfigError(f"{place}.{key}: text is needed, found {values[key]!r}")
    if values.get("log", "auto") not in AXES:
        raise ConfigError(f"{place}.log: one of {', '.join(AXES)}, found {values['log']!r}")
    for key in ("by", "facet"):
        if key in values:
            columns = [values[key]] if isinstance(values[key], str) else values[key]
            if not isinstance(columns, list | tuple) or not all(
                isinstance(c, str) for c in columns
            ):
                raise ConfigError(f"{place}.{key}: columns are needed, found {values[key]!r}")
            values[key] = tuple(columns)
    if not isinstance(values.get("where", {}), Mapping):
        raise ConfigError(f"{place}.where: a mapping of columns to values is needed")
    return Figure(**values)


_WORDS = {
    "accuracy": "accuracy",
    "bits_per_byte": "bits per byte",
    "loss": "loss (nats)",
    "length": "sequence length (tokens)",
    "forward_ms": "forward time (ms)",
    "train_ms": "forward + backward time (ms)",
    "forward_peak_bytes": "peak memory, forward (MiB)",
    "train_peak_bytes": "peak memory, forward + backward (MiB)",
    "decode_ms": "time of a generated token (ms)",
    "cache_bytes": "cache for generation (MiB)",
    "train_seconds": "training time (s)",
    "x_floor_forward": "forward time over the arithmetic floor",
    "x_floor_train": "forward + backward time over the arithmetic floor",
    "keys_per_query": "keys seen per query",
    "n_params": "parameters",
    "curve.loss": "training loss (nats)",
    "curve.validation_accuracy": "validation accuracy",
    "curve.step": "training step",
    "d_model": "width of the model, d_model",
    "d_k": "width of a head, d_k",
    "n_heads": "heads",
    "positions": "position encoding",
    "by_distance.accuracy": "accuracy",
    "by_distance.low": "distance to the answer (tokens)",
}
_UNITS = {"ms": "ms", "seconds": "s", "bytes": "MiB", "nats": "nats", "bits": "bits"}


def words(column: str) -> str:
    """Return an axis label for a column: its meaning with its unit."""
    if column in _WORDS:
        return _WORDS[column]
    leaf = column.rsplit(".", 1)[-1]
    if leaf in _WORDS:
        return _WORDS[leaf]
    stem, _, unit = leaf.rpartition("_")
    if unit in _UNITS and stem:
        return f"{stem.replace('_', ' ')} ({_UNITS[unit]})"
    return leaf.replace("_", " ")


def scale(column: str) -> float:
    """Return what a column's values are multiplied with for its axis."""
    return 2.0**-20 if column.endswith("_bytes") else 1.0


def is_share(column: str) -> bool:
    """Say whether a column's values, and so its intervals, lie in [0, 1]."""
    # accuracy_at_256; attention_subject, a share of a row of weights
    name = re.sub(r"_at_\d+$", "", column)
    return name.endswith(("accuracy", "ceiling", "share", "chance")) or (
        name.startswith("attention_")
    )


def is_power_law(column: str) -> bool:
    """Say whether a column is drawn on a logarithmic axis by default."""
    return column.endswith(("_ms", "_bytes", "_seconds")) or column.startswith("flops")
