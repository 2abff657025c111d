"""The one way that bad input reaches a user: one line, then exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """Bad input from a user: a key, a value or a file.

    The message is one line that says what is wrong, where, what is allowed and, where there is
    one, the nearest match. The runner prints it and exits with code 2.
    """


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest of ``allowed``, or an empty string."""
    close = difflib.get_close_matches(str(name), [str(a) for a in allowed], n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""


def one_line(text: str) -> str:
    """Return the first telling line of ``text``, at most 500 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:500] if lines else ""
