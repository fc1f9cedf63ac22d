"""Short descriptions of events, for logs and diagrams."""

import msgspec

from strobe.causality.trace import TracedEvent
from strobe.causality.trace_lines import Internal, Receive
from strobe.errors import UNREADABLE

# Fields in the payload of an event imported from a log: its text, and its line.
EVENT_FIELD = "event"
LINE_FIELD = "log_line"

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def describe(event: TracedEvent) -> str:
    """Return the log's text of an event, or else its trigger and its sends, on one line."""
    text = _field_of(event, EVENT_FIELD)
    if isinstance(text, str):
        return _on_one_line(text)
    parts: list[str] = []
    if isinstance(event.lead, Internal):
        parts.append(event.lead.name or "internal")
    parts += [
        f"receive {line.ordinal} of {line.channel}"
        for line in (event.lead, *event.further)
        if isinstance(line, Receive)
    ]
    parts += [f"send {line.ordinal} of {line.channel}" for line in event.sends]
    return _on_one_line(", ".join(parts))


def log_line(event: TracedEvent) -> int | None:
    """Return the line of the log that an event was imported from."""
    line = _field_of(event, LINE_FIELD)
    return line if isinstance(line, int) else None


def _field_of(event: TracedEvent, field: str) -> object:
    """Return a field of an event's payload; the other fields may be unreadable."""
    if event.lead is None or not event.lead.payload:
        return None
    try:
        fields = _decode_fields(event.lead.payload)
        return msgspec.json.decode(fields[field]) if field in fields else None
    except UNREADABLE:
        return None


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
