"""Possibly and definitely on the relevant events only, compared with the definitions; broken projections are
noticed.
"""

import random

import msgspec
import pytest
from bench.causality.lattice_traces import strangers
from tests.causality.small_conditions import World, random_condition, trace_of_values, wrong_answers
from tests.causality.small_lattices import wrong_pairs, wrong_slices
from tests.causality.test_lattice_mutants import kernels_with, mutant

from strobe.causality.lattice import compiled as compiling
from strobe.causality.lattice import definitely, detection, pairs, parts, paths, possibly, projection
from strobe.causality.lattice.parts import Table
from strobe.causality.lattice.projection import Projection
from strobe.causality.lattice.run import TraceRun
from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Internal, Receive, Send

SEEDS = range(2000)
FEWER = range(100)


def test_answers_and_witnesses_are_those_of_the_definitions() -> None:
    assert not list(wrong_answers(SEEDS))


def test_the_search_by_levels_agrees_with_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "_DIVE_CUTS_MAX", 0)
    assert not list(wrong_answers(FEWER))


def test_compiled_kernels_agree_with_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_loaded", lambda: True)
    assert not list(wrong_answers(FEWER))


def test_conditions_not_split_into_terms_agree_with_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "TERMS_MAX", 1)
    assert not list(wrong_answers(FEWER))


def test_alternatives_searched_together_agree_with_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "APART_MAX", 0)
    assert not list(wrong_answers(FEWER))


def test_comparisons_without_sweep_agree_with_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "is_pair", lambda _part: False)
    assert not list(wrong_answers(FEWER))


def test_comparisons_beyond_the_sweep_limit_agree_with_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "_SWEPT_EVENTS_MAX", 0)
    assert not list(wrong_answers(FEWER))


def test_a_sweep_finds_a_pair_exactly_if_there_is_one() -> None:
    assert not list(wrong_pairs(pairs))


def test_a_comparison_of_two_processes_examines_no_cut() -> None:
    trace = strangers(2, 2000)
    found = possibly(trace, "events(p0) > events(p1) * 2 + 1998 and events(p0) < 2000", cuts_max=1)
    assert (found.answer, found.method, found.cut) == (True, "sweep", {"p0": 1999, "p1": 0})
    found = possibly(trace, "events(p0) == events(p1) + 2001 or events(p1) > events(p0) + 2000", cuts_max=1)
    assert (found.answer, found.method, found.examined) == (False, "sweep", 0)


def test_a_conjunction_with_an_impossible_comparison_examines_no_cut() -> None:
    condition = "events(p0) + events(p1) > events(p2) and events(p2) > events(p3) + 60"
    found = possibly(strangers(4, 60), condition, cuts_max=1)
    assert (found.answer, found.method, found.examined) == (False, "sweep", 0)


def test_many_alternatives_examine_each_cut_once() -> None:
    trace = strangers(3, 9)
    condition = " or ".join(f"events(p0) + events(p1) == {number}" for number in range(19, 1600))
    found = possibly(trace, condition)
    assert (found.answer, found.examined) == (False, 10**2)
    found = definitely(trace, f"{condition} or events(p0) + events(p1) == 18")
    assert (found.answer, found.cut) == (True, {"p0": 9, "p1": 9, "p2": 0})


def test_only_states_in_which_the_local_parts_hold_are_searched() -> None:
    local = "events(p0) % 5 == 4 and events(p1) > 7 and events(p2) == 3"
    found = possibly(strangers(4, 9), f"{local} and events(p0) + events(p1) == events(p2)")
    assert (found.answer, found.examined) == (False, 2 * 2 * 1)


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("events(p0) > 2 and events(p0) != events(p1) and events(p1) == 3", False),  # p1 may be done before p0 begins
        ("events(p0) != events(p1) or events(p0) >= 0", True),
        ("(events(p0) == 1 or events(p1) == 1) and (events(p0) == 1 or events(p1) == 2)", True),
    ],
)
def test_definitely_is_decided_by_its_local_parts(condition: str, answer: bool) -> None:
    found = definitely(strangers(3, 4), condition)
    assert (found.answer, found.method, found.examined) == (answer, "conjunctive", 0)


@pytest.mark.parametrize("ask", [possibly, definitely])
def test_no_answer_depends_on_the_order_of_processes(ask) -> None:
    for seed in FEWER:
        chosen = random.Random(seed)
        trace = trace_of_values(chosen)
        condition = random_condition(chosen, World(trace))
        turned = msgspec.structs.replace(trace.header, processes=trace.processes[::-1])
        found, other = ask(trace, condition), ask(Trace(turned, list(trace.lines())), condition)
        assert (found.answer, found.cut, found.examined) == (other.answer, other.cut, other.examined), (seed, condition)


