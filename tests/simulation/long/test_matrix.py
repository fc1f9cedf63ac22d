"""Every broken protocol is caught by exactly the expected checkers, and every checker is needed (P4)."""

import pytest

from strobe.simulation.checkers import all_checkers
from strobe.simulation.matrix import caught_by
from strobe.simulation.mutants.catalog import MUTANTS

SPEC_MUTANTS = {
    "marker-after-message",
    "forgotten-channel",
    "missing-marker",
    "state-recorded-late",
    "reordered-channel",
    "states-without-channels",
    "one-after-another",
    "same-clock-time",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught_by_exactly_the_checkers_expected(mutant):
    assert caught_by(mutant) == set(mutant.caught_by)


def test_every_mutant_of_the_specification_is_there():
    assert {mutant.name for mutant in MUTANTS} >= SPEC_MUTANTS


def test_each_checker_is_the_only_catcher_of_at_least_one_mutant():
    alone = {mutant.caught_by[0] for mutant in MUTANTS if len(mutant.caught_by) == 1}
    assert alone == {checker.name for checker in all_checkers()}
