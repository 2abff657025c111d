"""What is run to measure a variant: its op, its layer, or a model's training step.

Inputs are random normal and gradients flow to inputs and parameters alike: zeros, or a gradient
that nothing asks for, would be computed faster than real work.

Shape suffixes: B batch, L sequence length, H heads, D head_dim, M d_model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spanwise.errors import ConfigError, nearest
from spanwise.model import Model, build_layer
from spanwise.operations import Operations, of_layer, of_model
from spanwise.seeds import torch_generator
from variants.stack import stack_of

SCOPES = ("op", "layer", "model")
Work = Callable[[], object]


@dataclass
class Part:
    """One module and how to run it: ``forward`` gives what ``backward`` starts from.

    ``alive``: tensors that live before either runs: parameters and inputs. ``finish`` ends a
    training step (the optimiser), if anything does.
    """

    module: nn.Module
    forward: Callable[[], Tensor]
    backward: Callable[[Tensor], object]
    alive: list[Tensor]
    finish: Work | None = None
    state: Callable[[], list[Tensor]] = list

    def infer(self) -> Tensor:
        """Run a forward pass that nobody will differentiate."""
        if self.module.training:
            self.module.eval()
        with torch.no_grad():
            return self.forward()

    def train(self) -> None:
        """Run forward and backward, from no gradients to fresh ones, and the optimiser."""
        if not self.module.training:
            self.module.train()
        self.drop_gradients()
        self.backward(self.forward())
        if self.finish is not None:
            self.finish()

    def drop_gradients(self) -> None:
        """Forget every gradient."""
        for tensor in self.alive:
            tensor.grad = None

    def parameters(self) -> list[Tensor]:
        """Return the module's parameters."""
        return list(self.module.parameters())


@dataclass
class Workload:
    """Parts that are measured together; figures are the mean over them.

    More than one part where a stack's pattern has more than one layer.
    """

    parts: list[Part]
    operations: Operations | None = field(default=None)
    trains: bool = True
    """False where a layer has no backward pass on this device."""

    def infer(self) -> None:
        """Run every part's forward pass."""
        for part in self.parts:
            part.infer()

    def train(self) -> None:
        """Run every part's forward and backward pass."""
        for part in self.parts:
            part.train()


def build_workload(
    variant: Any,
    scope: str,
    *,
    length: int,
    batch: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    **model: Any,
) -> Workload:
    """Return what to run for ``variant`` at ``scope``; ``model`` are the model's keywords.

    Raises ConfigError for a scope that is not known or that the variant has not.
    """
    if scope not in SCOPES:
        raise ConfigError(
            f"scope: found {scope!r}; allowed: {', '.join(SCOPES)}.{nearest(scope, SCOPES)}"
        )

    def normal(*shape: int, name: str) -> Tensor:
        drawn = torch.randn(*shape, generator=torch_generator(seed, "cost", name))
        return drawn.to(device, dtype)

    if scope == "model":
        return _model(variant, length, batch, seed, device, dtype, model)
    x_BLM = normal(batch, length, model["d_model"], name="x")
    parts, operations = [], []
    for index in range(stack_of(variant).period):
        layer = build_layer(variant, index, seed=seed, **layer_keywords(model)).to(device, dtype)
        parts.append((_op if scope == "op" else _layer)(layer, x_BLM, normal))
        operations.append(of_layer(layer, scope, length, batch))
    layers = [part.module for part in parts]
    return Workload(parts, Operations.mean(operations), _train(layers, device))


def _train(layers: list[Any], device: torch.device) -> bool:
    return device.type != "cpu" or all(layer.trains_on_cpu for layer in layers)


def layer_keywords(model: dict[str, Any]) -> dict[str, Any]:
    """Return those of the model's keywords that a layer is built from."""
    names = ("d_model", "n_heads", "causal", "positions", "dropout", "scale", "kv_heads")
    return {name: model[name] for name in names if model.get(name) is not None}


def _layer(layer: nn.Module, x_BLM: Tensor, normal: Callable[..., Tensor]) -> Part:
    x_BLM = x_BLM.clone().requires_grad_()
    gradient = normal(*x_BLM.shape, name="gradient")

    def forward() -> Tensor:
        y_BLM = layer(x_BLM)
        if y_BLM.shape != x_BLM.shape:
            raise ValueError(
                f"forward: returned a shape of {tuple(y_BLM.shape)}; "
                f"allowed: the input's, {tuple(x_BLM.shape)}"
            )
        return y_BLM

    return Part(
        layer, forward, lambda y: y.backward(gradient), [*layer.parameters(), x_BLM, gradient]
    )


def _op(layer: Any, x_BLM: Tensor, normal: Callable[..., Tensor]) -> Part:
    if not (hasattr(layer, "project") and hasattr(layer, "attend")):
        raise ConfigError(
            f"scope: found op, but {type(layer).__name__} has no attention to measure alone; "
            "allowed: layer, model"
        )
    with torch.no_grad():
        projected = layer.project(x_BLM)
    # Leaves of their own, laid out as the projections lay them out.
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in projected)
    gradient = normal(*v.shape[:2], *q.shape[2:3], v.shape[3], name="gradient")

    def forward() -> Tensor:
        return layer.attend(q, k, v, None)

    # Only q, k and v: the projections' parameters take no part.
    return Part(layer, forward, lambda y: y.backward(gradient), [q, k, v, gradient])


def _model(
    variant: Any,
    length: int,
    batch: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    keywords: dict[str, Any],
) -> Workload:
    model = Model(variant, length=length, seed=seed, **keywords).to(device, dtype)
    generator = torch_generator(seed, "cost", "tokens")
    tokens_BL, targets_BL = (
        torch.randint(keywords[name], (batch, length), generator=generator).to(device)
        for name in ("vocab_size", "n_classes")
    )
    # Small steps: the weights must not run away while the same batch is learned again and again.
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def backward(logits: Tensor) -> None:
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets_BL.flatten())
        loss.backward()

    def state() -> list[Tensor]:
        kept = (value for one in optimiser.state.values() for value in one.values())
        return [value for value in kept if isinstance(value, Tensor)]

    part = Part(
        model,
        lambda: model(tokens_BL),
        backward,
        [*model.parameters(), tokens_BL, targets_BL],
        optimiser.step,
        state,
    )
    operations = of_model(model, length, batch)
    return Workload([part], operations, _train(model.layers, device))
