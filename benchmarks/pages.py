"""How long a page of many records takes: ``python -m benchmarks.pages [records]``.

Records are made up as a sweep leaves them (curves, timing samples and pictures included), then the
tables, figures and page are built in this process. Prints seconds of wall clock and of processor,
and the peak of the process's resident memory.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.options import Parser, at_least
from spanwise import report
from tests.synthetic import believable, curve, record, write

VARIANTS = [("full", 0), ("full_map", 0)]
VARIANTS += [(name, window) for window in range(25) for name in ("windowed", "local_global")]
AXES: tuple[Sequence[Any], ...] = (
    range(10), (1, 2), (64, 128, 256, 512, 1024), ("recall", "text"), VARIANTS,
)  # fmt: skip
MOST = prod(map(len, AXES))


def made(n: int) -> list[dict[str, object]]:
    """Return the records of up to ``n`` cells: variants x windows x tasks x lengths x seeds."""
    records = []
    for seed, heads, length, task, (variant, window) in islice(product(*AXES), n):
        row = believable(variant, task, length, seed)
        samples = {"ms": [row["forward_ms"]] * 60, "ratios": [row["forward_ms"] / 17] * 60}
        records.append(
            record(
                variant,
                task=task,
                length=length,
                seed=seed,
                row=row,
                params={"window": window} if window else {},
                config={"model.n_heads": heads},
                detail={
                    "train": {"curve": curve(row["accuracy"])},
                    "cost": {"forward": samples, "train": samples},
                },
                visibility=[["1" * 64] * 64] * 2,
            )
        )
    return records


def main(arguments: list[str] | None = None) -> None:
    """Build the page of as many records as the first argument says, 10,000 by default."""
    parser = Parser(__doc__)
    parser.add_argument("records", nargs="?", type=at_least(1, MOST), default=10_000)
    n = parser.parse_args(arguments).records
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), made(n))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wall, processor = time.perf_counter(), time.process_time()
        page = report.write(folder).page
        print(
            f"{n:,} records: {time.perf_counter() - wall:.1f} s of wall clock, "
            f"{time.process_time() - processor:.1f} s of processor, "
            f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB "
            f"({before / 2**10:.0f} MiB before), page of {page.stat().st_size / 2**20:.1f} MiB"
        )


if __name__ == "__main__":
    main()
