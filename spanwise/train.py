"""Train a model on a task and test it once: the accuracy side of a cell.

The recipe is the same for every variant: AdamW, a linear warm-up, then a cosine or constant rate,
clipped gradients, batches drawn fresh. Validation is looked at during training; the test set only
at the end, once.

Shape suffixes: B batch, L sequence length, N targets, C classes.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spanwise.errors import ConfigError, nearest
from spanwise.seeds import derive_seed
from spanwise.statistics import wilson
from tasks.interface import Batch, Split, Task, targets_at

DTYPES = ("float32", "bfloat16")
SCHEDULES = ("cosine", "constant")


class Diverged(ArithmeticError):
    """The loss was NaN or infinite at ``step`` (counted from 1)."""

    def __init__(self, step: int, loss: float):
        super().__init__(f"the loss was {loss} at step {step}")
        self.step = step


@dataclass(frozen=True)
class Evaluation:
    """Loss in nats, rightness, and distance to the answer (-1: unknown) of each target, (N,)."""

    loss_N: Tensor
    correct_N: Tensor
    distance_N: Tensor

    @property
    def accuracy(self) -> float:
        """Share of targets answered rightly."""
        return float(self.correct_N.double().mean())

    def by_distance(self) -> list[dict[str, int]]:
        """Return targets and right answers by distance to the answer, in powers of two.

        Each entry counts distances ``low`` to ``high``, both included; without known answers there
        is none.
        """
        rows = []
        low = 1
        while low <= int(self.distance_N.max()):
            high = 2 * low - 1
            here = (self.distance_N >= low) & (self.distance_N <= high)
            if here.any():
                n, right = int(here.sum()), int((here & self.correct_N).sum())
                rows.append({"low": low, "high": high, "n": n, "correct": right})
            low *= 2
        return rows


def train(
    model: nn.Module,
    task: Task,
    *,
    steps: int,
    batch: int,
    lr: float,
    weight_decay: float = 0.1,
    betas: Sequence[float] = (0.9, 0.95),
    warmup: int = 30,
    clip: float | None = 1.0,
    schedule: str = "cosine",
    eval_every: int | None = None,
    eval_batch: int | None = None,
    stop_at: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train ``model`` in place on ``task``, then test it; return (row, detail).

    Args:
        model: ``model(tokens_BL, lengths, at=mask_BL) -> logits (N, C)``.
        task: where the batches come from.
        steps: optimiser steps; batch: sequences a step.
        lr: the rate after ``warmup`` steps of linear rise; ``schedule`` takes it from there:
            ``cosine`` to zero, or ``constant``.
        weight_decay: AdamW's (Loshchilov & Hutter 2019), on matrices only, not on gains or biases.
        betas: AdamW's two averages.
        clip: largest norm of the whole gradient; None for no limit.
        eval_every: steps between looks at the validation set; None for only after the last.
        eval_batch: sequences a batch in evaluation; None for ``batch``.
        stop_at: stop at the first look that finds this validation accuracy; None to never.
            ``steps`` in the row says how many were taken.
        seed: of dropout; the data's comes with the task, the weights' with the model.
        device: where to train; dtype: ``float32``, or ``bfloat16`` by autocast.
        progress: called after each step with (steps done, steps in all).

    Returns:
        row: accuracy with its 95% Wilson interval (accuracy_low, accuracy_high; it takes targets
        as independent, which the bytes of one text are not), loss in nats, n_targets (all of the
        test set), validation_accuracy of the tested weights, steps, tokens, train_seconds
        (without evaluation), data_hash (of every training byte in order: equal for cells that
        trained on the same), data_id where the task has one, and the task's own metrics.
        detail: ``curve``, a list of step, loss (mean since the last look), validation_accuracy,
        seconds; ``by_distance``, see ``Evaluation.by_distance``.

    Raises:
        ConfigError: a bad setting. Diverged: the loss was NaN or infinite.
    """
    check_settings(
        steps=steps,
        batch=batch,
        lr=lr,
        weight_decay=weight_decay,
        betas=betas,
        warmup=warmup,
        clip=clip,
        schedule=schedule,
        eval_every=eval_every,
        eval_batch=eval_batch,
        stop_at=stop_at,
        dtype=dtype,
    )
    model.to(device)
    optimizer = _optimizer(model, lr, weight_decay, betas)
    seen = hashlib.blake2b(digest_size=16)
    curve: list[dict[str, float]] = []
    seconds, tokens, recent = 0.0, 0, []
    eval_batch = batch if eval_batch is None else eval_batch
    with torch.random.fork_rng(_cuda_devices(device)):
        torch.manual_seed(derive_seed(seed, "dropout"))
        batches = task.batches("train", batch)
        for step in range(1, steps + 1):
            start = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = lr * rate_at(step, steps, warmup, schedule)
            sequences = next(batches)
            loss = _step(model, optimizer, sequences, clip, device, dtype)
            seconds += time.perf_counter() - start
            if not math.isfinite(loss):
                raise Diverged(step, loss)
            recent.append(loss)
            tokens += sequences.tokens_BL.numel()
            seen.update(sequences.tokens_BL.numpy().tobytes())
            seen.update(sequences.targets_BL.numpy().tobytes())
            if progress is not None:
                progress(step, steps)
            if step == steps or (eval_every and step % eval_every == 0):
                looked = evaluate(model, task, "validation", eval_batch, device, dtype)
                curve.append(
                    {
                        "step": step,
                        "loss": sum(recent) / len(recent),
                        "validation_accuracy": looked.accuracy,
                        "seconds": seconds,
                    }
                )
                recent = []
                if stop_at is not None and looked.accuracy >= stop_at:
                    break
    tested = evaluate(model, task, "test", eval_batch, device, dtype)
    n = len(tested.correct_N)
    low, high = wilson(int(tested.correct_N.sum()), n)
    row: dict[str, Any] = {
        "accuracy": tested.accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
        "validation_accuracy": curve[-1]["validation_accuracy"],
        "loss": float(tested.loss_N.double().mean()),
        "n_targets": n,
        "steps": int(curve[-1]["step"]),
        "tokens": tokens,
        "train_seconds": seconds,
        "data_hash": seen.hexdigest(),
        **task.metrics(tested.loss_N, tested.correct_N),
    }
    if hasattr(task, "data_id"):
        row["data_id"] = task.data_id
    return row, {"curve": curve, "by_distance": tested.by_distance()}


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    split: Split,
    batch: int,
    device: str = "cpu",
    dtype: str = "float32",
) -> Evaluation:
    """Return the model's answers on a whole finite split, without dropout; on the CPU."""
    was_training = model.training
    model.eval()
    losses, rights, distances = [], [], []
    for sequences in task.batches(split, batch):
        logits_NC, targets_N = _answers(model, sequences, device, dtype)
        losses.append(F.cross_entropy(logits_NC, targets_N, reduction="none").cpu())
        rights.append((logits_NC.argmax(dim=-1) == targets_N).cpu())
        distances.append(_distances(sequences))
    model.train(was_training)
    if not losses:
        raise ConfigError(f"task: its {split} split is empty, so there is nothing to measure")
    return Evaluation(torch.cat(losses), torch.cat(rights), torch.cat(distances))


