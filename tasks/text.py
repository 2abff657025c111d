"""Next byte on real text: at every position, which byte comes next?

By default the bytes of the running Python's own standard-library sources, so that the task exists
on every machine without a download; ``path`` takes any file or folder. Files are read as bytes
and as nothing else: whatever they contain is data.

Shape suffixes: B batch, L sequence length, N targets.
"""

from __future__ import annotations

import hashlib
import math
import os
import sysconfig
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spanwise.errors import ConfigError
from spanwise.seeds import derive_seed, numpy_generator
from tasks.interface import Batch, Split, Task

SHARES = {"test": 0.1, "validation": 0.1, "train": 0.8}
"""The share of the data that each split gets, in the order in which they are cut."""
SIEVE_BITS = 20
CHUNK = 2**20
NOT_SOURCES = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
"""Folders of the standard library that differ between installations of one Python version."""


class Text(Task):
    """Predict the next byte of text, at every position of a window of ``length`` bytes.

    A folder is split by file, by a hash of each file's content (a file that occurs twice counts
    once); a single file, or a folder of too few files, is split into contiguous spans. Training
    draws windows anywhere in its split. Validation and test are fixed windows, the same for every
    seed, and none of them occurs anywhere in the training data.

    Args:
        length: bytes in a window.
        seed: the cell's seed: which training windows are drawn, in which order.
        path: a file or a folder (searched to its depth, hidden names left out); None for the
            ``.py`` files of the running Python's standard library.
        validation_size, test_size: windows in these two fixed sets (fewer where the data are
            too small for as many without overlap).

    Attributes:
        data_id: first half of the sha256 of the data, and their size, such as
            ``1f0c... 12602225 bytes``: rows with different ones are not comparable.

    Raises:
        ConfigError: ``path`` is missing, unreadable, empty or too small, in one line.
    """

    label = "Text"
    vocab_size = 256
    n_classes = 256
    causal = True
    chance = 1 / 256

    def __init__(
        self,
        length: int,
        seed: int,
        path: str | None = None,
        validation_size: int = 64,
        test_size: int = 256,
    ):
        if length < 1:
            raise ConfigError(f"length={length}: must be at least 1")
        for name, value in {"validation_size": validation_size, "test_size": test_size}.items():
            if value < 1:
                raise ConfigError(f"task.{name}={value}: must be at least 1")
        self.length, self.seed = length, seed
        self._data = _prepare(path, _signature(path), length + 1)
        self.data_id = self._data.identity
        sizes = {"validation": validation_size, "test": test_size}
        self._starts = {name: self._data.starts[name][:size] for name, size in sizes.items()}

    @property
    def n_targets(self) -> int:
        """Targets in a window: every position."""
        return self.length

    def batches(self, split: Split, batch_size: int) -> Iterator[Batch]:
        """Yield batches of windows, each position's target being the byte after it."""
        if split == "train":
            generator = numpy_generator(self.seed, "text", "train")
            last = len(self._data.parts["train"]) - self.length
            while True:
                yield self._batch(split, generator.integers(0, last, batch_size))
        for first in range(0, len(self._starts[split]), batch_size):
            yield self._batch(split, self._starts[split][first : first + batch_size])

    def metrics(self, loss_N: Tensor, correct_N: Tensor) -> dict[str, float]:
        """Return ``bits_per_byte``: the mean cross-entropy in bits."""
        return {"bits_per_byte": float(loss_N.double().mean()) / math.log(2)}

    def _batch(self, split: str, starts: np.ndarray) -> Batch:
        at = starts[:, None] + np.arange(self.length + 1)
        window = torch.from_numpy(self._data.parts[split][at].astype(np.int64))
        return Batch(window[:, :-1].contiguous(), window[:, 1:].contiguous())


@dataclass(frozen=True)
class Data:
    """The bytes (uint8) of each split, and where its held-out windows start, in drawing order."""

    identity: str
    parts: dict[str, np.ndarray]
    starts: dict[str, np.ndarray]


@lru_cache(maxsize=2)
def _prepare(path: str | None, signature: tuple[Any, ...], width: int) -> Data:
    """Read and split what ``path`` names; ``signature`` changes whenever its files do."""
    files = _read(path, [Path(name) for name, *_ in signature])
    parts = _split(files, width, path)
    held_out = {}
    for name in ("validation", "test"):
        # Windows that do not overlap, in an order that no seed changes.
        grid = np.arange(0, len(parts[name]) - width + 1, width)
        held_out[name] = grid[numpy_generator(0, "text", name, width).permutation(len(grid))]
    hashes = [window_hashes(parts[name], width)[starts] for name, starts in held_out.items()]
    seen = occurring(np.concatenate(hashes), parts["train"], width)
    apart = np.split(~seen, [len(hashes[0])])
    for (name, starts), keep in zip(held_out.items(), apart, strict=True):
        held_out[name] = starts[keep]
        if not keep.any():
            raise ConfigError(
                f"task.path={path}: every {name} window of {width} bytes also occurs in the "
                "training data; give text that repeats itself less"
            )
    return Data(_identify(files), parts, held_out)


