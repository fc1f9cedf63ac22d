"""A trace that begins at a cut gives the same results as the whole trace for the same events."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.causality.sample import HEADER, LINES
from tests.causality.strategies import cut_off, cuts, traces

from strobe.causality.clocks import vector_clocks
from strobe.causality.cuts import channel_contents, check_cuts, is_consistent, latest_consistent_cut
from strobe.causality.reordering import reorder
from strobe.causality.trace import Trace, parse_trace
from strobe.causality.trace_lines import TraceStart, encode_header
from strobe.errors import UsageError


@st.composite
def cut_traces(draw: Any) -> tuple[Trace, Trace]:
    trace = draw(traces())
    return trace, cut_off(trace, latest_consistent_cut(trace, draw(cuts(trace))))


@given(cut_traces())
def test_the_part_behind_a_consistent_cut_is_a_valid_trace(both: tuple[Trace, Trace]) -> None:
    _, later = both
    assert later.violations() == ()


@given(cut_traces(), st.data())
def test_later_cuts_are_consistent_exactly_as_in_the_whole_trace(both: Any, data: Any) -> None:
    trace, later = both
    cut = {
        process: data.draw(st.integers(later.first_count(process), later.event_count(process)))
        for process in trace.processes
    }
    assert is_consistent(later, cut) == is_consistent(trace, cut)
    if is_consistent(trace, cut):
        assert channel_contents(later, cut) == channel_contents(trace, cut)
        assert reorder(later, cut).check(later) == []
    assert latest_consistent_cut(later, cut) == latest_consistent_cut(trace, cut)


@given(cut_traces())
def test_clocks_order_its_events_as_in_the_whole_trace(both: tuple[Trace, Trace]) -> None:
    trace, later = both
    whole, part = vector_clocks(trace), vector_clocks(later)
    events = list(later.events())
    for first in events:
        for second in events:
            assert part.happened_before(first, second) == whole.happened_before(first, second)


@given(cut_traces())
def test_its_verdicts_are_those_of_the_whole(both: tuple[Trace, Trace]) -> None:
    trace, later = both
    whole = {verdict.snapshot_id: verdict for verdict in check_cuts(trace)}
    for verdict in check_cuts(later):
        if not verdict.missing:
            assert verdict == whole[verdict.snapshot_id]


def start(**fields: Any) -> list[bytes]:
    return [encode_header(msgspec.structs.replace(HEADER, start=TraceStart(**fields)))]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"positions": {"z": 1}}, "the start names 'z', which is no process or channel"),
        ({"sent": {"z": 1}}, "the start names 'z'"),
        ({"sent": {"a->b": 3}, "in_flight": {"a->b": ((1, 1), (3, 1))}}, "in flight twice, or not in a row"),
        ({"sent": {"a->b": 3}, "in_flight": {"a->b": ((1, 2),)}}, "not the last of the 3 sent"),
        ({"sent": {"b->a": 3}, "in_flight": {"b->a": ((4, 1),)}}, "not the last of the 3 sent"),
        ({"sent": {"b->a": 3}, "in_flight": {"b->a": ((1, 2), (2, 1))}}, "in flight twice"),
    ],
)
def test_a_start_that_is_no_cut_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_trace(start(**fields))


@pytest.mark.parametrize("lives", [{"z": "a"}, {"a": "z"}, {"a": "b", "b": "a"}])
def test_a_life_of_an_unknown_process_is_refused(lives: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="both must be processes of the header"):
        parse_trace([encode_header(msgspec.structs.replace(HEADER, lives=lives))])


def test_messages_received_or_sent_before_the_start_may_not_recur() -> None:
    later = cut_off(Trace(HEADER, LINES), {"a": 1, "b": 1})
    lines = list(later.lines())
    receive = next(line for line in lines if line.process == "b" and line.position == 2)
    again = [msgspec.structs.replace(line, ordinal=1) if line is receive else line for line in lines]
    problems = [violation.problem for violation in Trace(later.header, again).violations()]
    assert "message 1 is received, but it was received before the trace begins" in problems
    send = next(line for line in lines if line.process == "a" and line.position == 3 and hasattr(line, "ordinal"))
    assert send is not None
    header = msgspec.structs.replace(
        later.header, start=TraceStart({"a": 1, "b": 1}, {"a->b": 5, "b->a": 1}, {"a->b": ((2, 4),), "b->a": ((1, 1),)})
    )
    problems = [violation.problem for violation in Trace(header, lines).violations()]
    assert "message 3 is sent, but 5 were before the trace" in problems