def rate_at(step: int, steps: int, warmup: int, schedule: str) -> float:
    """Return the share of the full rate at ``step`` (from 1) of ``steps``."""
    if step <= warmup:
        return step / warmup
    if schedule == "constant":
        return 1.0
    # From 1 right after the warm-up towards 0, which would be reached one step after the last.
    return 0.5 * (1 + math.cos(math.pi * (step - warmup - 1) / (steps - warmup)))


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sequences: Batch,
    clip: float | None,
    device: str,
    dtype: str,
) -> float:
    model.train()
    optimizer.zero_grad(set_to_none=True)
    logits_NC, targets_N = _answers(model, sequences, device, dtype)
    loss = F.cross_entropy(logits_NC, targets_N)
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.item()


def _answers(model: nn.Module, sequences: Batch, device: str, dtype: str) -> tuple[Tensor, Tensor]:
    """Return float32 logits (N, C) at the targets of a batch, and the targets (N,)."""
    at_BL = targets_at(sequences).to(device)
    lengths = None if sequences.lengths_B is None else sequences.lengths_B.to(device)
    with _precision(device, dtype):
        logits_NC = model(sequences.tokens_BL.to(device), lengths, at=at_BL)
    return logits_NC.float(), sequences.targets_BL.to(device)[at_BL]


def _precision(device: str, dtype: str) -> AbstractContextManager[Any]:
    if dtype == "float32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=getattr(torch, dtype))


def _distances(sequences: Batch) -> Tensor:
    """Return how far before each target its answer stands, (N,), -1 where that is not known."""
    at_BL = targets_at(sequences)
    if sequences.answers_BL is None:
        return torch.full((int(at_BL.sum()),), -1)
    position_L = torch.arange(at_BL.shape[1]).expand_as(at_BL)
    distance_BL = (position_L - sequences.answers_BL).abs()
    return distance_BL.masked_fill(sequences.answers_BL < 0, -1)[at_BL]


def _optimizer(
    model: nn.Module, lr: float, weight_decay: float, betas: Sequence[float]
) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(betas[0], betas[1]))


def _cuda_devices(device: str) -> list[torch.device]:
    place = torch.device(device)
    return [place] if place.type == "cuda" else []


def check_settings(**settings: Any) -> None:
    """Raise ConfigError, in one line, for a value that ``train`` cannot train by.

    settings: any of ``train``'s keywords; those that are missing are not looked at.
    """
    for name, value in settings.items():
        if name in _ALLOWED:
            fits, allowed = _ALLOWED[name]
            try:
                good = fits(value)
            except TypeError:
                good = False
            if not good:
                where = name if name == "dtype" else f"train.{name}"
                guess = nearest(value, allowed.split(", ")) if name in ("schedule", "dtype") else ""
                raise ConfigError(f"{where}: found {value!r}; allowed: {allowed}.{guess}")


def _count(value: Any) -> bool:
    return value % 1 == 0 and value >= 1


_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "steps": (_count, "a whole number from 1"),
    "batch": (_count, "a whole number from 1"),
    "lr": (lambda v: 0 < v < math.inf, "a number above 0"),
    "weight_decay": (lambda v: 0 <= v < math.inf, "a number from 0"),
    "betas": (
        lambda v: len(v) == 2 and all(0 <= beta < 1 for beta in v),
        "two numbers from 0 to below 1",
    ),
    "warmup": (lambda v: v % 1 == 0 and v >= 0, "a whole number from 0"),
    "clip": (lambda v: v is None or v > 0, "a number above 0, or null"),
    "schedule": (lambda v: v in SCHEDULES, ", ".join(SCHEDULES)),
    "eval_every": (lambda v: v is None or _count(v), "a whole number from 1, or null"),
    "eval_batch": (lambda v: v is None or _count(v), "a whole number from 1, or null"),
    "stop_at": (lambda v: v is None or 0 < v <= 1, "a share above 0 and up to 1, or null"),
    "dtype": (lambda v: v in DTYPES, ", ".join(DTYPES)),
}
