"""Can a cell be what its config says? Asked of every cell before any of them starts."""

from __future__ import annotations

import json
from typing import Any

import torch

from spanwise.arguments import check_arguments, check_own_arguments, check_types
from spanwise.errors import ConfigError
from spanwise.phases import build, build_factory, build_task


def check(payload: dict[str, Any]) -> list[str]:
    """Return, for each config in ``payload["configs"]``, what is wrong with it, or an empty text.

    Everything is built as the cell would build it, the model without memory for its weights;
    nothing is trained or measured, but a layer that cannot be trusted may make a short run
    (``Variant.rehearse``). An exception that is not of a bad value is no answer of this check: the
    cell itself will end with it.
    """
    devices: dict[str, str] = {}
    tasks: dict[str, Any] = {}
    answers = []
    for config in payload["configs"]:
        device = config["device"]
        if device not in devices:
            devices[device] = _wrong_device(device)
        answers.append(devices[device] or _wrong_with(config, tasks))
    return answers


def _wrong_with(config: dict[str, Any], tasks: dict[str, Any]) -> str:
    """Return what is wrong with ``config``; ``tasks`` holds those that were built before."""
    from spanwise import probes
    from spanwise.cost import check_settings as check_settings_of_cost
    from spanwise.cost import measure
    from spanwise.model import Model
    from spanwise.train import check_settings, train

    measured = config["measure"]
    group = "variant"
    try:
        check_arguments(train, config["train"], "train")
        trained = measured in ("accuracy", "both")
        check_settings(**config["train"], dtype=config["dtype"] if trained else "float32")
        check_arguments(measure, config["cost"], "cost")
        check_settings_of_cost(**config["cost"])
        found = probes.named(config["probes"])
        if measured == "probe" and not found:
            return (
                "probes: found none, but measure=probe needs some; allowed: one or more, as "
                "probes=scores or probes=[path,scores] (action=list shows them)"
            )
        check_own_arguments(config["variant"], "variant")
        build_factory(config)
        group = "task"
        check_own_arguments(config["task"], "task")
        name = json.dumps([config["task"], config["length"]], sort_keys=True, default=str)
        if name not in tasks:
            # A task may read megabytes, and cells of a sweep share it.
            tasks[name] = build_task(config)
        known = {**config["task"], "vocab_size": getattr(tasks[name], "vocab_size", None)}
        for probe, (function, options) in found.items():
            check_arguments(function, options, f"probes.{probe}", known)
        group = "model"
        check_types(Model.__init__, config["model"], "model")
        parts = build(config, tasks[name])
        with torch.device("meta"):
            model = parts.model()
        layers = model.layers
        on_cpu = measured in ("accuracy", "both") and torch.device(config["device"]).type == "cpu"
        for layer in layers if on_cpu else ():
            if not layer.trains_on_cpu:
                return (
                    f"measure: found {measured}, but {type(layer).__name__} has no backward pass "
                    "on the CPU; allowed: cost, or another device"
                )
        for layer in layers[: model.period]:
            layer.rehearse(config["length"], getattr(torch, config["dtype"]))
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
        if isinstance(config.get(name), dict) and head.partition(".")[0] in config[name]:
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
