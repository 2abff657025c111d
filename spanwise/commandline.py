"""What the command line may say that Hydra's own grammar refuses."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra._internal.utils import get_args_parser

from spanwise.errors import ConfigError

_PIECE = re.compile(
    r"""(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<word>[^\s,\[\]{}()'"=:]+)"""
)


def arranged(arguments: Sequence[str]) -> list[str]:
    """Return the command line with its flags before its overrides, each `quoted`.

    Hydra refuses ``study=mine -m seed=0,1``, in which a flag stands between two overrides.
    """
    overrides = [text for text in arguments if "=" in text and not text.startswith("-")]
    flags = [text for text in arguments if "=" not in text or text.startswith("-")]
    return [*flags, *map(quoted, overrides)]


def check_flags(arguments: Sequence[str]) -> None:
    """Raise ConfigError for flags that Hydra does not have, in one line instead of its usage."""
    parser = get_args_parser()

    def refuse(message: str) -> None:
        raise ConfigError(message)

    setattr(parser, "error", refuse)  # noqa: B010  (mypy refuses to assign a method)
    parser.parse_args(list(arguments))


def quoted(argument: str) -> str:
    """Return a command-line argument with its words of other alphabets put in quotes.

    Hydra reads ``walkthrough.tokens=[猫,追]`` only as ``walkthrough.tokens=["猫","追"]``. What is
    quoted already, and every argument in ASCII, stays as it is.
    """
    key, equals, value = argument.partition("=")
    if not equals or value.isascii():
        return argument

    def one(piece: re.Match[str]) -> str:
        word = piece["word"]
        return f'"{word}"' if word and not word.isascii() else piece[0]

    return f"{key}={_PIECE.sub(one, value)}"
