"""Studies made up for the tests of tables, plots and pages: records as a real sweep leaves them."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

VARIANTS: dict[str, dict[str, Any]] = {
    "full": {"label": "Full", "colour": "#000000", "params": {}, "sees": lambda q, k: True},
    "windowed": {
        "label": "Windowed",
        "colour": "#0072B2",
        "params": {"window": 32},
        "sees": lambda q, k: q - k < 6,
    },
    "local_global": {
        "label": "Local + global",
        "colour": "#D55E00",
        "params": {"window": 32, "global_tokens": 16},
        "sees": lambda q, k: q - k < 6 or k < 3,
    },
    "full_map": {"label": "Full map", "colour": "#000000", "params": {}, "sees": lambda q, k: True},
}


def record(
    variant: str = "full",
    *,
    task: str = "recall",
    length: int = 64,
    seed: int = 0,
    measure: str = "both",
    status: str = "ok",
    message: str = "",
    row: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    params: dict[str, Any] | None = None,
    study: str = "mine",
    **fields: Any,
) -> dict[str, Any]:
    """Return one record. ``row`` and ``config`` (dotted keys) replace what would be there."""
    facts = VARIANTS.get(variant, {"label": variant, "params": {}, "sees": lambda q, k: True})
    params = facts["params"] if params is None else params
    resolved: dict[str, Any] = {
        "action": "run",
        "study": study,
        "measure": measure,
        "length": length,
        "seed": seed,
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "variant": {"_target_": f"variants.{variant}.Class", **params},
        "task": {"_target_": f"tasks.{task}.Class"},
        "model": {"d_model": 32, "n_heads": 1, "n_layers": 2, "positions": "none"},
        "train": {"steps": 300, "batch": 32, "lr": 0.01},
        "cost": {"scope": "layer", "batch": 1},
    }
    for dotted, value in (config or {}).items():
        *groups, leaf = dotted.split(".")
        place = resolved
        for group in groups:
            place = place.setdefault(group, {})
        place[leaf] = value
    identity = json.dumps({k: v for k, v in resolved.items() if k != "study"}, sort_keys=True)
    made: dict[str, Any] = {
        "version": 1,
        "key": hashlib.sha256(identity.encode()).hexdigest()[:16],
        "study": study,
        "status": status,
        "message": message,
        "traceback": "",
        "config": resolved,
        "choices": {"variant": variant, "task": task},
        "row": row if row is not None else {},
        "detail": {},
        "display": {
            "variant": {
                "label": facts["label"],
                "colour": facts.get("colour"),
                "paper": "A paper, 2020",
                "describe": " ".join([facts["label"], *(str(v) for v in params.values())]),
            },
            "task": {"label": task},
        },
        "visibility": [
            [
                "".join(str(int(k <= q and facts["sees"](q, k))) for k in range(24))
                for q in range(24)
            ]
        ],
        "machine": {"cpu": "A processor", "torch": "2.13.0", "python": "3.11.9", "git": "abc1234"},
        "started": "2026-01-01T00:00:00",
        "ended": "2026-01-01T00:01:00",
    }
    return made | fields


def believable(variant: str, task: str, length: int, seed: int) -> dict[str, Any]:
    """Return a row with figures such as a real cell gives, drawn from its own stream."""
    stream = np.random.default_rng(abs(hash((length, seed, len(variant), len(task)))))
    noise = stream.normal
    share = {"windowed": min(1.0, 26 / length)}.get(variant, 0.995)
    accuracy = min(1.0, max(0.0, share + 0.01 * noise()))
    square = variant in ("full", "full_map")
    milliseconds = 0.2 + length * 0.01 + (length**2 * 1e-5 if square else 0) + 0.005 * length
    milliseconds *= 1 + 0.02 * abs(noise())
    peak = 2**16 + 1024 * length + (16 * length**2 if variant == "full_map" else 0)
    row = {
        "accuracy": accuracy,
        "accuracy_low": accuracy - 0.02,
        "accuracy_high": min(1.0, accuracy + 0.02),
        "validation_accuracy": accuracy - 0.01,
        "loss": -math.log(max(accuracy, 0.01)),
        "steps": 300,
        "tokens": 300 * 32 * length,
        "train_seconds": length * 0.05,
        "n_params": 9000 + (64 if variant == "local_global" else 0),
        "n_heads": 1,
        "d_model": 32,
        "keys_per_query": length / 2 if square else 30.0,
        "forward_ms": milliseconds,
        "forward_ms_low": milliseconds * 0.97,
        "forward_ms_high": milliseconds * 1.04,
        "train_ms": 3 * milliseconds,
        "train_ms_low": 3 * milliseconds * 0.97,
        "train_ms_high": 3 * milliseconds * 1.04,
        "calibration_ms": 17.0,
        "x_floor_forward": 2.0,
        "x_floor_train": 2.5,
        "forward_peak_bytes": peak,
        "train_peak_bytes": 3 * peak,
        "flops_forward": 4 * length * 32 * 64,
        "contended": False,
    }
    if task == "text":
        row["bits_per_byte"] = 3.0 - 0.1 * accuracy + 0.02 * noise()
    return row


def curve(accuracy: float, steps: int = 300) -> list[dict[str, float]]:
    """Return a training curve that ends at ``accuracy``."""
    points = []
    for step in range(0, steps + 1, 25):
        reached = accuracy / (1 + math.exp((steps / 2 - step) / 30))
        points.append({"step": step, "loss": 4.2 - 3.5 * reached, "validation_accuracy": reached})
    return points


def write(folder: Path, records: list[dict[str, Any]]) -> Path:
    """Write records as a study's folder holds them and return the folder."""
    (folder / "records").mkdir(parents=True, exist_ok=True)
    for each in records:
        (folder / "records" / f"{each['key']}.json").write_text(json.dumps(each))
    return folder


def whole_study(folder: Path, *, lengths: tuple[int, ...] = (64, 128, 256, 512)) -> Path:
    """Write a study of four variants on two tasks with seeds, failed cells and curves."""
    records = []
    for task in ("recall", "text"):
        for variant in VARIANTS:
            for length in lengths:
                for seed in (0, 1, 2):
                    row = believable(variant, task, length, seed)
                    made = record(variant, task=task, length=length, seed=seed, row=row)
                    made["detail"] = {"curve": curve(row["accuracy"])}
                    if variant == "full_map" and length == max(lengths):
                        made |= {"status": "oom", "row": {}, "message": "over the limit of 2 GiB"}
                    elif variant == "local_global" and (task, seed, length) == ("text", 2, 128):
                        made |= {"status": "timeout", "row": {}, "message": "over 60 seconds"}
                    records.append(made)
    return write(folder, records)
