"""What a function's annotations allow, and how that is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pytest

from spanwise.arguments import AtLeast, Below, NotEmpty, check_arguments, fits, spoken
from spanwise.errors import ConfigError

COUNT = Annotated[int, AtLeast(1)]
TOKEN = Annotated[int, AtLeast(0), Below("vocab_size")]
COUNTS = Annotated[Sequence[COUNT], NotEmpty()]


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (COUNT, [1, 2], [0, -1, True, 1.0, "1", None, [1]]),
        (COUNT | None, [None, 1], [0, "x"]),
        (Annotated[float, AtLeast(0.5)], [0.5, 1], [0.4, float("nan"), True]),
        (Annotated[int, "a remark"], [-1], ["x"]),
        (list[COUNT], [[], [1, 2]], [[1, 0], 1, ["x"]]),
        (COUNTS, [[1], (3, 4)], [[], [0], 7, "12", {"a": 1}]),
        (TOKEN, [0, 9], [-1, 10]),
        (tuple[float, float], [[1, 2.5]], [[1], [1, 2, 3]]),
        (dict[str, Any] | None, [None, {}, {"a": 1}], [3, "a", [1]]),
        (Mapping[str, int], [{}], [[], 3]),
    ],
)
def test_what_fits(hint, good, bad):
    known = {"vocab_size": 10}
    assert [value for value in good if not fits(value, hint, known)] == []
    assert [value for value in bad if fits(value, hint, known)] == []


def test_a_limit_that_nobody_knows_is_none():
    assert fits(10**9, TOKEN)
    assert fits(10**9, TOKEN, {"vocab_size": None})
    assert not fits(-1, TOKEN)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (COUNT, "a whole number of at least 1"),
        (COUNT | None, "a whole number of at least 1 or null"),
        (Sequence[float], "a list of numbers"),
        (list[int], "a list of whole numbers"),
        (list[COUNT], "a list of whole numbers of at least 1"),
        (COUNTS, "a list of one or more whole numbers of at least 1"),
        (list[TOKEN], "a list of whole numbers from 0 to 9"),
        (list[list[str]], "a list of lists of texts"),
        (list[Any] | dict[str, str] | None, "a list or a table of settings or null"),
        (Annotated[list[Any], NotEmpty()], "a list, not empty"),
    ],
)
def test_what_is_said(hint, words):
    assert spoken(hint, {"vocab_size": 10}) == words


def probe(subject: object, *, at: COUNTS, batch: COUNT = 1) -> None:
    """Take options as a probe does."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "p.at: a value is needed; allowed: a list of one or more whole numbers of at least 1"),
        ({"at": [1], "batch": 0}, "p.batch: found 0; allowed: a whole number of at least 1"),
        ({"at": [1], "bach": 2}, "p.bach: no such key; allowed: at, batch. Did you mean 'batch'?"),
    ],
)
def test_arguments_are_checked_against_the_signature(given, message):
    with pytest.raises(ConfigError) as caught:
        check_arguments(probe, given, "p")
    assert str(caught.value) == message
    check_arguments(probe, {"at": [1]}, "p")
