"""G3: possibly and definitely over the lattice of consistent cuts: fast for conjunctions, undecided at a limit."""

from bench.causality.lattice_traces import payload_of, replicated_log, strangers
from tests.causality.small_lattices import (
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
from strobe.causality.lattice.run import TraceRun
from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Internal, header_of
from strobe.protocol.values.view import View


def test_M3_the_lattice_is_exactly_the_consistent_cuts() -> None:
    assert not list(wrong_walks())


def test_G3_definitely_fails_exactly_if_a_path_avoids_the_condition() -> None:
    assert not list(wrong_levels())


def test_G3_conjunctions_are_decided_as_the_whole_lattice_decides_them() -> None:
    assert not list(wrong_conjunctions(conjunctive))


def test_G3_possibly_gives_a_cut_at_which_the_condition_holds() -> None:
    run = TraceRun(random_trace(7))
    found = possibly(run.trace, "in_flight() == 2 and events(a) > 0")
    assert found.cut is not None
    assert tuple(found.cut.values()) in all_states(run)
    assert found.values == {"in_flight()": 2, "events(a)": found.cut["a"]}


def test_G3_the_path_that_avoids_a_condition_is_valid() -> None:
    run = TraceRun(random_trace(7))
    cuts = all_states(run)
    good = OneOf({cut for cut in cuts if cut[0] == 1 and cut[1] == 1}).good
    found = definitely(run.trace, "events(a) == 1 and events(b) == 1")
    assert found.answer == (not avoidable(run, cuts, good))
    if found.path is not None:
        assert is_way(run, [run.processes.index(event.process) for event in found.path], cuts, good)


def test_G3_a_conjunction_is_decided_if_the_lattice_cannot_be_counted() -> None:
    trace = strangers(50, 100)
    condition = " and ".join(f"events(p{number}) == 50" for number in range(50))
    assert possibly(trace, condition).answer is True
    assert definitely(trace, condition).answer is False


def test_G3_a_condition_on_two_of_many_processes_is_decided_on_these() -> None:
    trace = replicated_log(543)
    assert sum(map(trace.event_count, trace.processes)) == 4_887
    assert possibly(trace, "n1.commit > n2.commit").answer is True
    found = possibly(trace, "n1.commit > n0.commit")
    assert (found.answer, found.stopped_by) == (False, None)
    assert definitely(trace, "n0.commit > n1.commit").answer is True
    assert definitely(trace, "n1.commit > n2.commit").answer is False


def test_G3_answers_do_not_depend_on_the_order_of_processes() -> None:
    names = [f"p{number}" for number in range(12)]
    lines = [Internal(name, at, payload=payload_of(x=at % 2)) for name in names for at in range(1, 21)]
    for processes in (names, names[::-1], names[6:] + names[:6]):
        trace = Trace(header_of(View(1, tuple(processes), ())), lines)
        found = possibly(trace, "p0.x == 1 and p1.x == 0 and p0.x > p1.x")
        assert (found.answer, found.examined) == (True, 1)
        assert found.cut == dict.fromkeys(processes, 0) | {"p0": 1, "p1": 2}
        assert possibly(trace, "p0.x == 1 and p1.x == 0 and p0.x < p1.x").answer is False


def test_G3_a_check_out_of_time_is_undecided_and_gives_its_cut_count() -> None:
    trace = strangers(12, 20)
    assert not count_cuts(trace, 1000).complete
    product = " * ".join(f"events(p{number})" for number in range(12))
    found = possibly(trace, f"{product} == -1", cuts_max=2000)
    assert (found.answer, found.examined) == (None, 2000)
    found = definitely(trace, "events() == 239 or events() == 240", cuts_max=2000)
    assert (found.answer, found.path) == (None, None)
    assert found.examined >= 2000
