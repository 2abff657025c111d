"""A variant's own parameters: checked when it is built, described in legends and tables.

A bad value is a ValueError in one line: the argument, what was found, what is allowed.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

from spanwise.errors import nearest


def own_parameters(built: Any, shared: type) -> dict[str, Any]:
    """Return the constructor arguments of ``built`` that ``shared`` does not have, as set.

    An argument counts where it is kept under its own name, is a plain value, and is not None.
    """
    known = inspect.signature(shared.__init__).parameters  # type: ignore[misc]
    names = [n for n in inspect.signature(type(built).__init__).parameters if n not in known]
    values = {name: getattr(built, name, None) for name in names}
    return {n: v for n, v in values.items() if isinstance(v, (bool, int, float, str))}


def described(label: str, parameters: dict[str, Any]) -> str:
    """Return 'Windowed 32' for one parameter, 'Name a 1, b 2' for several."""
    if len(parameters) < 2:
        return " ".join([label, *(str(value) for value in parameters.values())])
    parts = (f"{name.replace('_', ' ')} {value}" for name, value in parameters.items())
    return f"{label}, {', '.join(parts)}"


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return ``value`` if it is a whole number of at least ``least``, or raise ValueError."""
    allowed = f"a whole number of at least {least}" + ("" if most is None else f", at most {most}")
    fits = isinstance(value, int) and not isinstance(value, bool)
    if not fits or value < least or (most is not None and value > most):
        raise ValueError(f"{name}: found {value!r}; allowed: {allowed}")
    return value


def fraction(name: str, value: Any) -> float:
    """Return ``value`` if it is in [0, 1), or raise ValueError."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < 1:
        raise ValueError(f"{name}: found {value!r}; allowed: a number from 0 to below 1")
    return float(value)


def positive(name: str, value: Any) -> float:
    """Return ``value`` if it is a finite number above 0, or raise ValueError."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (0 < value < math.inf):
        raise ValueError(f"{name}: found {value!r}; allowed: a finite number above 0")
    return float(value)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return ``value`` if it is among ``allowed``, or raise ValueError with the nearest."""
    if value not in allowed:
        hint = nearest(value, allowed)
        raise ValueError(f"{name}: found {value!r}; allowed: {', '.join(allowed)}.{hint}")
    return value
