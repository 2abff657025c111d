"""A pattern of layers: any mix of variants, stacked in one model."""

from __future__ import annotations

from typing import Any, ClassVar

from variants.parameters import described, own_parameters


class Stack:
    """A pattern of layers that a model repeats: layer i is ``layers[i % period]``.

    ``layers``: a list, or a mapping whose order counts, of variants: configs with their
    ``_target_`` (pass them as they are: ``_recursive_: false``) or callables that take the
    model's keywords. A stack among them contributes its whole pattern.
    """

    label: ClassVar[str] = "Stack"
    colour: ClassVar[str] = "#999999"
    paper: ClassVar[str] = ""

    def __init__(self, layers: Any):
        found = list(layers.values()) if hasattr(layers, "values") else list(layers)
        if not found:
            raise ValueError("layers: found none; allowed: one variant or more")
        self.layers: list[Any] = []
        for given in found:
            factory = as_factory(given)
            self.layers += stack_of(factory).layers if is_stack(factory) else [factory]

    @property
    def period(self) -> int:
        """Return the number of layers after which the pattern repeats."""
        return len(self.layers)

    def layer(self, index: int) -> Any:
        """Return the factory of layer ``index``: call it with the model's keywords."""
        return self.layers[index % self.period]

    def own_parameters(self) -> dict[str, Any]:
        """Return the arguments of the stack's own constructor that are plain values."""
        return own_parameters(self, shared=Stack)

    def describe(self) -> str:
        """Return the label with the stack's own parameters, for legends."""
        return described(self.label, self.own_parameters())


def as_factory(variant: Any) -> Any:
    """Return what builds a layer from the model's keywords: a callable, or made from a config."""
    if callable(variant):
        return variant
    from hydra.utils import instantiate

    return instantiate(variant, _partial_=True)


def is_stack(factory: Any) -> bool:
    """Return whether the factory (a class or a partial of one) makes a pattern of layers."""
    made = getattr(factory, "func", factory)
    return isinstance(made, Stack) or (isinstance(made, type) and issubclass(made, Stack))


def stack_of(factory: Any) -> Stack:
    """Return the pattern of layers behind a factory; of one layer where it is a variant."""
    if isinstance(factory, Stack):
        return factory
    return factory() if is_stack(factory) else Stack([factory])
