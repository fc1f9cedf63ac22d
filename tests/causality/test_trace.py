"""Trace files: written, read, and refused with the line and the reason."""

import base64
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from tests.causality.brute_force import happens_before
from tests.causality.sample import HEADER, LINES
from tests.causality.strategies import Run, runs, traces

from strobe.causality.cuts import channel_contents
from strobe.causality.trace import EventRef, Trace, TraceInvalid, parse_trace, read_trace
from strobe.causality.trace_lines import (
    NO_PAYLOAD,
    Internal,
    Line,
    Receive,
    Record,
    Send,
    encode_header,
    encode_lines,
)
from strobe.errors import UsageError


def encoded(lines: list[Line] = LINES) -> bytes:
    return encode_header(HEADER) + encode_lines(lines)


class TestFile:
    def test_a_written_trace_is_read_back(self, tmp_path: Path) -> None:
        path = tmp_path / "run.jsonl"
        path.write_bytes(encoded())
        trace = read_trace(path)
        assert trace.header == HEADER
        assert list(trace.lines()) == LINES
        assert len(trace) == len(LINES)
        trace.check()

    def test_a_line_contains_only_the_fields_of_its_kind(self) -> None:
        assert encode_lines([Receive("b", 1, "a->b", 1)]) == (
            b'{"kind":"receive","process":"b","position":1,"channel":"a->b","ordinal":1}\n'
        )

    def test_the_header_names_processes_and_channels(self) -> None:
        header = msgspec.json.decode(encode_header(HEADER))
        assert header["strobe_trace"] == 1
        assert header["processes"] == ["a", "b"]
        assert header["channels"][1] == {
            "id": "b->a",
            "source": "b",
            "target": "a",
            "kind": "unordered",
            "incarnation": 1,
        }
        assert (header["seed"], header["system"]) == (7, "bank.py:bank")

    @given(runs())
    def test_any_run_survives_being_written_and_read(self, run: Run) -> None:
        written = encode_header(run.header) + encode_lines(run.lines)
        trace = parse_trace(written.splitlines(keepends=True))
        assert list(trace.lines()) == run.lines
        assert trace.violations() == ()

    @pytest.mark.parametrize(
        "payload", [b"null", b"[1, 2]", b'{"x":"\xc3\xa4"}', b'"%s"' % base64.b64encode(b"\0\xff")]
    )
    def test_payload_time_and_message_id_of_full_traces_are_kept(self, payload: bytes) -> None:
        line = Send("a", 1, "a->b", 1, "m-1", msgspec.Raw(payload), 0.25)
        (read,) = parse_trace([encode_header(HEADER), encode_lines([line])]).lines()
        assert isinstance(read, Send)
        assert bytes(read.payload) == payload
        assert (read.message_id, read.at) == ("m-1", 0.25)

    def test_a_payload_of_null_is_not_the_same_as_none(self) -> None:
        lines: list[Line] = [Send("a", 1, "a->b", 1, payload=msgspec.Raw(b"null")), Send("a", 1, "a->b", 2)]
        null, none = Trace(HEADER, lines).lines()
        assert null.payload
        assert none.payload is NO_PAYLOAD
        assert not none.payload

    def test_lines_may_contain_unknown_fields(self) -> None:
        line = b'{"process":"a","kind":"internal","position":1,"thread":"main"}\n'
        assert list(parse_trace([encode_header(HEADER), line]).lines()) == [Internal("a", 1)]

    def test_the_example_in_the_document_is_a_valid_trace(self) -> None:
        document = Path(__file__).parents[2] / "docs" / "trace.md"
        example = document.read_bytes().split(b"```\n")[1]
        trace = parse_trace(example.splitlines(keepends=True))
        (snapshot,) = trace.snapshots()
        assert trace.records()[snapshot] == {"a": 1, "b": 1}
        assert channel_contents(trace, {"a": 1, "b": 1}) == {"a->b": [2]}


