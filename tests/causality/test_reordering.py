"""Reorderings pass their own check, which refuses tampered ones."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.causality.strategies import cuts, inconsistent_cuts, traces

from strobe.causality.cuts import InconsistentCut, channel_contents, latest_consistent_cut
from strobe.causality.reordering import Reordering, reorder
from strobe.causality.trace import EventRef, Trace
from strobe.causality.trace_lines import Internal, Line, Receive, Send, header_of
from strobe.protocol.values.view import ChannelSpec, View

HEADER = header_of(View(1, ("a", "b"), (ChannelSpec("ab", "a", "b"), ChannelSpec("ba", "b", "a", "unordered"))))
LINES: list[Line] = [
    Internal("a", 1, "start"),
    Send("a", 1, "ab", 1),
    Send("a", 1, "ab", 2),
    Internal("b", 1, "start"),
    Receive("b", 2, "ab", 1),
    Send("b", 2, "ba", 1),
    Internal("a", 2, "tick"),
    Receive("b", 3, "ab", 2),
    Receive("a", 3, "ba", 1),
]
TRACE = Trace(HEADER, LINES)
CUT = {"a": 2, "b": 1}


def events(*names: str) -> tuple[EventRef, ...]:
    return tuple(EventRef(name[0], int(name[1:])) for name in names)


def test_the_events_of_the_cut_come_first_and_each_group_keeps_its_order() -> None:
    reordering = reorder(TRACE, CUT)
    assert reordering.events == events("a1", "b1", "a2", "b2", "b3", "a3")
    assert reordering.cut_index == 3
    assert reordering.swaps == 1  # a2 goes ahead of b2
    assert reordering.check(TRACE) == []


def test_a_cut_that_did_occur_needs_no_swap() -> None:
    reordering = reorder(TRACE, {"a": 1, "b": 2})
    assert reordering.swaps == 0
    assert reordering.events == tuple(TRACE.events())


def test_an_inconsistent_cut_has_no_reordering() -> None:
    with pytest.raises(InconsistentCut, match="message 1 of ab is received in the cut"):
        reorder(TRACE, {"a": 0, "b": 2})


MUTANTS = {
    "an event left out": (events("a1", "b1", "a2", "b2", "b3"), 3, "event 3 of a is left out"),
    "an event twice": (events("a1", "b1", "a2", "b2", "b2", "b3", "a3"), 3, "event 2 of b comes twice"),
    "an event of another run": (
        events("a1", "b1", "a2", "b2", "b3", "a3", "a4"),
        3,
        "event 4 of a is not in the trace",
    ),
    "an unknown process": (events("a1", "b1", "a2", "b2", "b3", "a3", "z1"), 3, "event 1 of z is not in the trace"),
    "a process out of order": (events("a2", "b1", "a1", "b2", "b3", "a3"), 3, "event 1 of a comes after event 2"),
    "an effect before its cause": (
        events("a1", "b1", "a2", "a3", "b2", "b3"),
        3,
        "event 3 of a receives message 1 of ba, which is not in the channel",
    ),
    "an event of the cut behind it": (events("a1", "b1", "b2", "a2", "b3", "a3"), 2, "event 2 of a is after"),
    "a later event in the cut": (events("a1", "b1", "b2", "a2", "b3", "a3"), 4, "event 2 of b is among"),
    "a fifo channel reordered": (
        events("a1", "b1", "a2", "b3", "b2", "a3"),
        3,
        "event 3 of b receives message 2 of ab, which is fifo, and message 1 comes first",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_tampered_reordering_is_refused_by_name(mutant: str) -> None:
    order, cut_index, problem = MUTANTS[mutant]
    found = Reordering(CUT, order, cut_index, 1).check(TRACE)
    assert any(line.startswith(problem) for line in found), found


@pytest.mark.parametrize(
    ("cut", "problem"),
    [
        ({"a": 2, "b": 2}, "event 2 of b is after"),
        ({"a": 1, "b": 1}, "event 2 of a is among"),
        ({"a": 2}, "the cut does not name b"),
        ({"a": 2, "b": 1, "z": 0}, "the cut names z"),
    ],
)
def test_a_reordering_for_another_cut_is_refused_by_name(cut: dict[str, int], problem: str) -> None:
    found = msgspec.structs.replace(reorder(TRACE, CUT), cut=cut).check(TRACE)
    assert any(line.startswith(problem) for line in found), found


@given(traces(), st.data())
def test_every_consistent_cut_has_a_legal_reordering(trace: Trace, data: st.DataObject) -> None:
    cut = latest_consistent_cut(trace, data.draw(cuts(trace)))
    reordering = reorder(trace, cut)
    assert reordering.check(trace) == []
    assert reordering.cut_index == sum(cut.values())


@given(traces(), st.data())
def test_swaps_are_the_pairs_that_changed_places(trace: Trace, data: st.DataObject) -> None:
    reordering = reorder(trace, latest_consistent_cut(trace, data.draw(cuts(trace))))
    place = {event: number for number, event in enumerate(reordering.events)}
    actual = list(trace.events())
    swapped = [(e, f) for n, e in enumerate(actual) for f in actual[n + 1 :] if place[e] > place[f]]
    assert reordering.swaps == len(swapped)


@given(traces(), st.data())
def test_after_the_events_of_the_cut_the_channels_hold_its_channel_state(trace: Trace, data: st.DataObject) -> None:
    cut = latest_consistent_cut(trace, data.draw(cuts(trace)))
    reordering = reorder(trace, cut)
    channels: dict[str, set[int]] = {channel: set() for channel in trace.channels}
    for ref in reordering.events[: reordering.cut_index]:
        event = trace.event(ref)
        for receive in (event.lead, *event.further):
            if isinstance(receive, Receive):
                channels[receive.channel].remove(receive.ordinal)
        for send in event.sends:
            channels[send.channel].add(send.ordinal)
    assert channels == {channel: set(ordinals) for channel, ordinals in channel_contents(trace, cut).items()}


@given(inconsistent_cuts())
def test_the_check_refuses_the_same_construction_on_an_inconsistent_cut(drawn: tuple[Trace, dict[str, int]]) -> None:
    trace, cut = drawn
    before = [event for event in trace.events() if event.position <= cut[event.process]]
    after = [event for event in trace.events() if event.position > cut[event.process]]
    forged = Reordering(cut, (*before, *after), len(before), 0)
    assert any("which is not in the channel" in problem or "is fifo" in problem for problem in forged.check(trace))
