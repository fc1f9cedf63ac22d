"""G3: possibly and definitely over the lattice of consistent cuts, quickly for conjunctions, and honestly undecided."""

from tests.unit.causality.small_lattices import (
    OneOf,
    all_states,
    avoidable,
    is_way,
    random_trace,
    wrong_conjunctions,
    wrong_levels,
    wrong_walks,
)

from strobe.causality.lattice import conjunctive, count_cuts, definitely, possibly
from strobe.causality.lattice.run import Run
from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Internal, header_of
from strobe.protocol.view import View


def strangers(count: int, events: int) -> Trace:
    """Processes that never hear of each other: every cut is consistent."""
    names = tuple(f"p{number}" for number in range(count))
    lines = [Internal(name, position) for name in names for position in range(1, events + 1)]
    return Trace(header_of(View(1, names, ())), lines)


def test_M3_the_lattice_is_exactly_the_consistent_cuts() -> None:
    assert not list(wrong_walks())


def test_G3_definitely_fails_exactly_where_a_way_avoids_the_condition_and_shows_it() -> None:
    assert not list(wrong_levels())


def test_G3_conjunctions_are_decided_as_the_whole_lattice_decides_them() -> None:
    assert not list(wrong_conjunctions(conjunctive))


def test_G3_possibly_gives_a_cut_at_which_the_condition_holds() -> None:
    run = Run(random_trace(7))
    found = possibly(run.trace, "in_flight() == 2 and events(a) > 0")
    assert found.cut is not None
    assert tuple(found.cut.values()) in all_states(run)
    assert found.values == {"in_flight()": 2, "events(a)": found.cut["a"]}


def test_G3_an_avoiding_way_is_one() -> None:
    run = Run(random_trace(7))
    cuts = all_states(run)
    good = OneOf({cut for cut in cuts if cut[0] == 1 and cut[1] == 1}).good
    found = definitely(run.trace, "events(a) == 1 and events(b) == 1")
    assert found.answer == (not avoidable(run, cuts, good))
    if found.path is not None:
        assert is_way(run, [run.processes.index(event.process) for event in found.path], cuts, good)


def test_G3_a_conjunction_is_decided_where_the_lattice_is_beyond_counting() -> None:
    trace = strangers(50, 100)
    condition = " and ".join(f"events(p{number}) == 50" for number in range(50))
    assert possibly(trace, condition).answer is True
    assert definitely(trace, condition).answer is False


def test_G3_what_cannot_be_decided_in_time_is_undecided_and_says_after_how_many_cuts() -> None:
    trace = strangers(12, 20)
    assert not count_cuts(trace, 1000).complete
    found = possibly(trace, "events(p0) * events(p11) == 401", cuts_max=2000)
    assert (found.answer, found.examined) == (None, 2000)
    found = definitely(trace, "events() == 239 or events() == 240", cuts_max=2000)
    assert (found.answer, found.path) == (None, None)
    assert found.examined >= 2000
