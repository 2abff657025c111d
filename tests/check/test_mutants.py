"""The checker is checked: each wrong variant is caught by the check that is there for it."""

import pytest

from spanwise.check import check_variant
from tests.mutants import MUTANTS, name_of


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("factory", "check"), MUTANTS.items(), ids=map(name_of, MUTANTS))
def test_a_mutant_is_caught(factory, check):
    (result,) = check_variant(factory, [check])
    assert result.status == "failed", result
    assert result.message
    assert "\n" not in result.message


def test_there_are_enough_mutants_and_each_says_its_fault():
    assert len({name_of(factory) for factory in MUTANTS}) >= 40
    assert all(getattr(factory, "func", factory).__doc__ for factory in MUTANTS)
