"""Cells to statements over seeds: one row a setting, the learning rate chosen by validation."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from spanwise.statistics import mean_interval
from spanwise.tables import Study

RATE = "train.lr"
BASE = ["task", "variant", "variant_params", "length"]
DESCRIBING = [
    "n_heads",
    "d_model",
    "n_params",
    "keys_per_query",
    "flops_forward",
    "steps",
    "tokens",
    "batch",
]
"""Columns that describe a setting rather than measure it: their mean, without an interval."""

_NOT_MEASURED = frozenset([*DESCRIBING, "seed", "length", "threads"])
_UP = ("accuracy",)
_DOWN = ("loss", "bits_per_byte", "_ms", "_bytes", "_seconds", "x_floor_forward", "x_floor_train")


def better(column: str) -> int:
    """Return 1 where more of ``column`` is better, -1 where less is, 0 where neither is known."""
    if column.endswith(_UP):
        return 1
    return -1 if column.endswith(_DOWN) else 0


def measured(cells: pd.DataFrame, swept: list[str]) -> list[str]:
    """Return the columns that measure something: numbers that are no setting and no bound."""
    names = []
    for column in cells.columns:
        numeric = pd.api.types.is_numeric_dtype(cells[column])
        if not numeric or cells[column].dtype == "boolean" or cells[column].isna().all():
            continue
        base = column.removesuffix("_low").removesuffix("_high")
        bound = base != column and base in cells.columns
        if not bound and column not in _NOT_MEASURED and column not in swept:
            names.append(column)
    return names


def settings(study: Study) -> list[str]:
    """Return the columns that tell settings apart: all that was swept, but for the seed.

    The learning rate is not among them where a grid of it was tried and validated: it is chosen
    within each setting.
    """
    keys = BASE + [key for key in study.swept if key not in BASE]
    return [key for key in keys if key != RATE] if has_rate_grid(study) else keys


def has_rate_grid(study: Study) -> bool:
    """Say whether one setting was trained at several learning rates, with validation."""
    cells = study.cells
    if RATE not in study.swept or "validation_accuracy" not in cells:
        return False
    if cells["validation_accuracy"].isna().all():
        return False
    keys = BASE + [key for key in study.swept if key != RATE]
    trained = cells[cells[RATE].notna()]
    return bool((trained.groupby(keys, dropna=False)[RATE].nunique() > 1).any())


def choose_rates(study: Study) -> pd.DataFrame:
    """Return the cells whose learning rate won its setting's grid, with what was tried.

    The rate of a setting is the one with the most seeds that finished and, among those, the
    highest mean ``validation_accuracy``; the smallest on a tie. Test figures play no part.
    Cells that never trained are kept. Columns added: ``lr_grid`` (the rates tried), and
    ``lr_grid_size``.
    """
    cells = study.cells.copy()
    cells["lr_grid"] = pd.Series(None, index=cells.index, dtype=object)
    cells["lr_grid_size"] = pd.Series(np.nan, index=cells.index, dtype=float)
    if not has_rate_grid(study):
        return cells
    keep = pd.Series(True, index=cells.index)
    for _, group in cells[cells[RATE].notna()].groupby(settings(study), dropna=False, sort=False):
        finished = group[group["validation_accuracy"].notna()]
        scores = [
            (-len(rows), -float(rows["validation_accuracy"].mean()), rate)
            for rate, rows in finished.groupby(RATE)
        ]
        rates = sorted(group[RATE].unique())
        chosen = min(scores)[2] if scores else rates[0]
        keep.loc[group.index] = group[RATE] == chosen
        cells.loc[group.index, "lr_grid"] = ", ".join(f"{rate:g}" for rate in rates)
        cells.loc[group.index, "lr_grid_size"] = float(len(rates))
    return cells[keep]


def summarise(study: Study) -> pd.DataFrame:
    """Return one row a setting: for each measured column X its mean over seeds and X_low, X_high.

    The interval is Student's 95% t over seeds. With a single seed it is the cell's own, where the
    record has one (of the median of a timing, of the finite test set of an accuracy); an
    accuracy's is cut to [0, 1]. X_n is the
    number of seeds, X_best the best of them where better has a direction. n counts the cells that
    ended ok; ``failed`` says what became of the others (what those measured before is kept: a
    cell that trained and then ran out of memory while its cost was measured has an accuracy).
    """
    cells = choose_rates(study)
    keys = settings(study)
    columns = measured(cells, study.swept)
    rows = []
    for values, group in cells.groupby(keys, dropna=False, sort=False):
        row = dict(zip(keys, values, strict=True))
        row["variant_label"] = group["variant_label"].iloc[0]
        row["n"] = int((group["status"] == "ok").sum())
        lost = group.loc[group["status"] != "ok", "status"].value_counts().sort_index()
        row["failed"] = ", ".join(f"{status} x{n}" for status, n in lost.items())
        if has_rates(cells):
            trained = group[RATE].dropna()
            row[RATE] = trained.iloc[0] if len(trained) else np.nan
            row["lr_grid"], row["lr_grid_size"] = group[["lr_grid", "lr_grid_size"]].iloc[0]
        for column in DESCRIBING:
            if column in group:
                row[column] = group[column].astype(float).mean()
        for column in columns:
            row |= statement(column, group)
        rows.append(row)
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=[*keys, "variant_label", "failed"])


def has_rates(cells: pd.DataFrame) -> bool:
    """Say whether rates were chosen from a grid in these cells (of ``choose_rates``)."""
    return bool(cells["lr_grid"].notna().any())


def statement(column: str, cells: pd.DataFrame) -> dict[str, float]:
    """Return ``column``'s mean over the cells, its interval, count and best: see summarise."""
    own = cells[column].astype(float)
    values = own[np.isfinite(own)]
    names = [column, f"{column}_low", f"{column}_high", f"{column}_n"]
    direction = better(column)
    if not len(values):
        return dict.fromkeys(names, math.nan) | {f"{column}_n": 0}
    mean = mean_interval(values.tolist())
    low, high = mean.low, mean.high
    if mean.n == 1 and {f"{column}_low", f"{column}_high"} <= set(cells.columns):
        own_bounds = cells.loc[values.index[0], [f"{column}_low", f"{column}_high"]]
        low, high = (float(bound) for bound in own_bounds)
    row = dict(zip(names, (mean.value, low, high, mean.n), strict=True))
    if column.endswith("accuracy"):
        # A share cannot leave [0, 1]; Student's interval of one can.
        row[names[1]], row[names[2]] = max(low, 0.0), min(high, 1.0)
    if direction:
        row[f"{column}_best"] = float(values.max() if direction > 0 else values.min())
    return row