def noticed() -> bool:
    """Return whether the comparison with the definitions finds a difference."""
    try:
        return next(wrong_answers(SEEDS), None) is not None
    except (AssertionError, IndexError):
        return True


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        (
            "bisect_right(of, row[other]) - 1",
            "bisect_right(of, row[other]) - 1 if other == process else 0",
        ),  # no order between processes
        ("bisect_right(of, row[other]) - 1", "max(0, bisect_right(of, row[other]) - 2)"),
        ("bisect_right(of, row[other]) - 1", "min(len(of) - 1, bisect_right(of, row[other]))"),
        ("rows = (run.needs(process, state) for state in own)", "rows = (run.needs(process, 0) for state in own)"),
        (
            "self.run.with_past(cut, process, kept[state])",
            "(*cut[:process], kept[state], *cut[process + 1 :])",
        ),
        ("self.run.with_past(cut, process, kept[state])", "self.run.with_past(cut, process, state)"),
        ("yield self.run.top", "pass"),  # a path that ends before the last cut
        ("self.kept[column][reached[column]])", "self.kept[column][-1])"),
        ("for state in self.kept[column]])", "for state in range(len(self.kept[column]))])"),
    ],
)
def test_a_broken_projection_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str, broken: str) -> None:
    changed = mutant(projection, rule, broken)
    monkeypatch.setattr(detection, "projected", changed.projected)
    monkeypatch.setattr(detection, "sliced", changed.sliced)
    assert noticed()


def test_a_slice_is_the_cuts_at_which_all_local_conditions_hold() -> None:
    assert not list(wrong_slices(projection))


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        (
            "[table[state] for state in kept]",
            "[table[state] or not state for state in kept]",
        ),  # the first state counts as good
        ("np.arange(len(states)), len(states))", "np.arange(len(states)), len(states) - 1)"),
        ("np.searchsorted(places, cuts[of, column])", "np.zeros(len(of))"),
        ("if not all(map(len, members)):", "if False:"),
    ],
)
def test_a_broken_slice_is_noticed(rule: str, broken: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        assert next(wrong_slices(mutant(projection, rule, broken)), None) is None


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("good = following[starts[q] + out[row, q]]", "good = out[row, q]"),
        ("if clocks[starts[q] + good, r] > out[row, r]:", "if False:"),
        ("if out[row, p] < 0 or out[row, p] >= state:", "if True:"),
        ("out[row, p] = state\n", "pass\n"),
    ],
)
def test_a_broken_least_cut_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str, broken: str) -> None:
    monkeypatch.setattr(compiling, "is_loaded", lambda: False)
    monkeypatch.setattr(compiling, "PLAIN", kernels_with(rule, broken))
    with pytest.raises((AssertionError, IndexError)):
        assert next(wrong_slices(projection), None) is None


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("[left.process] <= state:", "[left.process] < state:"),
        ("[left.process] <= state:", "[left.process] <= state + 1:"),
        ("(value, order.needs(left.process, state)[right.process])", "(value, 0)"),
        ("while kept and self._compare(kept[-1][1], value):", "while kept:"),
        ("while kept and self._compare(kept[-1][1], value):", "while False:"),
        ("while kept and kept[0][0] < first:", "while False:"),
        ("return self._texts if isinstance(value, str) else deque()", "return self._texts"),
        ("self._states[_key(value)] = state", "self._states.setdefault(_key(value), state)"),
        ("self._other = self._last", "pass"),
        ("if self._last[1] != _key(value):", "if True:"),
        ("return isinstance(value, bool), value", "return False, value"),
    ],
)
def test_a_broken_sweep_is_noticed(rule: str, broken: str) -> None:
    assert next(wrong_pairs(mutant(pairs, rule, broken)), None) is not None


def test_an_order_that_forgets_messages_through_other_processes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "projected", without_third_processes)
    assert noticed()


def test_a_search_that_forgets_the_first_cut_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = mutant(detection, "if condition.at(run.bottom):", "if False:")
    monkeypatch.setattr(changed, "dive", mutant(paths, "if condition.at(run.bottom):", "if False:").dive)
    monkeypatch.setattr("tests.causality.small_conditions.definitely", changed.definitely)
    assert noticed()


def without_third_processes(run: TraceRun, tables: list[Table]) -> Projection:
    """Return the projection with only the messages sent directly between its processes."""
    tables = list(tables)
    order = projection.projected(run, tables)
    inside = {run.processes[process] for process in order.processes}
    lines = []
    for line in run.trace.lines():
        ends = run.trace.channels[line.channel] if isinstance(line, Send | Receive) else None
        if ends is None or {ends.source, ends.target} <= inside:
            lines.append(line)
        elif isinstance(line, Receive):
            lines.append(Internal(line.process, line.position, payload=line.payload))
    alone = TraceRun(Trace(run.trace.header, lines))
    return Projection(run, order.processes, order.kept, projection.projected(alone, tables).clocks)
