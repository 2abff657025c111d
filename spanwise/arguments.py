"""Arguments that come from a config: are their names known, and their types right?

The signature of the function that takes them is the only list of what is allowed.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from hydra.utils import get_object

from spanwise.errors import ConfigError, nearest

GIVEN = frozenset(("length", "seed", "device", "dtype", "threads", "progress"))
"""Arguments of training and measuring that the cell itself gives, not a config group."""


def check_arguments(function: Callable[..., Any], given: dict[str, Any], where: str) -> None:
    """Raise ConfigError for a name in ``given`` that ``function`` has not, or a wrong type.

    What `GIVEN` names is not the config's to give. A parameter without annotation, or with one
    that is no plain type, takes anything.
    """
    parameters = inspect.signature(function).parameters
    allowed = [
        name
        for name, parameter in parameters.items()
        if parameter.kind == parameter.KEYWORD_ONLY and name not in GIVEN
    ]
    for name in given:
        if name not in allowed:
            raise ConfigError(
                f"{where}.{name}: no such key; allowed: {', '.join(sorted(allowed))}."
                + nearest(name, allowed)
            )
    check_types(function, given, where)


def check_own_arguments(config: dict[str, Any], where: str) -> None:
    """Raise ConfigError for a value in ``config`` of another type than its class's constructor has.

    What cannot be found or has no annotations is left to what builds it.
    """
    try:
        made = get_object(config["_target_"])
        function = made.__init__ if inspect.isclass(made) else made
        typing.get_type_hints(function)
    except Exception:
        return
    check_types(function, config, where)


def check_types(function: Callable[..., Any], given: dict[str, Any], where: str) -> None:
    """Raise ConfigError for a value in ``given`` of another type than ``function`` declares."""
    hints = typing.get_type_hints(function)
    for name, value in given.items():
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
    if _is_sequence(origin):
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and Ellipsis not in inner and len(value) != len(inner):
            return False
        return all(fits(item, inner[0]) for item in value) if inner else True
    return True


def _is_sequence(origin: Any) -> bool:
    return origin in (tuple, list) or str(origin).startswith("<class 'collections.abc.")


def spoken(hint: Any) -> str:
    """Return the type ``hint`` in the words of a user."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(spoken(one) for one in inner)
    if origin is typing.Literal:
        return ", ".join(str(one) for one in inner)
    if _is_sequence(origin):
        return f"a list of {spoken(inner[0])}" if inner else "a list"
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    return "null" if hint is type(None) else names.get(hint, str(hint))
