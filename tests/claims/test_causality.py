"""M2, M3 and P2: ordinals are checked; happens-before and cuts are exact; a consistent cut could have occurred."""

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.causality.brute_force import channel_state, events_in, events_of, happens_before, is_closed
from tests.causality.strategies import cuts, inconsistent_cuts, traces

from strobe.causality.clocks import HybridTime, vector_clocks
from strobe.causality.cuts import InconsistentCut, channel_contents, is_consistent, latest_consistent_cut
from strobe.causality.reordering import reorder
from strobe.causality.trace import EventRef, Trace, TraceInvalid
from strobe.causality.trace_lines import Internal, Line, Receive, Send, header_of
from strobe.protocol.values.view import ChannelSpec, View

FIFO_AB = header_of(View(1, ("a", "b"), (ChannelSpec("ab", "a", "b"),)))


def one_way(sent: list[int], received: list[int]) -> Trace:
    """A trace in which a sends messages with the ordinals `sent` to b, and b receives those in `received`."""
    sends: list[Line] = [Send("a", position, "ab", ordinal) for position, ordinal in enumerate(sent, start=1)]
    receives: list[Line] = [Receive("b", position, "ab", ordinal) for position, ordinal in enumerate(received, start=1)]
    return Trace(FIFO_AB, sends + receives)


@pytest.mark.parametrize(
    ("sent", "received", "event", "problem"),
    [
        ([1, 3], [], ("a", 2), "a gap"),
        ([1, 2, 2], [], ("a", 3), "sent twice"),
        ([1, 2, 3], [1, 3], ("b", 2), "a gap"),
        ([1, 2, 3], [1, 2, 2, 3], ("b", 3), "received twice"),
        ([1, 2, 3], [2, 1, 3], ("b", 2), "reordered"),
        ([1, 2], [1, 2, 3], ("b", 3), "never sent"),
    ],
)
def test_M2_a_gap_duplicate_or_reordering_is_named_and_breaks_the_cut(
    sent: list[int], received: list[int], event: tuple[str, int], problem: str
) -> None:
    trace = one_way(sent, received)
    with pytest.raises(TraceInvalid) as error:
        is_consistent(trace, {"a": len(sent), "b": len(received)})
    (violation,) = error.value.violations
    assert (violation.process, violation.position) == event
    assert violation.channel == "ab"
    assert problem in violation.problem


@given(st.permutations([1, 2, 3, 4]), st.integers(0, 4))
def test_M2_exactly_the_prefixes_in_order_are_accepted_on_a_fifo_channel(order: list[int], count: int) -> None:
    received = order[:count]
    assert (one_way([1, 2, 3, 4], received).violations() == ()) == (received == [1, 2, 3, 4][:count])


@given(traces())
def test_M3_vector_clocks_decide_happens_before(trace: Trace) -> None:
    clocks, pairs, events = vector_clocks(trace), happens_before(trace), events_of(trace)
    for e in events:
        for f in events:
            assert clocks[e].happened_before(clocks[f]) == ((e, f) in pairs)
            assert clocks[e].concurrent(clocks[f]) == (e != f and (e, f) not in pairs and (f, e) not in pairs)


@given(traces(), st.data())
def test_M3_a_cut_is_consistent_exactly_when_closed_under_happens_before(trace: Trace, data: st.DataObject) -> None:
    cut = data.draw(cuts(trace))
    assert is_consistent(trace, cut) == is_closed(happens_before(trace), events_in(trace, cut))


@given(traces(), st.data())
def test_M3_channel_state_is_sent_in_the_cut_and_not_received_in_it(trace: Trace, data: st.DataObject) -> None:
    cut = data.draw(cuts(trace))
    if is_consistent(trace, cut):
        assert channel_contents(trace, cut) == channel_state(trace, cut)
    else:
        with pytest.raises(InconsistentCut):
            channel_contents(trace, cut)


def physical_times(data: st.DataObject, trace: Trace) -> dict[EventRef, int]:
    """A physical time for every event. The clocks run at any speed, stop, and differ from each other."""
    clocks = dict.fromkeys(trace.processes, 0)
    times: dict[EventRef, int] = {}
    for event in trace.events():
        clocks[event.process] += data.draw(st.integers(0, 3))
        times[event] = clocks[event.process]
    return times


def hybrid_times(trace: Trace, physical: dict[EventRef, int]) -> dict[EventRef, HybridTime]:
    latest = dict.fromkeys(trace.processes, HybridTime())
    times: dict[EventRef, HybridTime] = {}
    for event in trace.events():
        lead, now = trace.event(event).lead, latest[event.process]
        if isinstance(lead, Receive):
            received = (lead, *trace.event(event).further)
            sent = max(times[trace.sent_in(receive.channel, receive.ordinal)] for receive in received)
            now = now.merge(sent, physical[event])
        else:
            now = now.tick(physical[event])
        times[event] = latest[event.process] = now
    return times


