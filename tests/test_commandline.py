"""Words of other alphabets reach Hydra as what they are."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from spanwise.commandline import quoted


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("a=[猫,追,狗]", ["猫", "追", "狗"]),
        ("a=['猫,x',追]", ["猫,x", "追"]),
        ("a=[the, Straße ,𪛖]", ["the", "Straße", "𪛖"]),
        ("a=/daten/größe/文.txt", "/daten/größe/文.txt"),
        ("a=[1,2.5,true,null]", [1, 2.5, True, None]),
        ("a='x y'", "x y"),
    ],
)
def test_hydra_reads_what_was_meant(argument, value):
    assert OverridesParser.create().parse_override(quoted(argument)).value() == value


@pytest.mark.parametrize("argument", ["--help", "-m", "a=1,2", "+a.b=[x,y]", "猫", 'a="猫"'])
def test_nothing_else_is_touched(argument):
    assert quoted(argument) == argument
