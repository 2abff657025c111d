"""Exact memory: the peak of live tensor bytes, not the process's guess.

On the CPU the profiler reports every allocation and release of tensor memory in order; their
running sum peaks at exactly what was alive at once. A process's resident size cannot tell: it is
blind to memory that is freed and used again. On CUDA the caching allocator keeps the same count.

Seen: what goes through torch's allocator on this thread, on autograd's, and in operators with any
number of threads. Not seen: scratch that a library (oneDNN) allocates behind torch's back, and
tensors made on Python threads that the work starts itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.profiler import profile
from torch.multiprocessing.reductions import StorageWeakRef

Work = Callable[[], object]


class Peak(NamedTuple):
    """Bytes of tensor memory that the work itself asked for.

    ``peak``: most alive at any one moment. ``kept``: still alive after it ended. What was there
    before does not count, and on the CPU its release makes no room.
    """

    peak: int
    kept: int


def measure_peak(work: Work, device: torch.device | None = None) -> Peak:
    """Run ``work`` once and return its peak and what it left, in bytes of tensor memory.

    What ``work`` returns counts up to the moment it returns and is then dropped.
    """
    if device is not None and device.type == "cuda":
        return _cuda_peak(work, device)
    return replay(_allocations(work))


def replay(changes: Iterable[int]) -> Peak:
    """Return the peak and the end of the running sum of allocations (+) and releases (-)."""
    live = peak = 0
    for change in changes:
        live += change
        peak = max(peak, live)
    return Peak(peak, live)


def _allocations(work: Work) -> list[int]:
    with (
        _quiet(),
        collector_at_rest(),
        profile(use_kineto=True, profile_memory=True) as prof,
    ):
        work()
    assert prof.kineto_results is not None
    # The raw events: building the profiler's Python objects costs a hundred times their size.
    changes = [
        (event.start_ns(), event.nbytes())
        for event in prof.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == torch.profiler.DeviceType.CPU
    ]
    changes.sort(key=lambda change: change[0])
    return [size for _, size in changes]


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Keep Python's garbage collector from running, and from freeing old garbage, meanwhile."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # The profiler's own lines on stderr are not the user's business.
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        if before is None:
            del os.environ["KINETO_LOG_LEVEL"]
        else:
            os.environ["KINETO_LOG_LEVEL"] = before


def _cuda_peak(work: Work, device: torch.device) -> Peak:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    return Peak(peak, torch.cuda.memory_allocated(device) - before)


def saved_bytes(forward: Work, apart_from: Iterable[Tensor] = ()) -> int:
    """Return the bytes that ``forward`` keeps for its backward.

    Each storage counts once and whole, however many tensors view it; those of ``apart_from``
    (parameters and inputs, alive anyway) do not count.
    """
    alive_anyway = {tensor.untyped_storage()._cdata for tensor in apart_from}
    kept: dict[int, tuple[StorageWeakRef, int]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in alive_anyway:
            kept[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        # Not the tensor itself: an output that keeps itself would never be freed.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()
        # A part of the graph that was dropped meanwhile keeps nothing.
        total = sum(size for reference, size in kept.values() if not reference.expired())
    del result
    return total


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the distinct storages behind ``tensors``."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())