@given(traces(), st.data())
def test_M3_hybrid_time_follows_happens_before_and_stays_near_the_clock(trace: Trace, data: st.DataObject) -> None:
    physical = physical_times(data, trace)
    hybrid = hybrid_times(trace, physical)
    pairs = happens_before(trace)
    assert all(hybrid[EventRef(*e)] < hybrid[EventRef(*f)] for e, f in pairs)
    for event, time in hybrid.items():
        known = [physical[EventRef(*e)] for e, f in pairs if f == event] + [physical[event]]
        assert time.time == max(known)


@given(traces(), st.integers(0, 12), st.data())
def test_M3_everything_up_to_a_hybrid_time_is_a_consistent_cut(trace: Trace, end: int, data: st.DataObject) -> None:
    hybrid = hybrid_times(trace, physical_times(data, trace))
    inside = [event for event, time in hybrid.items() if time.time <= end]
    assert is_consistent(
        trace, {process: sum(event.process == process for event in inside) for process in trace.processes}
    )


def test_M3_everything_up_to_a_skewed_clock_time_need_not_be_consistent() -> None:
    trace = one_way([1], [1])
    at_five = {"a": 0, "b": 1}  # the clock of a shows 6 at the send; the clock of b shows 4 at the receive
    assert not is_consistent(trace, at_five)


@given(traces(), st.data())
def test_P2_every_consistent_cut_occurs_in_a_legal_reordering_of_the_run(trace: Trace, data: st.DataObject) -> None:
    cut = latest_consistent_cut(trace, data.draw(cuts(trace)))
    reordering = reorder(trace, cut)
    assert reordering.check(trace) == []
    counts = dict.fromkeys(trace.processes, 0)
    for event in reordering.events[: reordering.cut_index]:
        counts[event.process] += 1
    assert counts == cut
    assert sorted(reordering.events) == sorted(trace.events())


@given(inconsistent_cuts())
def test_P2_no_inconsistent_cut_has_a_reordering(drawn: tuple[Trace, dict[str, int]]) -> None:
    trace, cut = drawn
    with pytest.raises(InconsistentCut) as error:
        reorder(trace, cut)
    assert error.value.orphans


@given(traces(), st.data())
def test_P2_a_dropped_doubled_or_moved_event_is_refused(trace: Trace, data: st.DataObject) -> None:
    reordering = reorder(trace, latest_consistent_cut(trace, data.draw(cuts(trace))))
    events = list(reordering.events)
    assume(events)
    place = data.draw(st.integers(0, len(events) - 1))
    later = [n for n in range(place + 1, len(events)) if events[n].process == events[place].process]
    mutants = [[*events[:place], *events[place + 1 :]], [*events, events[place]]]
    if later:
        swapped = list(events)
        swapped[place], swapped[later[0]] = swapped[later[0]], swapped[place]
        mutants.append(swapped)
    for mutant in mutants:
        assert msgspec.structs.replace(reordering, events=tuple(mutant)).check(trace) != []


@given(traces(), st.data())
def test_P2_the_check_refuses_a_receive_moved_before_its_send(trace: Trace, data: st.DataObject) -> None:
    reordering = reorder(trace, latest_consistent_cut(trace, data.draw(cuts(trace))))
    receives = [event for event in reordering.events if isinstance(trace.event(event).lead, Receive)]
    assume(receives)
    receive = data.draw(st.sampled_from(receives))
    lead = trace.event(receive).lead
    assert isinstance(lead, Receive)
    events = [event for event in reordering.events if event != receive]
    events.insert(events.index(trace.sent_in(lead.channel, lead.ordinal)), receive)
    problems = msgspec.structs.replace(reordering, events=tuple(events)).check(trace)
    assert any(problem.startswith(f"{receive} receives message {lead.ordinal}") for problem in problems)


@given(traces(), st.data())
def test_P2_the_check_refuses_a_cut_mark_in_another_place(trace: Trace, data: st.DataObject) -> None:
    reordering = reorder(trace, latest_consistent_cut(trace, data.draw(cuts(trace))))
    assume(reordering.events)
    other = data.draw(st.integers(0, len(reordering.events)).filter(lambda index: index != reordering.cut_index))
    assert msgspec.structs.replace(reordering, cut_index=other).check(trace) != []


def test_P2_the_recorded_state_need_not_have_occurred_in_the_actual_order() -> None:
    lines: list[Line] = [Internal("a", 1), Send("a", 1, "ab", 1), Internal("b", 1), Internal("a", 2), Internal("b", 2)]
    trace = Trace(FIFO_AB, lines)
    cut = {"a": 0, "b": 2}
    actual = list(trace.events())
    assert set(actual[:2]) != {EventRef("b", 1), EventRef("b", 2)}
    reordering = reorder(trace, cut)
    assert reordering.events == (EventRef("b", 1), EventRef("b", 2), EventRef("a", 1), EventRef("a", 2))
    assert reordering.swaps == 3
    assert reordering.check(trace) == []
