"""Cells to statements over seeds: one row a setting, the learning rate chosen by validation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pandas as pd

from spanwise.figures import is_share
from spanwise.statistics import Floats, mean_interval
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
    record has one (of the median of a timing, of the finite test set of an accuracy). A share's
    is cut to [0, 1], a time's or a size's at 0. X_n is the number of seeds, X_best the best of them
    where better has a direction. n counts the cells that ended ok; ``failed`` says what became of
    the others (what those measured before is kept: a cell that trained and then ran out of memory
    while its cost was measured has an accuracy).
    """
    cells = choose_rates(study).reset_index(drop=True)
    keys = settings(study)
    if cells.empty:
        return pd.DataFrame(columns=[*keys, "variant_label", "measure", "failed"])
    columns = measured(cells, study.swept)
    numbers = {c: _floats(cells, c) for c in [*columns, *DESCRIBING, *_bounds(columns, cells)]}
    rates = has_rates(cells)
    rows = []
    for values, group in cells[keys].groupby(keys, dropna=False, sort=False):
        places = group.index.to_numpy()
        first = cells.iloc[places[0]]
        row = dict(zip(keys, values, strict=True))
        row["variant_label"] = first["variant_label"]
        row["measure"] = "+".join(sorted({str(m) for m in cells["measure"].to_numpy()[places]}))
        endings = Counter(cells["status"].to_numpy()[places])
        row["n"] = endings.pop("ok", 0)
        row["failed"] = ", ".join(f"{status} x{n}" for status, n in sorted(endings.items()))
        if rates:
            trained = _floats(cells, RATE)[places]
            trained = trained[np.isfinite(trained)]
            row[RATE] = trained[0] if len(trained) else math.nan
            row["lr_grid"], row["lr_grid_size"] = first["lr_grid"], first["lr_grid_size"]
        for column in DESCRIBING:
            known = numbers[column][places]
            known = known[np.isfinite(known)]
            row[column] = known.mean() if len(known) else math.nan
        for column in columns:
            row |= statement(column, {c: v[places] for c, v in _own(column, numbers).items()})
        rows.append(row)
    return pd.DataFrame(rows)


def _floats(cells: pd.DataFrame, column: str) -> Floats:
    if column not in cells:
        return np.full(len(cells), np.nan)
    return cells[column].to_numpy(dtype=float, na_value=np.nan)


def _bounds(columns: list[str], cells: pd.DataFrame) -> list[str]:
    names = [f"{column}_{end}" for column in columns for end in ("low", "high")]
    return [name for name in names if name in cells]


def _own(column: str, numbers: Mapping[str, Floats]) -> dict[str, Floats]:
    names = (column, f"{column}_low", f"{column}_high")
    return {name: numbers[name] for name in names if name in numbers}


def has_rates(cells: pd.DataFrame) -> bool:
    """Say whether rates were chosen from a grid in these cells (of ``choose_rates``)."""
    return bool(cells["lr_grid"].notna().any())


def stated(column: str, cells: pd.DataFrame) -> dict[str, float]:
    """Return ``column``'s mean over the cells, its interval, count and best: see summarise."""
    names = [column, *_bounds([column], cells)]
    return statement(column, {name: _floats(cells, name) for name in names})


def statement(column: str, numbers: Mapping[str, Floats]) -> dict[str, float]:
    """Return the same from arrays: ``numbers`` holds the column and, where known, its bounds."""
    own = numbers[column]
    finite = np.isfinite(own)
    values = own[finite]
    names = [column, f"{column}_low", f"{column}_high", f"{column}_n"]
    if not len(values):
        return dict.fromkeys(names, math.nan) | {f"{column}_n": 0}
    mean = mean_interval(values.tolist())
    low, high = mean.low, mean.high
    if mean.n == 1 and names[1] in numbers and names[2] in numbers:
        low, high = (float(numbers[name][finite][0]) for name in names[1:3])
    row = dict(zip(names, (mean.value, low, high, mean.n), strict=True))
    if is_share(column):
        # A share cannot leave [0, 1]; Student's interval of one can.
        row[names[1]], row[names[2]] = max(low, 0.0), min(high, 1.0)
    direction = better(column)
    if direction < 0 and values.min() >= 0:
        row[names[1]] = max(row[names[1]], 0.0)  # nor can a time or a size be negative
    if direction:
        row[f"{column}_best"] = float(values.max() if direction > 0 else values.min())
    return row
