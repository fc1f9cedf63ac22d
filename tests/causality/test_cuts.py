"""Cuts: whether they are consistent, and what is in the channels at them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.causality.brute_force import (
    channel_state,
    consistent_cuts_below,
    events_in,
    events_of,
    happens_before,
    is_closed,
)
from tests.causality.strategies import cuts, traces

from strobe.causality.clocks import vector_clocks
from strobe.causality.cuts import (
    CutVerdict,
    InconsistentCut,
    Orphan,
    channel_contents,
    check_cuts,
    cut_of,
    is_consistent,
    latest_consistent_cut,
    violating_messages,
)
from strobe.causality.trace import EventRef, Trace, TraceInvalid
from strobe.causality.trace_lines import Internal, Line, Receive, Record, Send, header_of
from strobe.errors import SnapshotIncomplete, SnapshotNotFound, UsageError
from strobe.protocol.values.view import ChannelSpec, View

HEADER = header_of(View(1, ("a", "b", "c"), (ChannelSpec("ab", "a", "b"), ChannelSpec("bc", "b", "c", "unordered"))))
# a sends 1 and 2 in its first event, 3 in its second; b forwards 1 and 2; c receives the second before the first.
LINES: list[Line] = [
    Internal("a", 1, "start"),
    Send("a", 1, "ab", 1),
    Send("a", 1, "ab", 2),
    Receive("b", 1, "ab", 1),
    Send("b", 1, "bc", 1),
    Receive("b", 2, "ab", 2),
    Send("b", 2, "bc", 2),
    Receive("c", 1, "bc", 2),
    Receive("c", 2, "bc", 1),
    Internal("a", 2, "tick"),
    Send("a", 2, "ab", 3),
    Receive("b", 3, "ab", 3),
]
TRACE = Trace(HEADER, LINES)


def cut(a: int, b: int, c: int) -> dict[str, int]:
    return {"a": a, "b": b, "c": c}


def test_the_empty_cut_and_the_whole_run_are_consistent() -> None:
    assert is_consistent(TRACE, cut(0, 0, 0))
    assert is_consistent(TRACE, cut(2, 3, 2))


def test_a_message_received_in_the_cut_must_be_sent_in_it() -> None:
    assert not is_consistent(TRACE, cut(1, 3, 0))
    assert violating_messages(TRACE, cut(1, 3, 0)) == [Orphan("ab", 3, EventRef("a", 2), EventRef("b", 3))]


def test_a_message_sent_in_the_cut_may_be_received_outside_it() -> None:
    assert is_consistent(TRACE, cut(2, 1, 0))


def test_on_an_unordered_channel_counts_alone_do_not_decide() -> None:
    # One message of bc is sent and one is received, but not the same one.
    assert violating_messages(TRACE, cut(1, 1, 1)) == [Orphan("bc", 2, EventRef("b", 2), EventRef("c", 1))]


def test_a_message_sent_in_the_cut_after_an_orphan_is_no_orphan() -> None:
    assert [orphan.ordinal for orphan in violating_messages(TRACE, cut(1, 1, 2))] == [2]


def test_channel_contents_were_sent_and_not_received_in_the_cut() -> None:
    assert channel_contents(TRACE, cut(0, 0, 0)) == {"ab": [], "bc": []}
    assert channel_contents(TRACE, cut(2, 1, 0)) == {"ab": [2, 3], "bc": [1]}
    assert channel_contents(TRACE, cut(2, 2, 1)) == {"ab": [3], "bc": [1]}


def test_an_inconsistent_cut_has_no_channel_contents() -> None:
    with pytest.raises(InconsistentCut) as error:
        channel_contents(TRACE, cut(0, 2, 1))
    assert [(orphan.channel, orphan.ordinal) for orphan in error.value.orphans] == [("ab", 1), ("ab", 2)]
    assert str(error.value).splitlines() == [
        "the cut (a: 0, b: 2, c: 1) is not consistent:",
        "  message 1 of ab is received in the cut (event 1 of b) but sent outside it (event 1 of a)",
        "  message 2 of ab is received in the cut (event 2 of b) but sent outside it (event 1 of a)",
    ]


def test_a_long_list_of_orphans_is_shortened_in_print() -> None:
    lines: list[Line] = [Send("a", number, "ab", number) for number in range(1, 31)]
    lines += [Receive("b", number, "ab", number) for number in range(1, 31)]
    with pytest.raises(InconsistentCut) as error:
        channel_contents(Trace(HEADER, lines), cut(0, 30, 0))
    assert len(error.value.orphans) == 30
    assert str(error.value).endswith("\n  and 20 more")


def test_the_latest_consistent_cut_follows_causes_across_processes() -> None:
    assert latest_consistent_cut(TRACE, cut(0, 3, 2)) == cut(0, 0, 0)
    assert latest_consistent_cut(TRACE, cut(1, 3, 2)) == cut(1, 2, 2)
    assert latest_consistent_cut(TRACE, cut(2, 1, 2)) == cut(2, 1, 0)


@pytest.mark.parametrize(
    ("positions", "problem"),
    [
        ({"a": 1, "b": 1}, "does not name the process c"),
        ({"a": 1, "b": 1, "c": 3}, "has 3 events of c, which has 2"),
        ({"a": 1, "b": 1, "c": -1}, "has -1 events of c"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, "no process 'd'"),
    ],
)
def test_an_invalid_cut_of_the_trace_is_refused(positions: dict[str, int], problem: str) -> None:
    for function in (is_consistent, violating_messages, channel_contents, latest_consistent_cut):
        with pytest.raises(UsageError, match=problem):
            function(TRACE, positions)


def test_cuts_of_an_invalid_trace_are_refused() -> None:
    trace = Trace(HEADER, [*LINES, Receive("b", 4, "ab", 3)])
    for ask in (lambda: is_consistent(trace, cut(0, 0, 0)), lambda: check_cuts(trace)):
        with pytest.raises(TraceInvalid):
            ask()


class TestRecords:
    TRACE = Trace(
        HEADER,
        [
            *LINES,
            Record("c", 1, "good"),
            Record("b", 3, "early"),
            Record("b", 3, "good"),
            Record("b", 3, "orphaned"),
            Record("a", 1, "orphaned"),
            Record("a", 2, "good"),
            Record("a", 2, "early"),
            Record("a", 2, "late"),
            Record("c", 2, "late"),
        ],
    )

    def test_the_cut_of_a_snapshot_is_where_each_process_recorded(self) -> None:
        assert cut_of(self.TRACE, "good") == cut(2, 3, 1)

    def test_a_snapshot_without_a_record_is_not_found(self) -> None:
        with pytest.raises(SnapshotNotFound):
            cut_of(self.TRACE, "other")

    def test_a_snapshot_not_recorded_by_all_is_incomplete(self) -> None:
        with pytest.raises(SnapshotIncomplete, match="by c"):
            cut_of(self.TRACE, "early")

    def test_every_snapshot_gets_its_verdict(self) -> None:
        verdicts = {verdict.snapshot_id: verdict for verdict in check_cuts(self.TRACE)}
        assert verdicts["good"] == CutVerdict("good", "holds", cut(2, 3, 1))
        assert verdicts["early"] == CutVerdict("early", "undecided", {"a": 2, "b": 3}, missing=("c",))
        assert verdicts["late"].verdict == "undecided"

    def test_orphans_decide_before_all_have_recorded(self) -> None:
        (verdict,) = (verdict for verdict in check_cuts(self.TRACE) if verdict.snapshot_id == "orphaned")
        assert verdict.verdict == "violated"
        assert verdict.missing == ("c",)
        assert [orphan.ordinal for orphan in verdict.orphans] == [3]


class TestAgainstBruteForce:
    @given(traces(), st.data())
    def test_consistent_means_closed_under_happens_before(self, trace: Trace, data: st.DataObject) -> None:
        positions = data.draw(cuts(trace))
        closed = is_closed(happens_before(trace), events_in(trace, positions))
        assert is_consistent(trace, positions) == closed
        assert (violating_messages(trace, positions) == []) == closed

    @given(traces(), st.data())
    def test_violating_messages_are_exactly_the_orphans(self, trace: Trace, data: st.DataObject) -> None:
        positions = data.draw(cuts(trace))
        inside = events_in(trace, positions)
        sent = {(x.channel, x.ordinal): (x.process, x.position) for x in trace.lines() if isinstance(x, Send)}
        received = {(x.channel, x.ordinal): (x.process, x.position) for x in trace.lines() if isinstance(x, Receive)}
        orphans = {message for message, event in received.items() if event in inside and sent[message] not in inside}
        found = violating_messages(trace, positions)
        assert {(orphan.channel, orphan.ordinal) for orphan in found} == orphans
        assert len(found) == len(orphans)
        assert all(orphan.sent_in == sent[orphan.channel, orphan.ordinal] for orphan in found)
        assert all(orphan.received_in == received[orphan.channel, orphan.ordinal] for orphan in found)

    @given(traces(), st.data())
    def test_channel_contents(self, trace: Trace, data: st.DataObject) -> None:
        positions = latest_consistent_cut(trace, data.draw(cuts(trace)))
        assert channel_contents(trace, positions) == channel_state(trace, positions)

    @given(traces(events_max=9), st.data())
    def test_the_latest_consistent_cut_is_the_greatest_of_all(self, trace: Trace, data: st.DataObject) -> None:
        upper = data.draw(cuts(trace))
        consistent = consistent_cuts_below(trace, upper)
        greatest = {process: max(positions[process] for positions in consistent) for process in trace.processes}
        assert greatest in consistent
        assert latest_consistent_cut(trace, upper) == greatest

    @given(traces(), st.data())
    def test_consistent_means_that_no_clock_is_ahead_of_the_cut(self, trace: Trace, data: st.DataObject) -> None:
        positions = data.draw(cuts(trace))
        clocks = vector_clocks(trace)
        last = [(process, position) for process, position in positions.items() if position]
        known = all(count <= positions[process] for event in last for process, count in clocks[event].items())
        assert is_consistent(trace, positions) == known

    @given(traces())
    def test_the_past_of_an_event_is_a_consistent_cut(self, trace: Trace) -> None:
        clocks = vector_clocks(trace)
        for event in events_of(trace):
            assert is_consistent(trace, {process: clocks[event][process] for process in trace.processes})
