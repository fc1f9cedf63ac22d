"""Short descriptions of events."""

import msgspec
import pytest

from strobe.causality.trace import EventRef, TracedEvent
from strobe.causality.trace_lines import Internal
from strobe.traces.descriptions import describe, log_line


def event_with(payload: bytes) -> TracedEvent:
    return TracedEvent(EventRef("a", 1), Internal("a", 1, "timer", payload=msgspec.Raw(payload)), ())


def test_an_event_of_a_log_is_described_as_in_the_log() -> None:
    event = event_with(b'{"log_line":7,"event":"hear \\n and answer"}')
    assert (describe(event), log_line(event)) == ("hear and answer", 7)


def test_a_number_out_of_range_does_not_hide_the_description() -> None:
    event = event_with(b'{"log_line":7,"event":"hear","size":1e400}')
    assert (describe(event), log_line(event)) == ("hear", 7)


@pytest.mark.parametrize(
    "payload", [b"1e400", b"[1]", b'{"event":1e400,"log_line":1e400}', b'{"event":' + b"[" * 9999 + b"]" * 9999 + b"}"]
)
def test_an_unreadable_payload_is_ignored(payload: bytes) -> None:
    event = event_with(payload)
    assert (describe(event), log_line(event)) == ("timer", None)
