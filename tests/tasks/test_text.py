"""Text: what the windows hold, that no test window occurs in training, and bad paths."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from spanwise.errors import ConfigError
from tasks.text import Text, occurring, window_hashes


def words(seed, n=3000):
    rng = np.random.default_rng(seed)
    return rng.integers(97, 123, n, dtype=np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path):
    """Forty files of their own letters, one of them twice, one empty, one hidden."""
    for i in range(40):
        name = tmp_path / f"part{i % 3}" / f"{i}.txt"
        name.parent.mkdir(exist_ok=True)
        name.write_bytes(words(i))
    (tmp_path / "again.txt").write_bytes(words(7))
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / ".hidden").write_bytes(b"hidden" * 1000)
    return tmp_path


def windows(task, split, batches=None):
    """Whole windows as bytes: the tokens, then the last target."""
    found = []
    for batch in itertools.islice(task.batches(split, 16), batches):
        assert torch.equal(batch.tokens_BL[:, 1:], batch.targets_BL[:, :-1])
        whole = torch.cat([batch.tokens_BL, batch.targets_BL[:, -1:]], dim=1)
        found += [bytes(row.tolist()) for row in whole]
    return found


def test_windows_are_pieces_of_the_files_and_no_file_is_in_two_splits(folder):
    task = Text(50, seed=0, path=str(folder), validation_size=30, test_size=40)
    files = {words(i): set() for i in range(40)}
    counts = {}
    for split, batches in [("train", 40), ("validation", None), ("test", None)]:
        found = windows(task, split, batches)
        counts[split] = len(found)
        for window in found:
            homes = [file for file in files if window in file]
            # A window may span the seam of two files; both are then of this split.
            for file in homes:
                files[file].add(split)
        assert sum(any(w in file for file in files) for w in found) > 0.9 * len(found)
    assert all(len(splits) <= 1 for splits in files.values())
    assert counts == {"train": 640, "validation": 30, "test": 40}
    assert len(set(windows(task, "test"))) == 40


def test_test_windows_that_training_also_has_are_dropped(tmp_path):
    # Every second file starts with the same licence: only windows without it can be tested on.
    licence = words(999, 400)
    for i in range(60):
        (tmp_path / str(i)).write_bytes((licence if i % 2 else b"") + words(i, 500))
    task = Text(39, seed=0, path=str(tmp_path), test_size=10_000, validation_size=10_000)
    train = task._data.parts["train"].tobytes()
    assert licence in train
    for split in ("validation", "test"):
        found = windows(task, split)
        assert found
        assert licence in task._data.parts[split].tobytes()
        assert not [window for window in found if window in train]
        fit = len(task._data.parts[split]) // 40
        assert 0.5 * fit < len(found) < fit


@pytest.mark.parametrize("width", [1, 7, 64])
def test_occurring_equals_a_search(width, monkeypatch):
    monkeypatch.setattr("tasks.text.CHUNK", 100)  # several chunks, so that their seams are tested
    rng = np.random.default_rng(0)
    data = rng.integers(0, 3, 1000, dtype=np.uint8)
    other = np.concatenate([rng.integers(0, 3, 200, dtype=np.uint8), data[60:260]])
    expected = [
        other[i : i + width].tobytes() in data.tobytes() for i in range(len(other) - width + 1)
    ]
    assert occurring(window_hashes(other, width), data, width).tolist() == expected


def test_a_single_file_is_split_into_spans(tmp_path):
    (tmp_path / "one.bin").write_bytes(words(0, 20_000))
    task = Text(30, seed=0, path=str(tmp_path / "one.bin"))
    sizes = {name: len(part) for name, part in task._data.parts.items()}
    assert sizes == {"test": 2000, "validation": 2000, "train": 16_000}
    joined = b"".join(task._data.parts[name].tobytes() for name in ("test", "validation", "train"))
    assert joined == words(0, 20_000)


def test_seeds_change_the_training_windows_and_nothing_else(folder):
    one, same, other = (Text(50, seed=seed, path=str(folder)) for seed in (0, 0, 1))
    assert windows(one, "train", 2) == windows(same, "train", 2) != windows(other, "train", 2)
    assert windows(one, "test") == windows(other, "test")
    assert one.data_id == other.data_id


def test_data_id_tells_the_content_and_its_size_not_the_place(folder):
    before = Text(50, seed=0, path=str(folder)).data_id
    assert before.endswith(" 120000 bytes")
    (folder / "part0" / "0.txt").rename(folder / "renamed")
    assert Text(50, seed=0, path=str(folder)).data_id == before
    (folder / "renamed").write_bytes(words(0)[:-1] + b"!")
    assert Text(50, seed=0, path=str(folder)).data_id != before


def test_bits_per_byte_of_a_uniform_guess_is_eight(folder):
    task = Text(50, seed=0, path=str(folder))
    loss = torch.full((10,), math.log(256))
    assert task.metrics(loss, torch.zeros(10, dtype=torch.bool)) == {
        "bits_per_byte": pytest.approx(8.0)
    }


def test_the_default_is_the_standard_library():
    task = Text(100, seed=0)
    assert len(task._data.parts["train"]) > 5_000_000
    assert len(windows(task, "test")) == 256
    assert task.n_targets == 100


def test_bad_paths_are_one_line(tmp_path):
    (tmp_path / "small").write_bytes(words(0, 200))
    (tmp_path / "zeros").write_bytes(bytes(10_000))
    (tmp_path / "void").mkdir()
    for name, says in [
        ("nowhere", "no such file or folder"),
        ("void", "nothing to read"),
        ("small", "200 bytes are too few: length=30 needs at least 310"),
        ("zeros", "also occurs in the training data"),
    ]:
        with pytest.raises(ConfigError, match=says) as caught:
            Text(30, seed=0, path=str(tmp_path / name))
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="length=0"):
        Text(0, seed=0)
