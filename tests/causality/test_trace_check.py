"""The check of a trace: every event that does not fit is named, with the reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.causality.brute_force import is_valid
from tests.causality.sample import HEADER, LINES
from tests.causality.strategies import Run, changed_lines, interleavings, runs, traces

from strobe.causality.trace import Trace, TraceInvalid, Violation
from strobe.causality.trace_lines import Internal, Line, Receive, Record, Send, header_of
from strobe.protocol.values.view import ChannelSpec, View


def replaced(number: int, *lines: Line) -> list[Line]:
    """The lines with line `number` of the file replaced."""
    return [*LINES[: number - 2], *lines, *LINES[number - 1 :]]


def violations(lines: list[Line]) -> list[Violation]:
    return list(Trace(HEADER, lines).violations())


CHANGES = {
    "unknown process": (replaced(11, Receive("z", 2, "b->a", 2)), 11, "does not name this process"),
    "unknown process of a record": (replaced(15, Record("z", 3, "s2")), 15, "does not name this process"),
    "unknown channel": (replaced(11, Receive("a", 2, "zz", 2)), 11, "does not name this channel"),
    "send at the wrong end": (replaced(13, Send("a", 3, "b->a", 3)), 13, "its source is b"),
    "receive at the wrong end": (replaced(14, Receive("b", 3, "b->a", 3)), 14, "its target is a"),
    "position left out": (replaced(14, Receive("b", 5, "a->b", 3)), 14, "positions 3 to 4 are missing"),
    "first position left out": (replaced(2, Internal("a", 3)), 2, "positions 1 to 2 are missing"),
    "position goes back": (replaced(14, Receive("b", 1, "a->b", 3)), 14, "goes back"),
    "two leads in an event": (replaced(14, Receive("b", 2, "a->b", 3)), 14, "comes after another of its event"),
    "lead behind a send": (replaced(4, Internal("a", 1)), 4, "comes after another of its event"),
    "send ordinal left out": (replaced(13, Send("a", 3, "a->b", 5)), 13, "messages 3 to 4 are never sent: a gap"),
    "send ordinal twice": (replaced(4, Send("a", 1, "a->b", 1)), 4, "sent twice, first at position 1, line 3"),
    "sends out of order": ([*replaced(3, Send("a", 1, "a->b", 2))[:2], Send("a", 1, "a->b", 1)], 4, "reordered"),
    "receive of nothing": (replaced(14, Receive("b", 3, "a->b", 9)), 14, "message 9 is received but was never sent"),
    "receive of nothing on unordered": (replaced(12, Receive("a", 3, "b->a", 3)), 12, "message 3 is received but was"),
    "receive of what a gap left out": (
        replaced(13, Send("a", 3, "a->b", 4)),
        14,
        "message 3 is received but was never",
    ),
    "receive twice on fifo": (
        replaced(14, Receive("b", 3, "a->b", 2)),
        14,
        "received twice, first at position 2, line 9",
    ),
    "receive twice on unordered": (replaced(12, Receive("a", 3, "b->a", 2)), 12, "received twice, first at position 2"),
    "gap on fifo": (replaced(9, Internal("b", 2)), 14, "but message 2 is never received: a gap"),
    "record behind the end": (replaced(16, Record("b", 4, "s2")), 16, "the process has 3 events"),
    "record out of order": ([*LINES, Record("b", 2, "s3")], 17, "the record is out of order"),
    "record twice": ([*LINES, Record("b", 3, "s1")], 17, "s1 is recorded twice, first at position 0, line 5"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_offending_event_is_named(change: str) -> None:
    lines, number, problem = CHANGES[change]
    (found,) = (violation for violation in violations(lines) if problem in violation.problem)
    line = lines[number - 2]
    assert (found.line, found.process, found.position) == (number, line.process, line.position)
    assert found.channel == (line.channel if isinstance(line, Send | Receive) else None)


def test_a_message_overtaken_on_a_fifo_channel_is_the_only_violation() -> None:
    lines = list(LINES)
    lines[4], lines[7] = Receive("b", 1, "a->b", 2), Receive("b", 2, "a->b", 1)
    (found,) = violations(lines)
    assert (found.line, found.process, found.position, found.channel) == (9, "b", 2, "a->b")
    assert found.problem == "message 1 is received after message 2 (at position 1, line 6): reordered"


def test_the_same_order_is_no_fault_on_an_unordered_channel() -> None:
    assert violations(LINES) == []  # a receives message 2 of b->a before message 1


def test_messages_still_in_flight_at_the_end_are_no_fault() -> None:
    assert violations(LINES[:3]) == []


def test_a_receive_may_precede_its_send_in_the_file() -> None:
    lines = [line for line in LINES if line.process == "b"] + [line for line in LINES if line.process == "a"]
    assert violations(lines) == []


def test_a_cycle_is_named_with_its_events() -> None:
    lines: list[Line] = [
        Internal("a", 1),
        Receive("a", 2, "b->a", 1),
        Send("a", 2, "a->b", 1),
        Receive("b", 1, "a->b", 1),
        Send("b", 1, "b->a", 1),
    ]
    (found,) = violations(lines)
    assert (found.line, found.process, found.position, found.channel) == (3, "a", 2, "b->a")
    assert found.problem == (
        "received before it was sent, in a cycle: "
        "event 2 of a receives message 1 of b->a, sent in event 1 of b; "
        "event 1 of b receives message 1 of a->b, sent in event 2 of a"
    )


def test_a_message_to_oneself_must_be_sent_first() -> None:
    header = header_of(View(1, ("a",), (ChannelSpec("a->a", "a", "a"),)))
    early: list[Line] = [Receive("a", 1, "a->a", 1), Send("a", 2, "a->a", 1)]
    (found,) = Trace(header, early).violations()
    assert (found.line, "event 1 of a receives message 1 of a->a, sent in event 2 of a" in found.problem) == (
        2,
        True,
    )
    (found,) = Trace(header, [Receive("a", 1, "a->a", 1), Send("a", 1, "a->a", 1)]).violations()
    assert "sent in event 1 of a" in found.problem


def test_each_cycle_is_named_once_without_the_events_depending_on_it() -> None:
    names = ("a", "b", "c", "d", "e")
    pairs = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c"), ("d", "e")]
    header = header_of(View(1, names, tuple(ChannelSpec(s + t, s, t) for s, t in pairs)))
    lines: list[Line] = [
        Receive("e", 1, "de", 1),
        *(Receive(t, 1, s + t, 1) for s, t in pairs[:4]),
        *(Send(s, 1, s + t, 1) for s, t in pairs),
    ]
    found = Trace(header, lines).violations()
    assert [violation.line for violation in found] == [3, 5]


def test_a_long_cycle_is_shortened_in_print() -> None:
    names = tuple(f"p{number:02d}" for number in range(30))
    channels = tuple(ChannelSpec(f"{s}->", s, t) for s, t in zip(names, names[1:] + names[:1], strict=True))
    lines: list[Line] = [Receive(channel.target, 1, channel.id, 1) for channel in channels]
    lines += [Send(channel.source, 1, channel.id, 1) for channel in channels]
    (found,) = Trace(header_of(View(1, names, channels)), lines).violations()
    assert "and 22 more" in found.problem


def test_every_problem_is_collected_in_the_order_of_the_file() -> None:
    lines = [*LINES, Receive("b", 4, "a->b", 7), Internal("a", 9), Record("a", 2, "s3"), Send("b", 4, "b->a", 2)]
    assert [violation.line for violation in violations(lines)] == [17, 18, 19, 20]


def test_a_huge_gap_takes_no_time_or_memory() -> None:
    lines: list[Line] = [Send("a", 1, "a->b", 2**53), Receive("b", 2**53, "a->b", 2**53)]
    first, second = violations(lines)
    assert "messages 1 to 9007199254740991 are never sent" in first.problem
    assert "positions 1 to 9007199254740991 are missing" in second.problem


def test_check_raises_with_all_of_them_and_prints_the_first() -> None:
    lines = [*LINES, *(Receive("b", 4 + number, "a->b", 3) for number in range(30))]
    with pytest.raises(TraceInvalid) as error:
        Trace(HEADER, lines, "run.jsonl").check()
    assert error.value.exit_code == 2
    assert len(error.value.violations) == 30
    printed = str(error.value).splitlines()
    assert printed[0] == "run.jsonl is not a valid trace, 30 problems:"
    assert printed[1] == (
        "  line 17: b, position 4, channel a->b: message 3 is received twice, first at position 3, line 14"
    )
    assert printed[21] == "  and 10 more"


def test_an_invalid_trace_gives_no_events() -> None:
    trace = Trace(HEADER, CHANGES["gap on fifo"][0])
    for ask in (lambda: list(trace.events()), lambda: trace.event(("a", 1)), trace.records):
        with pytest.raises(TraceInvalid):
            ask()


@given(traces())
def test_valid_traces_have_no_violations(trace: Trace) -> None:
    assert trace.violations() == ()


@given(runs(), st.data())
def test_the_check_agrees_with_running_the_lines(run: Run, data: st.DataObject) -> None:
    lines = run.lines
    for _ in range(data.draw(st.integers(0, 2))):
        lines = data.draw(changed_lines(lines)) if lines else lines
    if data.draw(st.booleans()):
        known = [line for line in lines if line.process in run.header.processes]
        lines = data.draw(interleavings(known))
    found = Trace(run.header, lines).violations()
    assert (found == ()) == is_valid(run.header, lines)
