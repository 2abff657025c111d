"""Accuracy of a trained model on sequences longer than those it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from spanwise.arguments import AtLeast, NotEmpty
from spanwise.errors import ConfigError
from spanwise.probes import Found, Subject
from spanwise.statistics import wilson


def lengths(
    subject: Subject,
    *,
    at: Annotated[Sequence[Annotated[int, AtLeast(1)]], NotEmpty()],
    batch: Annotated[int, AtLeast(1)] = 32,
    task: dict[str, Any] | None = None,
) -> Found:
    """Test the model at each length of ``at``, on the cell's task made that long.

    batch: sequences a batch. task: settings of the task to change for these tests, as in
    ``{test_size: 200}``. A model that has no positions past its own length is not tested there.

    Columns accuracy_at_L for each length L; the table has length, accuracy, accuracy_low,
    accuracy_high (95% Wilson interval).
    """
    from spanwise.phases import build_task
    from spanwise.train import evaluate

    found = Found()
    config = dict(subject.config)
    for length in at:
        config["task"] = {**subject.config["task"], **(task or {})}
        made = build_task({**config, "length": length})
        try:
            answers = evaluate(
                subject.model, made, "test", batch, config["device"], config["dtype"]
            )
        except ConfigError:
            if length <= subject.config["length"]:
                raise
            found.row[f"accuracy_at_{length}"] = None
            continue
        n = len(answers.correct_N)
        low, high = wilson(int(answers.correct_N.sum()), n)
        found.row[f"accuracy_at_{length}"] = answers.accuracy
        found.table.append(
            {
                "length": length,
                "accuracy": answers.accuracy,
                "accuracy_low": low,
                "accuracy_high": high,
            }
        )
    return found
