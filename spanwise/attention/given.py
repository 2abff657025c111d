"""What the library's functions are given: a rule, a length, causality; refused where it cannot be.

Each refusal is one line: what was found and what is allowed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spanwise.errors import ConfigError

MOST = 1 << 40  # far beyond any memory, and far below what 64 bits count


def check_rule(sees: Any, causal: Any) -> None:
    """Raise ConfigError where ``sees`` is no function and not None, or ``causal`` no bool."""
    if sees is not None and not callable(sees):
        raise ConfigError(
            f"sees must be a function of query and key positions or None, got {type(sees).__name__}"
        )
    if not isinstance(causal, bool):
        raise ConfigError(f"causal must be True or False, got {causal!r}")


def whole(name: str, value: Any) -> int:
    """Return ``value`` as an int; ConfigError unless it is a whole number from 1 to 2**40.

    True is refused: it would be taken for a length of 1.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1:
        if value > MOST:
            raise ConfigError(f"{name} must be at most {MOST:,}, got {value}")
        return int(value)
    raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
