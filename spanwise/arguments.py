"""Arguments that come from a config: are their names known, and their types right?

The signature of the function that takes them is the only list of what is allowed.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from hydra.utils import get_object

from spanwise.errors import ConfigError, nearest

GIVEN = frozenset(("length", "seed", "device", "dtype", "threads", "progress"))
"""Arguments of training and measuring that the cell itself gives, not a config group."""


@dataclass(frozen=True)
class AtLeast:
    """The least that a number may be: ``Annotated[int, AtLeast(1)]``."""

    least: float


@dataclass(frozen=True)
class Below:
    """What a whole number stays below, by name: ``Annotated[int, Below("vocab_size")]``.

    The name is a setting of the cell's task, or its ``vocab_size``; where there is no such
    number, any will do.
    """

    name: str


@dataclass(frozen=True)
class NotEmpty:
    """A list has at least one item: ``Annotated[list[int], NotEmpty()]``."""


Known = Mapping[str, Any]
"""What the names of `Below` stand for."""


def check_arguments(
    function: Callable[..., Any], given: dict[str, Any], where: str, known: Known | None = None
) -> None:
    """Raise ConfigError for a name that ``function`` has not, one it lacks, or a wrong value.

    What `GIVEN` names is not the config's to give. A parameter without annotation, or with one
    that is no plain type, takes anything. known: see `Below`.
    """
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind == parameter.KEYWORD_ONLY and name not in GIVEN
    }
    for name in given:
        if name not in parameters:
            allowed = ", ".join(sorted(parameters)) or "none"
            raise ConfigError(
                f"{where}.{name}: no such key; allowed: {allowed}." + nearest(name, parameters)
            )
    check_types(function, given, where, known)
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in given:
            hint = typing.get_type_hints(function, include_extras=True).get(name)
            allowed = "" if hint is None else f"; allowed: {spoken(hint, known)}"
            raise ConfigError(f"{where}.{name}: a value is needed{allowed}")


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


def check_types(
    function: Callable[..., Any], given: dict[str, Any], where: str, known: Known | None = None
) -> None:
    """Raise ConfigError for a value in ``given`` of another type than ``function`` declares."""
    hints = typing.get_type_hints(function, include_extras=True)
    for name, value in given.items():
        if name in hints and not fits(value, hints[name], known):
            raise ConfigError(
                f"{where}.{name}: found {value!r}; allowed: {spoken(hints[name], known)}"
            )


def fits(value: Any, hint: Any, known: Known | None = None) -> bool:
    """Return whether ``value``, as read from YAML, is of the type ``hint`` and in its bounds."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return fits(value, inner[0], known) and all(
            _keeps(value, bound, known or {}) for bound in inner[1:]
        )
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one, known) for one in inner)
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
    if origin in _TABLES:
        return isinstance(value, Mapping)
    if origin in _LISTS:
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and Ellipsis not in inner and len(value) != len(inner):
            return False
        return all(fits(item, inner[0], known) for item in value) if inner else True
    return True


_LISTS = (
    tuple, list, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable,
)  # fmt: skip
_TABLES = (dict, collections.abc.Mapping)


def _keeps(value: Any, bound: Any, known: Known) -> bool:
    """Return whether ``value``, of the right type, keeps to ``bound``."""
    if isinstance(bound, AtLeast):
        return bool(value >= bound.least)
    if isinstance(bound, Below):
        limit = _limit(bound, known)
        return limit is None or value < limit
    return bool(value) if isinstance(bound, NotEmpty) else True


def _limit(bound: Below, known: Known) -> int | None:
    limit = known.get(bound.name)
    return limit if fits(limit, int) else None


def spoken(hint: Any, known: Known | None = None, plural: bool = False) -> str:
    """Return the type ``hint`` in the words of a user, of one value or of several."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded(inner[0], inner[1:], known or {}, plural)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(spoken(one, known, plural) for one in inner)
    if origin is typing.Literal:
        return ", ".join(str(one) for one in inner)
    one, several = _WORDS.get(hint) or _WORDS.get(origin) or (str(hint), str(hint))
    if origin in _LISTS and inner and inner[0] is not Any:
        of = f" of {spoken(inner[0], known, plural=True)}"
        one, several = one + of, several + of
    return several if plural else one


_WORDS: dict[Any, tuple[str, str]] = {
    float: ("a number", "numbers"),
    int: ("a whole number", "whole numbers"),
    str: ("a text", "texts"),
    bool: ("true or false", "true or false"),
    type(None): ("null", "null"),
    **dict.fromkeys(_LISTS, ("a list", "lists")),
    **dict.fromkeys(_TABLES, ("a table of settings", "tables of settings")),
}


def _bounded(hint: Any, bounds: tuple[Any, ...], known: Known, plural: bool) -> str:
    """Return ``hint`` with its bounds in words: ``a whole number from 0 to 99``."""
    text = spoken(hint, known, plural)
    least = max((b.least for b in bounds if isinstance(b, AtLeast)), default=None)
    limits = [_limit(b, known) for b in bounds if isinstance(b, Below)]
    limit = min((n for n in limits if n is not None), default=None)
    if least is not None and limit is not None:
        text += f" from {least} to {limit - 1}"
    elif least is not None:
        text += f" of at least {least}"
    elif limit is not None:
        text += f" below {limit}"
    if any(isinstance(b, NotEmpty) for b in bounds):
        kind, of, items = text.partition(" of ")
        text = f"{kind} of one or more {items}" if of else f"{kind}, not empty"
    return text