def occurring(hashes: np.ndarray, data: np.ndarray, width: int) -> np.ndarray:
    """Return for each of ``hashes`` (uint64) whether a window of ``data`` has it, (n,) bool.

    A table of the hashes' leading bits sieves the windows first, so that only few are looked up;
    the data are hashed in chunks, so memory does not grow with them.
    """
    n_bits = np.uint64(64 - SIEVE_BITS)
    sieve = np.zeros(2**SIEVE_BITS, dtype=bool)
    sieve[hashes >> n_bits] = True
    found: list[np.ndarray] = [np.empty(0, np.uint64)]
    for first in range(0, len(data) - width + 1, CHUNK):
        here = window_hashes(data[first : first + CHUNK + width - 1], width)
        found.append(here[sieve[here >> n_bits]])
    return np.isin(hashes, np.concatenate(found))


def window_hashes(data: np.ndarray, width: int) -> np.ndarray:
    """Return a 64-bit hash of each window of ``width`` bytes of ``data`` (uint8), one a start.

    Equal windows have equal hashes, so a window whose hash is absent is absent: that is the
    promise the splits rely on. (Different windows may collide; that only drops a candidate.)
    The hash of window i is sum_j byte[i+j] * r^j mod 2^64: the difference of two prefix sums of
    byte[k] * r^k, times r^-i, which exists since r is odd.
    """
    powers, inverses = _powers(max(len(data), CHUNK + width))
    starts = len(data) - width + 1
    prefix = np.zeros(len(data) + 1, dtype=np.uint64)
    np.cumsum((data.astype(np.uint64) + 1) * powers[: len(data)], out=prefix[1:])
    return (prefix[width:] - prefix[:starts]) * inverses[:starts]


@lru_cache(maxsize=1)
def _powers(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return root^k and root^-k mod 2^64 for k below n."""
    root = derive_seed(0, "text", "windows") | 1
    found = []
    for base in (root, pow(root, -1, 2**64)):
        factors = np.full(n, base, dtype=np.uint64)
        factors[0] = 1
        found.append(np.cumprod(factors))
    return found[0], found[1]


def _standard_library() -> Iterable[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    return (name for name in _files_under(root, NOT_SOURCES) if name.suffix == ".py")


def _files_under(root: Path, leave_out: Container[str] = ()) -> Iterable[Path]:
    """Yield the files below ``root``, without hidden ones and folders named in ``leave_out``."""
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in leave_out]
        visible = (Path(folder, name) for name in names if not name.startswith("."))
        yield from (name for name in visible if name.is_file())


def _signature(path: str | None) -> tuple[tuple[str, int, int], ...]:
    """Return the name, size and time of change of each file that ``path`` names."""
    if path is None:
        names: Iterable[Path] = _standard_library()
    else:
        root = Path(path).expanduser()
        if not root.exists():
            raise ConfigError(f"task.path={path}: no such file or folder")
        names = [root] if root.is_file() else _files_under(root)
    facts = ((str(name), name.stat()) for name in names)
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in facts))


def _read(path: str | None, names: Iterable[Path]) -> list[bytes]:
    """Return the contents of the files, each once, in the order of their hashes."""
    try:
        contents = {name.read_bytes() for name in names}
    except OSError as error:
        raise ConfigError(f"task.path={path}: cannot read it ({error})") from error
    contents.discard(b"")
    if not contents:
        raise ConfigError(f"task.path={path}: nothing to read there (no file, or only empty ones)")
    return sorted(contents, key=lambda content: hashlib.sha256(content).digest())


def _identify(files: list[bytes]) -> str:
    whole = hashlib.sha256()
    for content in files:
        whole.update(hashlib.sha256(content).digest())
    return f"{whole.hexdigest()[:32]} {sum(map(len, files))} bytes"


def _split(files: list[bytes], width: int, path: str | None) -> dict[str, np.ndarray]:
    """Return the bytes of each split, by file where there are enough of them, else by span."""
    parts: dict[str, list[bytes]] = {name: [] for name in SHARES}
    for content in files:
        place = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64
        parts[_part_at(place)].append(content)
    if any(sum(map(len, part)) < width for part in parts.values()):
        whole = b"".join(files)
        cuts = np.cumsum([0, *SHARES.values()])
        bounds = [round(cut * len(whole)) for cut in cuts]
        spans = zip(SHARES, bounds[:-1], bounds[1:], strict=True)
        parts = {name: [whole[low:high]] for name, low, high in spans}
    joined = {name: np.frombuffer(b"".join(part), np.uint8) for name, part in parts.items()}
    shortest = min(len(part) for part in joined.values())
    if shortest < width:
        raise ConfigError(
            f"task.path={path}: {sum(map(len, files))} bytes are too few: length={width - 1} "
            f"needs at least {math.ceil(width / min(SHARES.values()))}"
        )
    return joined


def _part_at(place: float) -> str:
    """Return the split whose share of [0, 1) holds ``place``."""
    edge = 0.0
    for name, share in SHARES.items():
        edge += share
        if place < edge:
            return name
    return "train"
