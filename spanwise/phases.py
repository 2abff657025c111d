"""What a cell does in its own process: build its parts, train them, measure them.

Every function here takes and returns plain data (see `spanwise.isolation`), so that it can run in
a forked process, and imports torch, which the rest of the runner's path does without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from spanwise.errors import ConfigError

PICTURE_ROWS = 64
"""Positions on a side of the picture of a variant's visibility in its record."""
PICTURE_SPAN = 1024
"""Greatest length that such a picture is a sample of."""


@dataclass
class Parts:
    """What a config describes: the task, the variant's factory, and the model's keywords."""

    task: Any
    factory: Any
    keywords: dict[str, Any]

    def model(self) -> Any:
        """Return the model of these parts."""
        from spanwise.model import Model

        return Model(self.factory, **self.keywords)


def build(config: dict[str, Any], task: Any = None) -> Parts:
    """Return the parts of a resolved config; bad values raise ValueError or TypeError.

    task: the config's task, where it is built already.
    """
    task = build_task(config) if task is None else task
    keywords = {
        **config["model"],
        "vocab_size": task.vocab_size,
        "n_classes": task.n_classes,
        "causal": task.causal,
        "length": config["length"],
        "seed": config["seed"],
    }
    return Parts(task, build_factory(config), keywords)


def build_task(config: dict[str, Any]) -> Any:
    """Return the config's task at its length and seed."""
    return _instantiate(config, "task", length=config["length"], seed=config["seed"])


def build_factory(config: dict[str, Any]) -> Any:
    """Return what makes one layer of the config's variant from the model's keywords."""
    return _instantiate(config, "variant", _partial_=True)


def _instantiate(config: dict[str, Any], group: str, **keywords: Any) -> Any:
    target = config[group].get("_target_")
    if not isinstance(target, str):
        raise ConfigError(f"{group}: its config names no class (_target_)")
    try:
        return instantiate(config[group], _convert_="all", **keywords)
    except InstantiationException as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, ImportError | AttributeError) or cause is error:
            raise ConfigError(f"{group}._target_: no class '{target}' ({cause})") from error
        raise cause from error


def accuracy(payload: dict[str, Any]) -> dict[str, Any]:
    """Train the cell's model on its task; return its part of the record."""
    from spanwise.reach import ceiling_columns
    from spanwise.train import train

    config = payload["config"]
    torch.set_num_threads(payload["threads"])
    parts = build(config)
    model = parts.model()
    described = _describe(parts, model, config)
    row, detail = train(
        model,
        parts.task,
        **config["train"],
        seed=config["seed"],
        device=config["device"],
        dtype=config["dtype"],
    )
    row |= described["row"] | ceiling_columns(model, parts.task, row["accuracy"])
    found, tables = _probe(config, parts, model, trained=True)
    return {
        **described,
        "row": row | found,
        "detail": {"train": detail, **tables},
    }


def probe(payload: dict[str, Any]) -> dict[str, Any]:
    """Run the cell's probes on its model as it starts; return its part of the record."""
    config = payload["config"]
    torch.set_num_threads(payload["threads"])
    parts = build(config)
    model = parts.model().to(config["device"])
    described = _describe(parts, model, config)
    found, tables = _probe(config, parts, model, trained=False)
    return {**described, "row": described["row"] | found, "detail": tables}


def _probe(
    config: dict[str, Any], parts: Parts, model: Any, trained: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    from spanwise import probes

    subject = probes.Subject(config, parts.task, parts.factory, parts.keywords, model, trained)
    return probes.run(subject)


def cost(payload: dict[str, Any]) -> dict[str, Any]:
    """Measure time and memory of the cell's variant; return its part of the record."""
    from spanwise.cost import measure

    config = payload["config"]
    torch.set_num_threads(payload["threads"])
    parts = build(config)
    with torch.device("meta"):
        model = parts.model()
    described = _describe(parts, model, config)
    keywords = {k: v for k, v in parts.keywords.items() if k not in ("length", "seed")}
    row, detail = measure(
        parts.factory,
        **config["cost"],
        **keywords,
        length=config["length"],
        device=config["device"],
        dtype=config["dtype"],
        threads=payload["threads"],
        seed=config["seed"],
    )
    return {**described, "row": described["row"] | row, "detail": {"cost": detail}}


def _describe(parts: Parts, model: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Return what the record says of the variant and the task beside what is measured."""
    from spanwise.model import display, n_params

    length = config["length"]
    layer = model.layers[0] if model.period == 1 else parts.factory()
    task = type(parts.task)
    return {
        "row": {"n_params": n_params(model), "keys_per_query": model.keys_per_query(length)},
        "display": {
            "variant": {**display(parts.factory), "describe": layer.describe()},
            "task": {"label": getattr(task, "label", ""), "chance": parts.task.chance},
        },
        "visibility": _picture(model, length, parts.task.causal),
    }


def _picture(model: Any, length: int, causal: bool) -> dict[str, Any] | None:
    """Return who sees whom at the least length that shows the restriction, thinned to few rows."""

    def restricted(length: int) -> bool:
        seen = model.keys_per_query(length)
        return seen is not None and seen < 0.75 * ((length + 1) / 2 if causal else length)

    span = min(length, PICTURE_ROWS)
    while restricted(length) and not restricted(span) and 2 * span <= min(length, PICTURE_SPAN):
        span *= 2
    step = -(-span // PICTURE_ROWS)
    pictures = model.visibility(span)
    if all(picture is None for picture in pictures):
        return None
    layers = [None if picture is None else _rows(picture[::step, ::step]) for picture in pictures]
    return {"span": span, "layers": layers}


def _rows(picture: torch.Tensor) -> list[str]:
    return ["".join("1" if seen else "0" for seen in row) for row in picture.tolist()]
