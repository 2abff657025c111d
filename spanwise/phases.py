"""What a cell does in its own process: build its parts, train them, measure them.

Every function here takes and returns plain data (see `spanwise.isolation`), so that it can run in
a forked process, and imports torch, which the rest of the runner's path does without.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from spanwise.errors import ConfigError, nearest

PICTURE_LENGTH = 64
"""Length at which a variant's visibility is drawn into its record."""
GIVEN = frozenset(("length", "seed", "device", "dtype", "threads", "progress"))
"""Arguments of training and measuring that the cell itself gives, not a config group."""


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


def build(config: dict[str, Any]) -> Parts:
    """Return the parts of a resolved config; bad values raise ValueError or TypeError."""
    task = build_task(config)
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
    pictures = model.visibility(min(length, PICTURE_LENGTH))
    layer = model.layers[0] if model.period == 1 else parts.factory()
    task = type(parts.task)
    return {
        "row": {"n_params": n_params(model), "keys_per_query": model.keys_per_query(length)},
        "display": {
            "variant": {**display(parts.factory), "describe": layer.describe()},
            "task": {"label": getattr(task, "label", ""), "chance": parts.task.chance},
        },
        "visibility": None
        if all(picture is None for picture in pictures)
        else [None if picture is None else _rows(picture) for picture in pictures],
    }


def _rows(picture: torch.Tensor) -> list[str]:
    return ["".join("1" if seen else "0" for seen in row) for row in picture.tolist()]


def check(payload: dict[str, Any]) -> list[str]:
    """Return, for each config in ``payload["configs"]``, what is wrong with it, or an empty text.

    Everything is built as the cell would build it, the model without memory for its weights;
    nothing is trained or measured. An exception that is not of a bad value is no answer of this
    check: the cell itself will end with it.
    """
    devices: dict[str, str] = {}
    answers = []
    for config in payload["configs"]:
        device = config["device"]
        if device not in devices:
            devices[device] = _wrong_device(device)
        answers.append(devices[device] or _wrong_with(config))
    return answers


def _wrong_with(config: dict[str, Any]) -> str:
    from spanwise import probes
    from spanwise.cost import measure
    from spanwise.train import check_settings, train

    measured = config["measure"]
    group = "variant"
    try:
        if measured in ("accuracy", "both"):
            check_arguments(train, config["train"], "train")
            check_settings(**config["train"], dtype=config["dtype"])
        if measured in ("cost", "both"):
            check_arguments(measure, config["cost"], "cost")
        for name, (function, options) in probes.named(config["probes"]).items():
            check_arguments(function, options, f"probes.{name}")
        for group in ("variant", "task"):
            build_factory(config) if group == "variant" else build_task(config)
        group = "model"
        parts = build(config)
        with torch.device("meta"):
            parts.model()
    except ConfigError as error:
        return _placed(str(error), config, group)
    except (ValueError, TypeError) as error:
        if group == "model":
            group = "variant"
        return _placed(str(error), config, group)
    except Exception:
        return ""
    return ""


def _placed(message: str, config: dict[str, Any], group: str) -> str:
    """Return ``message``, led by where its key stands in the config."""
    head = message.partition(":")[0]
    for name in (group, "variant", "task", "model"):
        if isinstance(config.get(name), dict) and head in config[name]:
            return f"{name}.{message}"
    if head.partition(".")[0] in config:
        return message
    return f"{group}: {message}"


def _wrong_device(name: str) -> str:
    try:
        device = torch.device(name)
    except RuntimeError:
        return f"device: found {name!r}; allowed: cpu, cuda, cuda:0 ..."
    if device.type == "cpu":
        return ""
    if device.type != "cuda":
        return f"device: found {name!r}; allowed: cpu, cuda"
    if not torch.cuda.is_available():
        return f"device: found {name!r}, but this machine or this torch has no CUDA; allowed: cpu"
    if (device.index or 0) >= torch.cuda.device_count():
        return f"device: found {name!r}; allowed: cuda:0 to cuda:{torch.cuda.device_count() - 1}"
    return ""


def check_arguments(function: Callable[..., Any], given: dict[str, Any], where: str) -> None:
    """Raise ConfigError for a name in ``given`` that ``function`` has not, or a wrong type.

    What `GIVEN` names is not the config's to give. A parameter without annotation, or with one
    that is no plain type, takes anything.
    """
    parameters = inspect.signature(function).parameters
    hints = typing.get_type_hints(function)
    allowed = [
        name
        for name, parameter in parameters.items()
        if parameter.kind == parameter.KEYWORD_ONLY and name not in GIVEN
    ]
    for name, value in given.items():
        if name not in allowed:
            raise ConfigError(
                f"{where}.{name}: no such key; allowed: {', '.join(sorted(allowed))}."
                + nearest(name, allowed)
            )
        if name in hints and not fits(value, hints[name]):
            raise ConfigError(f"{where}.{name}: found {value!r}; allowed: {spoken(hints[name])}")


def fits(value: Any, hint: Any) -> bool:
    """Return whether ``value``, as read from YAML, is of the type ``hint``."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (str, bool):
        return isinstance(value, hint)
    if hint is type(None):
        return value is None
    if origin in (tuple, list) or str(origin).startswith("<class 'collections.abc."):
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and Ellipsis not in inner and len(value) != len(inner):
            return False
        return all(fits(item, inner[0]) for item in value) if inner else True
    return True


def spoken(hint: Any) -> str:
    """Return the type ``hint`` in the words of a user."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(spoken(one) for one in inner)
    if origin is typing.Literal:
        return ", ".join(str(one) for one in inner)
    if origin in (tuple, list):
        return f"a list of {spoken(inner[0])}" if inner else "a list"
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    return "null" if hint is type(None) else names.get(hint, str(hint))
