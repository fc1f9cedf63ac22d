"""The lattice of consistent cuts, compared with the definitions: every cut, and what holds at some or on every path."""

import sys
import tracemalloc
from collections.abc import Callable

import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from tests.causality.lattices import (
    all_cuts,
    conditions,
    conjunctions,
    cuts_along,
    cuts_where,
    is_definite,
    variable_traces,
    wide_traces,
)
from tests.causality.small_lattices import OneOf
from tests.causality.strategies import traces

from strobe.causality.clocks import vector_clocks
from strobe.causality.cuts import is_consistent
from strobe.causality.lattice import compiled as compiling
from strobe.causality.lattice import consistent_cuts, count_cuts, definitely, detection, enumeration, paths, possibly
from strobe.causality.lattice.conditions import Condition
from strobe.causality.lattice.paths import LevelWalk
from strobe.causality.lattice.programs import CompiledCondition, _compiled, _Load
from strobe.causality.lattice.run import TraceRun, clock_table
from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Internal, Receive, Record, Send, TraceStart, header_of
from strobe.errors import MissingExtra, UsageError
from strobe.expressions.values import Value
from strobe.protocol.values.view import ChannelSpec, View


@pytest.fixture(params=["plain", "compiled"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with the plain kernels, or with compiled ones from the first cut on."""
    monkeypatch.setattr(compiling, "is_loaded", lambda: request.param == "compiled")
    return str(request.param)


def grid(width: int, length: int) -> Trace:
    """Processes without messages between them: every cut is consistent."""
    names = tuple(f"p{number}" for number in range(width))
    lines = [Internal(name, position) for name in names for position in range(1, length + 1)]
    return Trace(header_of(View(1, names, ())), lines)


@pytest.mark.usefixtures("kernels")
class TestEnumeration:
    @settings(max_examples=20)
    @given(traces() | wide_traces())
    def test_every_consistent_cut_comes_once_and_in_lexical_order(self, trace: Trace) -> None:
        found = [tuple(cut.values()) for cut in consistent_cuts(trace)]
        assert found == sorted(tuple(cut.values()) for cut in all_cuts(trace))

    @settings(max_examples=10)
    @given(traces())
    def test_the_count_is_that_of_all_consistent_cuts(self, trace: Trace) -> None:
        counted = count_cuts(trace)
        assert counted.complete
        assert counted.cuts == len(all_cuts(trace))

    def test_a_walk_continues_at_the_end_of_a_block(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # More cuts than fit into one block, for the plain kernels and for the compiled ones.
        monkeypatch.setattr(compiling, "PLAIN_STEPS_MAX", 300_000)
        trace = grid(3, 29)
        assert count_cuts(trace).cuts == 30**3
        assert len({tuple(cut.values()) for cut in consistent_cuts(trace)}) == 30**3

    @pytest.mark.parametrize("cuts_max", [1, 2, 26, 27, 28])
    def test_a_count_that_stops_early_is_marked_incomplete(self, cuts_max: int) -> None:
        counted = count_cuts(grid(3, 2), cuts_max)
        assert counted.cuts == min(cuts_max, 27)
        assert counted.complete == (cuts_max >= 27)

    @pytest.mark.parametrize(
        "ask",
        [
            pytest.param(count_cuts, id="count"),
            pytest.param(lambda trace: possibly(trace, "events(p0) + events(p1) < 0"), id="possibly"),
            pytest.param(lambda trace: sum(1 for _ in consistent_cuts(trace)), id="every cut"),
        ],
    )
    def test_memory_does_not_grow_with_the_number_of_cuts(
        self, ask: Callable[[Trace], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(enumeration, "_AT_ONCE", 32)
        few, many = grid(3, 5), grid(3, 13)  # 216 and 2,744 cuts, in blocks of 32
        ask(few)  # one-time costs are not of interest: imports, compiled kernels
        assert _peak_bytes(ask, many) < _peak_bytes(ask, few) + 10_000  # a sixth of what all cuts of `many` take


def test_the_search_by_levels_examines_every_cut_once() -> None:
    trace = grid(3, 29)
    found = LevelWalk(TraceRun(trace), OneOf({(29, 29, 29)}), 10**6)  # type: ignore[arg-type]
    assert found.path() == (None, True)
    assert found.examined == 30**3


def test_the_least_cut_of_a_trace_is_the_cut_it_begins_at() -> None:
    header = header_of(View(1, ("a", "b"), (ChannelSpec("ab", "a", "b"),)))
    start = TraceStart(positions={"a": 5, "b": 7}, sent={"ab": 3}, in_flight={"ab": ((3, 1),)})
    lines = [Receive("b", 8, "ab", 3), Internal("a", 6), Send("a", 7, "ab", 4), Receive("b", 9, "ab", 4)]
    trace = Trace(type(header)(1, header.processes, header.channels, start=start), lines)
    found = [tuple(cut.values()) for cut in consistent_cuts(trace)]
    assert found == [(5, 7), (5, 8), (6, 7), (6, 8), (7, 7), (7, 8), (7, 9)]
    assert possibly(trace, "in_flight(ab) == 2").cut == {"a": 7, "b": 7}
    assert possibly(trace, "events(a) == 6").cut == {"a": 6, "b": 7}


class TestGeneralConditions:
    @settings(max_examples=20)
    @given(variable_traces(), st.data())
    def test_possibly_holds_exactly_if_there_is_such_a_cut(self, trace: Trace, data: st.DataObject) -> None:
        expression = data.draw(conditions(trace))
        found, expected = possibly(trace, expression), cuts_where(trace, expression)
        assert found.answer == bool(expected), expression
        assert found.cut is None or found.cut in expected

    @settings(max_examples=40)
    @given(variable_traces(pool=(0, 1, 2, -1, 0.5)), st.data())
    def test_possibly_agrees_with_all_cuts_with_null_among_numbers(self, trace: Trace, data: st.DataObject) -> None:
        expression = data.draw(conditions(trace))
        found, expected = possibly(trace, expression), cuts_where(trace, expression)
        assert found.answer == bool(expected), expression
        assert found.cut is None or found.cut in expected

    @pytest.mark.parametrize("compared", ["a.x + b.x == 1", "a.x != b.x", "a.x == b.x", "a.x < b.x or a.x >= b.x"])
    def test_null_before_the_first_value_is_compared_as_defined(self, compared: str) -> None:
        header = header_of(View(1, ("a", "b"), ()))
        lines = [
            Internal(name, position, payload=Raw(b'{"x": %d}' % value) if value is not None else None)
            for name, values in (("a", (None, 1)), ("b", (None, 0)))
            for position, value in enumerate(values, 1)
        ]
        trace = Trace(header, lines)
        expected = cuts_where(trace, compared)
        assert possibly(trace, compared).answer == bool(expected)
        run = TraceRun(trace)
        condition = Condition(run, compared)
        cuts = [tuple(cut.values()) for cut in all_cuts(trace)]
        assert CompiledCondition(condition.part).at_cuts(numpy.array(cuts)).tolist() == [
            condition.at(cut) for cut in cuts
        ]

    @pytest.mark.parametrize("operator", ["==", "!=", ">"])
    @pytest.mark.parametrize("value", [1, 2**60, "up", None])
    def test_variables_of_any_kind_are_compared_as_numeric_columns(self, operator: str, value: Value) -> None:
        header = header_of(View(1, ("a", "b"), ()))
        lines = [Internal(name, 1, payload=_payload(x=value if name == "a" else value or "up")) for name in "ab"]
        condition = Condition(TraceRun(Trace(header, lines)), f"a.x {operator} b.x")
        columns = [step.values for step in _compiled(condition.part) if isinstance(step, _Load)]
        assert [column.dtype.kind in "if" for column in columns] == [True, True]

    @settings(max_examples=20)
    @given(variable_traces(), st.data())
    def test_definitely_holds_exactly_if_no_path_avoids_it(self, trace: Trace, data: st.DataObject) -> None:
        expression = data.draw(conditions(trace))
        found = definitely(trace, expression)
        assert found.answer == is_definite(trace, expression), expression
        assert found.answer is not True or found.cut in cuts_where(trace, expression)
        if found.path is not None:
            passed = cuts_along(trace, found.path)
            assert len(passed) == sum(map(trace.event_count, trace.processes)) + 1
            assert all(is_consistent(trace, cut) for cut in passed)
            assert not [cut for cut in passed if cut in cuts_where(trace, expression)]

    @pytest.mark.usefixtures("kernels")
    @settings(max_examples=20)
    @given(variable_traces(), st.data())
    def test_the_search_by_levels_agrees_with_the_dive(self, trace: Trace, data: st.DataObject) -> None:
        expression = data.draw(conditions(trace))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("strobe.causality.lattice.detection._DIVE_CUTS_MAX", 0)
            found = definitely(trace, expression)
        assert found.answer == is_definite(trace, expression), expression
        assert found.answer is not True or found.cut in cuts_where(trace, expression)
        if found.path is not None:
            assert not [cut for cut in cuts_along(trace, found.path) if cut in cuts_where(trace, expression)]


class TestConjunctions:
    @settings(max_examples=20)
    @given(variable_traces(), st.data())
    def test_possibly_gives_the_least_cut_of_all(self, trace: Trace, data: st.DataObject) -> None:
        expression = data.draw(conjunctions(trace))
        found, expected = possibly(trace, expression), cuts_where(trace, expression)
        assert found.method == "conjunctive"
        assert found.examined == 0
        assert found.answer == bool(expected), expression
        if found.cut is not None:
            assert found.cut in expected
            assert all(cut[process] >= found.cut[process] for cut in expected for process in cut)

    @settings(max_examples=20)
    @given(variable_traces(), st.data())
    def test_definitely_agrees_with_every_path(self, trace: Trace, data: st.DataObject) -> None:
        expression = data.draw(conjunctions(trace))
        found = definitely(trace, expression)
        assert found.method == "conjunctive"
        assert found.answer == is_definite(trace, expression), expression
        if found.answer:
            assert found.cut in cuts_where(trace, expression)
        else:
            assert found.path is not None
            passed = cuts_along(trace, found.path)
            assert passed[-1] == {process: trace.event_count(process) for process in trace.processes}
            assert all(is_consistent(trace, cut) for cut in passed)
            assert not [cut for cut in passed if cut in cuts_where(trace, expression)]

    @settings(max_examples=20)
    @given(variable_traces(), st.data())
    def test_possibly_of_alternatives_needs_no_search_either(self, trace: Trace, data: st.DataObject) -> None:
        expression = " or ".join(f"({data.draw(conjunctions(trace))})" for _ in range(2))
        found = possibly(trace, expression)
        assert (found.method, found.examined) == ("conjunctive", 0)
        assert found.answer == bool(cuts_where(trace, expression))

    def test_a_conjunction_over_a_lattice_beyond_counting_is_decided(self) -> None:
        trace = grid(40, 50)  # 51 to the 40th cuts
        assert possibly(trace, " and ".join(f"events(p{number}) == 25" for number in range(40))).answer
        found = definitely(trace, " and ".join(f"events(p{number}) == 25" for number in range(40)))
        assert found.answer is False
        assert found.path is not None
        assert len(found.path) == 40 * 50

    def test_definitely_is_certain_even_if_no_path_is_found_in_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(paths, "_GUARDED_MAX", 0)
        found = definitely(grid(2, 2), "events(p0) == 1 and events(p1) == 1")
        assert (found.answer, found.method, found.path, found.stopped_by) == (False, "conjunctive", None, None)
        assert definitely(grid(2, 2), "events(p0) == 0 and events(p1) == 0").answer is True

    def test_a_long_chain_of_guards_shares_its_beginnings(self) -> None:
        """Two processes pass a token to each other, and each fulfils its condition while it has the token.

        So at every cut one of them does not. The memory for the path along these cuts grows linearly with its length.
        """
        turns, lines = 2000, list[Internal | Send | Receive]()
        for turn in range(turns):
            place, other = ("a", "b") if turn % 2 == 0 else ("b", "a")
            first = turn // 2 * 2 + 1
            begins = Receive(place, first, other + place, (turn + 1) // 2) if turn else Internal(place, first)
            lines += [
                msgspec.structs.replace(begins, payload=_payload(x=1)),
                Internal(place, first + 1, payload=_payload(x=0)),
            ]
            lines.append(Send(place, first + 1, place + other, turn // 2 + 1))
        channels = (ChannelSpec("ab", "a", "b"), ChannelSpec("ba", "b", "a"))
        trace = Trace(header_of(View(1, ("a", "b"), channels)), lines)
        tracemalloc.start()
        found = definitely(trace, "a.x == 1 and b.x == 1")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (found.answer, len(found.path or ())) == (False, 2 * turns)
        assert peak < 8 << 20


def test_a_run_without_events_has_one_cut() -> None:
    trace = grid(2, 0)
    assert count_cuts(trace).cuts == 1
    assert possibly(trace, "events() == 0").cut == {"p0": 0, "p1": 0}
    assert definitely(trace, "events(p0) == events(p1)").answer is True
    refuted = definitely(trace, "events(p0) > events(p1)")
    assert (refuted.answer, refuted.path) == (False, ())


def test_a_trace_without_processes_has_no_cuts() -> None:
    trace = grid(0, 0)
    for ask in (count_cuts, lambda of: possibly(of, "true"), lambda of: definitely(of, "false")):
        with pytest.raises(UsageError, match="has no processes"):
            ask(trace)


@pytest.mark.parametrize("payload", [b'{"x": 1e400}', b'{"x": %s}' % (b"9" * 5000), b'{"x": [[%s]]}' % (b"1" * 400)])
def test_a_value_too_large_for_a_number_is_null_or_not_but_not_both(payload: bytes) -> None:
    trace = Trace(header_of(View(1, ("a",), ())), [Internal("a", 1, payload=Raw(payload))])
    assert possibly(trace, "a.x == null and events(a) == 1").answer is not possibly(trace, "a.x != null").answer


def test_values_are_compared_however_deeply_they_are_nested() -> None:
    payload = b'{"x": %s1%s, "y": %s2%s}' % (b"[" * 400, b"]" * 400, b"[" * 400, b"]" * 400)
    trace = Trace(header_of(View(1, ("a",), ())), [Internal("a", 1, payload=Raw(payload))])
    assert possibly(trace, "a.x == a.x and a.x != null and a.x != a.y").answer is True


class TestUndecided:
    def test_possibly_is_undecided_at_the_maximum_number_of_cuts(self) -> None:
        found = possibly(grid(3, 9), "events(p0) + events(p1) + events(p2) == 27", cuts_max=500)
        assert (found.answer, found.examined, found.cut) == (None, 500, None)

    def test_definitely_is_undecided_at_the_maximum_number_of_cuts(self) -> None:
        # Every path passes a cut with 26 events, so nothing avoids the condition, and the search cannot end early.
        found = definitely(grid(3, 9), "events(p0) + events(p1) + events(p2) == 26", cuts_max=100)
        assert found.answer is None
        assert found.path is None
        assert found.examined <= 100
        assert found.stopped_by == "max-cuts"

    def test_definitely_is_undecided_if_a_level_exceeds_the_memory_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(paths, "LEVEL_BYTES_MAX", 1000)
        monkeypatch.setattr(detection, "_DIVE_CUTS_MAX", 0)
        found = definitely(grid(3, 9), "events(p0) + events(p1) + events(p2) == 26")
        assert (found.answer, found.stopped_by) == (None, "memory")

    def test_no_cut_is_counted_twice(self) -> None:
        found = definitely(grid(3, 9), "events(p0) + events(p1) + events(p2) == 26")
        assert found.answer is True
        assert found.examined <= 10**3

    def test_a_part_that_its_process_never_fulfils_needs_no_search(self) -> None:
        trace = grid(3, 9)
        found = possibly(trace, "events(p0) < 0 and events(p0) + events(p1) == 3", cuts_max=5)
        assert (found.answer, found.examined) == (False, 0)
        either = possibly(trace, "events(p0) < 0 and events(p0) == events(p1) or events(p1) > events(p2)")
        assert either.answer is True

    def test_it_is_decided_if_the_bound_is_just_enough(self) -> None:
        assert possibly(grid(2, 2), "events(p0) * events(p1) == 4", cuts_max=9).answer is True
        assert possibly(grid(2, 2), "events(p0) * events(p1) == 5", cuts_max=9).answer is False
        assert possibly(grid(2, 2), "events(p0) * events(p1) == 5", cuts_max=8).answer is None


@settings(max_examples=20)
@given(traces())
def test_the_clock_kernel_computes_vector_clocks(trace: Trace) -> None:
    clocks = vector_clocks(trace)
    for kernels in (compiling.PLAIN, compiling.compiled()):
        table, starts = clock_table(trace, kernels)
        for number, process in enumerate(trace.processes):
            rows = table[starts[number] : starts[number] + trace.event_count(process) + 1]
            assert not rows[0].any()
            assert rows[1:].flatten().tolist() == list(clocks.rows(process))


def test_large_traces_have_their_clocks_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = grid(2, 3)
    slow = TraceRun(trace).clocks
    monkeypatch.setattr("strobe.causality.lattice.run._STEPS_IN_PYTHON_MAX", 0)
    assert TraceRun(trace).clocks == slow


def test_kernels_are_compiled_without_a_cache_if_it_has_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    caching: list[bool] = []

    def njit(cache: bool = False, **_options: object) -> object:
        caching.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda kernel: kernel

    monkeypatch.setattr("numba.njit", njit)
    compiling.compiled.cache_clear()
    assert compiling.compiled() == compiling.PLAIN
    assert caching == [True, False] * 4
    compiling.compiled.cache_clear()


class TestTheChoiceOfKernels:
    @pytest.fixture(autouse=True)
    def _not_loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiling, "is_loaded", lambda: False)

    @pytest.mark.parametrize("width", [1, 8, 100, 1000, 3000])
    def test_the_plain_kernels_are_used_only_for_a_few_steps(self, width: int) -> None:
        cuts = compiling.plain_cuts_max(width)
        assert cuts * width * width <= compiling.PLAIN_STEPS_MAX
        assert cuts > 10_000 or width > 8
        assert compiling.kernels_for(cuts - 1, width) is compiling.PLAIN or not cuts
        assert compiling.kernels_for(cuts, width) is compiling.compiled()

    def test_few_cuts_of_many_processes_are_searched_without_the_compiler(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "numba", None)
        compiling.compiled.cache_clear()
        assert count_cuts(grid(100, 0)).cuts == 1
        assert count_cuts(grid(30, 1), 1000).cuts == 1000
        compiling.compiled.cache_clear()

    def test_compiled_kernels_that_are_loaded_are_used_from_the_first_cut(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compiling, "is_loaded", lambda: True)
        assert compiling.kernels_for(0, 2) is compiling.compiled()


def test_a_block_of_cuts_has_bounded_memory_with_many_processes() -> None:
    blocks = enumeration.LexicalWalk(TraceRun(grid(2000, 1)), enumeration.Budget(1200)).blocks()
    assert max(block.nbytes for block in blocks) <= 1 << 24


class TestWithoutTheExtra:
    def test_a_long_search_names_the_missing_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "numba", None)
        monkeypatch.setattr(compiling, "PLAIN_STEPS_MAX", 300_000)
        compiling.compiled.cache_clear()
        with pytest.raises(MissingExtra, match="strobe-snapshots\\[lattice\\]"):
            count_cuts(grid(3, 29))
        compiling.compiled.cache_clear()

    def test_a_conjunction_needs_no_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "numpy", None)
        assert possibly(grid(40, 5), "events(p0) == 2 and events(p39) == 5").answer
        with pytest.raises(MissingExtra, match="strobe-snapshots\\[lattice\\]"):
            possibly(grid(2, 2), "events(p0) + events(p1) == 9")


def test_values_beyond_what_a_float_holds_are_compared_exactly() -> None:
    lines = [
        Internal("p0", 1, payload=_payload(x=2**60)),
        Internal("p1", 1, payload=_payload(x=2**60 + 1)),
    ]
    trace = Trace(header_of(View(1, ("p0", "p1"), ())), lines)
    assert possibly(trace, "p0.x == p1.x and events(p0) + events(p1) == 2").answer is False
    assert possibly(trace, "p1.x - p0.x == 1").answer is True


def test_whole_numbers_and_others_are_compared_exactly() -> None:
    lines = [
        Record("p0", 0, "s", payload=_payload(x=2**53 + 1)),
        Record("p1", 0, "s", payload=_payload(x=float(2**53))),
        Internal("p0", 1),
        Internal("p1", 1),
    ]
    trace = Trace(header_of(View(1, ("p0", "p1"), ())), lines)
    assert possibly(trace, "p0.x == p1.x").answer is False
    assert possibly(trace, "p0.x > p1.x").answer is True


def test_sums_of_many_processes_stay_exact() -> None:
    trace = grid(4, 3)
    found = possibly(trace, "events() == 12")
    assert found.cut == dict.fromkeys(trace.processes, 3)
    assert found.values == {"events()": 12}


def _peak_bytes(ask: Callable[[Trace], object], trace: Trace) -> int:
    tracemalloc.start()
    ask(trace)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _payload(**fields: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(fields))
