"""Was the machine ours while we timed? What the kernel's own counters say.

The timing lock keeps other cells away, not other programs. Over a timed span this compares what
all cores did with what this process used (/proc/stat), and records stolen time (a hypervisor gave
our core away), involuntary context switches and the run queue. A span with too much of it is
flagged: its figures are kept, and never averaged in unseen.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

OTHERS_SHARE = 0.05
"""More than this share of the machine's cores at work for others is contention."""
STOLEN_SHARE = 0.02
"""More than this share of the machine's time taken by the hypervisor is contention."""


@dataclass(frozen=True)
class Counters:
    """The kernel's running totals at one moment; times in seconds."""

    wall: float
    busy: float
    stolen: float
    own: float
    switches: int


@dataclass(frozen=True)
class Load:
    """What went on beside the timed work; ``why`` is empty where it ran undisturbed."""

    seconds: float
    cores: int
    other_cores: float
    stolen_share: float
    switches_per_second: float
    running: float
    why: str

    @property
    def contended(self) -> bool:
        """True where the figures of this span cannot be taken for a quiet machine's."""
        return bool(self.why)

    def as_detail(self) -> dict[str, float | int | str]:
        """Return the figures for a record's detail."""
        return asdict(self)


def read_counters(stat: Path = Path("/proc/stat")) -> Counters | None:
    """Return the kernel's totals, or None where there is no such file (not Linux)."""
    try:
        fields = stat.read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _iowait, irq, softirq, stolen = (
        int(field) / tick for field in fields[1:9]
    )
    own = os.times()
    return Counters(
        wall=time.monotonic(),
        busy=user + nice + system + irq + softirq,
        stolen=stolen,
        own=own.user + own.system,
        switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
    )


def run_queue() -> int | None:
    """Return how many tasks of the machine want a core right now, this one included."""
    try:
        return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].split("/")[0])
    except OSError:
        return None


def judge(before: Counters, after: Counters, queue: list[int], cores: int | None = None) -> Load:
    """Return the load between two readings and, in words, what there was to disturb the work.

    ``queue``: run-queue lengths seen in between. Counters tick in hundredths of a second, so a
    span needs a second or so before a share of some per cent means anything.
    """
    cores = cores or os.cpu_count() or 1
    seconds = max(after.wall - before.wall, 1e-9)
    other = max(0.0, (after.busy - before.busy) - (after.own - before.own)) / seconds
    stolen = (after.stolen - before.stolen) / seconds / cores
    # Each reading may be a tick off on every core.
    doubt = 2 * cores / os.sysconf("SC_CLK_TCK") / seconds
    reasons = []
    if other > OTHERS_SHARE * cores + doubt:
        reasons.append(f"others kept {other:.2f} of {cores} cores busy")
    if stolen > STOLEN_SHARE + doubt / cores:
        reasons.append(f"the hypervisor took {stolen:.0%} of the time")
    return Load(
        seconds=seconds,
        cores=cores,
        other_cores=other,
        stolen_share=stolen,
        switches_per_second=(after.switches - before.switches) / seconds,
        running=sum(queue) / len(queue) if queue else 0.0,
        why="; ".join(reasons),
    )