class TestMalformed:
    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            (b'{"kind":"send","process":"a","position":1,"channel":"a->b"}\n', "missing required field `ordinal`"),
            (b'{"kind":"record","process":"a","position":1}\n', "missing required field `snapshot_id`"),
            (b'{"process":"a","position":1}\n', "missing required field `kind`"),
            (b'{"kind":"jump","process":"a","position":1}\n', "Invalid value 'jump'"),
            (b'{"kind":"internal","process":"a","position":0}\n', ">= 1 - at `$.position`"),
            (b'{"kind":"internal","process":"a","position":36893488147419103232}\n', "at `$.position`"),
            (b'{"kind":"internal","process":"a","position":"1"}\n', "Expected `int`, got `str`"),
            (b'["internal","a",1]\n', "Expected `object`"),
            (b"position 1\n", "not JSON"),
            (b"\n", "the line is empty"),
            (b'{"kind":"internal","process":"\xff","position":1}\n', "not JSON"),
            (b'{"kind":"internal","process":"a","position":1,"payload":"\xff"}\n', "not JSON"),
            (b'{"kind":"internal","process":"a","position":1,"payload":' + b"[" * 9999 + b"\n", "not JSON"),
            (b'{"kind":"internal","process":"a","posi', "the file ends in the middle of this line"),
        ],
    )
    def test_a_malformed_line_is_named(self, line: bytes, problem: str) -> None:
        good = encode_lines([Internal("a", 1)])
        with pytest.raises(UsageError) as error:
            parse_trace([encode_header(HEADER), good, line], "run.jsonl")
        assert str(error.value).startswith("run.jsonl, line 3: ")
        assert problem in str(error.value)
        assert not isinstance(error.value, TraceInvalid)

    @pytest.mark.parametrize(
        ("header", "problem"),
        [
            (b"", "is empty"),
            (b"PAR1\x15\x04\x15\n", "is not a trace"),
            (b"\x1f\x8b\x08\n", "is not a trace"),
            (b'{"strobe_trace":1,"proc', "line 1: not the header"),
            (b'{"processes":["a"],"channels":[]}\n', "missing required field `strobe_trace`"),
            (b'{"kind":"internal","process":"a","position":1}\n', "not the header"),
            (b'{"strobe_trace":2,"processes":["a"],"channels":[]}\n', "version 2"),
            (b'{"strobe_trace":1,"processes":["a","a"],"channels":[]}\n', "two processes are called 'a'"),
            (b'{"strobe_trace":1,"processes":["a"],"channels":[{"id":"c","source":"a","target":"q"}]}\n', "'q'"),
            (
                b'{"strobe_trace":1,"processes":["a"],"channels":[{"id":"c","source":"a","target":"a","kind":"x"}]}',
                "'x'",
            ),
        ],
    )
    def test_a_wrong_header_is_refused_with_the_reason(self, header: bytes, problem: str) -> None:
        with pytest.raises(UsageError) as error:
            parse_trace([header] if header else [], "run.jsonl")
        assert str(error.value).startswith("run.jsonl")
        assert problem in str(error.value)

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "missing.jsonl"):
            with pytest.raises(UsageError, match=str(path)):
                read_trace(path)


class TestEvents:
    def test_lines_with_one_position_are_one_event(self) -> None:
        trace = Trace(HEADER, LINES)
        start = trace.event(("a", 1))
        assert start.ref == EventRef("a", 1)
        assert start.lead == Internal("a", 1, "start")
        assert start.sends == (Send("a", 1, "a->b", 1), Send("a", 1, "a->b", 2))
        assert trace.event(("a", 2)).sends == ()
        assert trace.event(("b", 3)).lead == Receive("b", 3, "a->b", 3)
        assert [trace.event_count(process) for process in "ab"] == [3, 3]

    def test_a_send_alone_is_an_event(self) -> None:
        trace = Trace(HEADER, [Send("a", 1, "a->b", 1), Send("a", 2, "a->b", 2)])
        assert trace.event(("a", 2)).lead is None
        assert trace.event(("a", 2)).sends == (Send("a", 2, "a->b", 2),)

    def test_an_event_may_receive_several_messages(self) -> None:
        lines = [
            Receive("b", 1, "a->b", 1),
            Receive("b", 1, "a->b", 2),
            Send("b", 1, "b->a", 1),
            Send("a", 1, "a->b", 1),
            Send("a", 2, "a->b", 2),
            Receive("a", 3, "b->a", 1),
        ]
        trace = Trace(HEADER, lines)
        assert trace.event(("b", 1)).further == (Receive("b", 1, "a->b", 2),)
        assert list(trace.events()) == [("a", 1), ("a", 2), ("b", 1), ("a", 3)]

    def test_a_cycle_through_the_second_message_of_an_event_is_named(self) -> None:
        lines = [
            Send("a", 1, "a->b", 1),
            Receive("a", 2, "b->a", 1),
            Send("a", 2, "a->b", 2),
            Receive("b", 1, "a->b", 1),
            Receive("b", 1, "a->b", 2),
            Send("b", 1, "b->a", 1),
        ]
        (violation,) = Trace(HEADER, lines).violations()
        assert "event 1 of b receives message 2 of a->b, sent in event 2 of a" in violation.problem

    def test_events_have_the_order_of_the_file_if_that_is_causal(self) -> None:
        events = list(Trace(HEADER, LINES).events())
        assert events == [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)]

    @given(traces())
    def test_events_never_come_before_their_causes(self, trace: Trace) -> None:
        place = {event: number for number, event in enumerate(trace.events())}
        assert sum(map(trace.event_count, trace.processes)) == len(place)
        assert all(place[EventRef(*e)] < place[EventRef(*f)] for e, f in happens_before(trace))

    @given(traces())
    def test_events_hold_the_lines_of_the_trace(self, trace: Trace) -> None:
        events = list(map(trace.event, trace.events()))
        found = [line for event in events for line in (event.lead, *event.further, *event.sends) if line]
        assert sorted(found, key=repr) == sorted((x for x in trace.lines() if not isinstance(x, Record)), key=repr)

    def test_messages_records_and_snapshots_are_found(self) -> None:
        trace = Trace(HEADER, LINES)
        assert trace.sent_in("a->b", 3) == ("a", 3)
        assert trace.snapshots() == ("s1", "s2")
        assert trace.records() == {"s1": {"a": 1, "b": 0}, "s2": {"a": 3, "b": 3}}

    def test_unknown_events_and_messages_are_named(self) -> None:
        trace = Trace(HEADER, LINES)
        for ask in (
            lambda: trace.event(("q", 1)),
            lambda: trace.event(("a", 4)),
            lambda: trace.event(("a", 0)),
            lambda: trace.sent_in("q", 1),
            lambda: trace.sent_in("a->b", 4),
        ):
            with pytest.raises(UsageError, match="trace has no"):
                ask()
