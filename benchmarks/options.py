"""The options of the benchmarks: what may be given is checked before anything is measured.

Each ``type`` below refuses a value in one line that says what was found and what is allowed;
`Parser` prints that line and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import psutil
import torch

from spanwise.config import NAME, most_threads
from spanwise.errors import nearest

MOST = 1 << 24
"""No length, head or repetition is asked for beyond: 16 times the longest reach."""


class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the description's lines and shows defaults."""


class Parser(argparse.ArgumentParser):
    """A parser that tells what is wrong in one line, without its usage, and exits with 2."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=Help)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the options; an unknown one is told before the value after it is misread."""
        given = sys.argv[1:] if args is None else list(args)
        known = [text for text in self._option_string_actions if text.startswith("--")]
        for text in given:
            name = text.partition("=")[0]
            if name.startswith("--") and not any(one.startswith(name) for one in known):
                self.error(
                    f"{name}: no such option; allowed: {', '.join(known)}.{nearest(name, known)}"
                )
        return super().parse_args(given, namespace)

    def error(self, message: str) -> NoReturn:
        """Print one line and end with exit code 2."""
        self.exit(2, f"error: {message}\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            _refuse(action, value, [str(one) for one in action.choices])


def _refuse(action: argparse.Action, value: object, allowed: list[str]) -> NoReturn:
    raise argparse.ArgumentError(
        action, f"found {value!r}; allowed: {', '.join(allowed)}.{nearest(str(value), allowed)}"
    )


def at_least(least: int, most: int = MOST) -> Callable[[str], int]:
    """Return the type of whole numbers from ``least`` to ``most``."""

    def whole(text: str) -> int:
        if not re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"found {text!r}; allowed: a whole number from {least} to {most}"
            )
        return int(text)

    return whole


def even(text: str) -> int:
    """Return the number, which must be even and at least 2."""
    number = at_least(2)(text)
    if number % 2:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: an even number of at least 2")
    return number


def threads(text: str) -> int:
    """Return the number of threads, at least 1 and no more than this machine could use."""
    return at_least(1, most_threads())(text)


def number(least: float = 0.0, above: bool = True) -> Callable[[str], float]:
    """Return the type of finite numbers above ``least``, or from it on."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least or (above and value == least):
            words = "above" if above else "of at least"
            raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a number {words} {least:g}")
        return value

    return read


def several(kind: Callable[[str], int]) -> Callable[[str], list[int]]:
    """Return the type of lists such as 1024,8192."""
    return lambda text: [kind(part) for part in text.split(",")]


def name_of(allowed: Iterable[str]) -> Callable[[str], str]:
    """Return the type of one of the ``allowed`` names."""
    known = list(allowed)

    def name(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(
                f"found {text!r}; allowed: {', '.join(known)}.{nearest(text, known)}"
            )
        return text

    return name


def names_of(allowed: Iterable[str]) -> Callable[[str], list[str]]:
    """Return the type of lists of the ``allowed`` names, such as window,chunked."""
    one = name_of(allowed)
    return lambda text: [one(part) for part in text.split(",")]


def device(text: str) -> str:
    """Return the device's name; refused where it is "cuda" and there is none."""
    if text == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(
            "found 'cuda', but this machine or this torch has no CUDA; allowed: cpu"
        )
    return text


def table_name(text: str) -> str:
    """Return the name of a table to keep: no path, since all lie in one folder."""
    if not re.fullmatch(NAME, text):
        raise argparse.ArgumentTypeError(
            f"found {text!r}; allowed: a name of letters, digits, '_', '-' and '.'"
        )
    return text


def check_folder(parser: argparse.ArgumentParser, option: str, folder: Path) -> None:
    """Make the folder; end with one line where it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable.{id(parser)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        parser.error(f"argument {option}: cannot write to {folder} ({error.strerror})")


def check_memory(parser: argparse.ArgumentParser, what: str, needed: float) -> None:
    """End with one line where ``what`` needs more bytes than this machine has."""
    there = psutil.virtual_memory().total
    if needed > there:
        parser.error(
            f"{what}: at least {needed / 2**30:,.0f} GiB needed; allowed: up to the "
            f"{there / 2**30:,.0f} GiB of this machine"
        )
