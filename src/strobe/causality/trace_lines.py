"""The lines of a trace file: writing and reading them (docs/trace.md).

A trace file is JSON lines: a header that names the processes and channels, then lines of four kinds. This module checks
each line by itself; `trace_check` checks that the lines are consistent.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NoReturn

import msgspec

from strobe.errors import UsageError
from strobe.protocol.values.frames import FIFO
from strobe.protocol.values.view import ChannelSpec, View

VERSION = 1

_INTEGER_MAX = 2**53
"""The largest integer that every JSON reader holds exactly."""

Number = Annotated[int, msgspec.Meta(ge=1, le=_INTEGER_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=_INTEGER_MAX)]

NO_PAYLOAD = msgspec.Raw()
"""The payload of a line without one. It is false; any payload, `null` included, is true."""


class _Line(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True, gc=False):
    pass


class Send(_Line, frozen=True, tag="send", omit_defaults=True, gc=False):
    """Event `position` of `process` sent message `ordinal` on `channel`. `payload` is raw JSON."""

    process: str
    position: Number
    channel: str
    ordinal: Number
    message_id: str | None = None
    payload: msgspec.Raw = NO_PAYLOAD
    at: float | None = None


class Receive(_Line, frozen=True, tag="receive", omit_defaults=True, gc=False):
    """Event `position` of `process` received message `ordinal` of `channel`."""

    process: str
    position: Number
    channel: str
    ordinal: Number
    message_id: str | None = None
    payload: msgspec.Raw = NO_PAYLOAD
    at: float | None = None


class Internal(_Line, frozen=True, tag="internal", omit_defaults=True, gc=False):
    """Event `position` of `process` received nothing: it was the start, or the timer `name`."""

    process: str
    position: Number
    name: str | None = None
    payload: msgspec.Raw = NO_PAYLOAD
    at: float | None = None


class Record(_Line, frozen=True, tag="record", omit_defaults=True, gc=False):
    """`process` recorded its state for `snapshot_id` after `position` events: only these are in the cut."""

    process: str
    position: Count
    snapshot_id: str
    payload: msgspec.Raw = NO_PAYLOAD
    at: float | None = None


Line = Send | Receive | Internal | Record


class EventContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a `receive` or `internal` line in a full trace: inputs that the process cannot compute itself.

    From this event on it sees these channels, and its random generator is in this state. Both are absent if nothing
    changed except by its own actions. `record` is its input from outside.
    """

    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None
    random: int | None = None
    record: msgspec.Raw = NO_PAYLOAD


Run = tuple[Number, Number]
"""Consecutive messages: the ordinal of the first, and how many."""


class TraceStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cut at which a trace begins, if not at the beginning of the run: the cut of `snapshot`, if that is set.

    `positions` has the events of each process before it, `sent` the messages of each channel; a missing name means 0.
    Of these messages, `in_flight` were not received before it.
    """

    positions: dict[str, Count] = {}
    sent: dict[str, Count] = {}
    in_flight: dict[str, tuple[Run, ...]] = {}
    snapshot: str | None = None


class TraceHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of a trace. `seed` and `system` are for running again what was traced.

    `lives` maps each later incarnation of a process that left and rejoined to that process. Each is one of `processes`.
    """

    strobe_trace: int
    processes: tuple[str, ...]
    channels: tuple[ChannelSpec, ...]
    seed: int | None = None
    system: str | None = None
    start: TraceStart = TraceStart()
    lives: dict[str, str] = {}


_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(TraceHeader)
_line_decoder = msgspec.json.Decoder(Line)


def header_of(view: View, seed: int | None = None, system: str | None = None) -> TraceHeader:
    return TraceHeader(VERSION, view.processes, view.channels, seed, system)


def encode_header(header: TraceHeader) -> bytes:
    return _encoder.encode(header) + b"\n"


def encode_lines(lines: Sequence[Line]) -> bytes:
    """Return `lines` as written in the file, each with its line end. Several in one call are fastest."""
    return _encoder.encode_lines(lines)


def decode_trace(lines: Iterable[bytes], name: str) -> tuple[TraceHeader, Iterator[Line]]:
    """Return the header of the trace `name`, and an iterator over the other lines."""
    source = iter(lines)
    header = _decode_header(next(source, b""), name)
    return header, _decode_lines(source, name)


def _decode_header(text: bytes, name: str) -> TraceHeader:
    if not text:
        raise UsageError(f"{name} is empty; a trace begins with the line {_header_example()}")
    if not text.lstrip().startswith(b"{"):
        raise UsageError(f"{name} is not a trace, which is JSON lines and begins with {_header_example()}")
    try:
        header = _header_decoder.decode(text)
    except (ValueError, RecursionError) as error:
        problem = f"{name}, line 1: not the header of a trace: {error}"
        raise UsageError(f"{problem}; a header looks like {_header_example()}") from None
    if header.strobe_trace != VERSION:
        raise UsageError(
            f"{name} is a trace of version {header.strobe_trace}, and this Strobe reads version {VERSION}; "
            "use the Strobe that wrote it, or record it again"
        )
    try:
        check_header(header)
    except UsageError as error:
        raise UsageError(f"{name}, line 1: {error}") from None
    return header


def check_header(header: TraceHeader) -> None:
    """Raise UsageError if names clash, or the cut that the trace begins at is not a valid cut."""
    View(0, header.processes, header.channels).check()
    for later, process in header.lives.items():
        if {later, process} - set(header.processes) or process in header.lives:
            raise UsageError(f"{later!r} is listed in `lives` for {process!r}: both must be processes of the header")
    start, kinds = header.start, {channel.id: channel.kind for channel in header.channels}
    for unknown in (start.positions.keys() - set(header.processes)) | ((start.sent | start.in_flight).keys() - kinds):
        raise UsageError(f"the start names {unknown!r}, which is no process or channel of the header")
    for channel, runs in start.in_flight.items():
        _check_runs(channel, sorted(runs), start.sent.get(channel, 0), kinds[channel] == FIFO)


def _check_runs(channel: str, runs: "Sequence[Run]", sent: int, fifo: bool) -> None:
    """Raise UsageError unless these runs can be in flight among the first `sent` messages of a channel."""
    following = 1
    for first, count in runs:
        if first < following or (fifo and following > 1 and first != following):
            raise UsageError(f"the start has messages of {channel} in flight twice, or not in a row")
        following = first + count
    if following - 1 > sent or (fifo and runs and following - 1 != sent):
        raise UsageError(f"the start has messages of {channel} in flight that are not the last of the {sent} sent")


def _header_example() -> str:
    channel = ChannelSpec("a->b", "a", "b")
    return encode_header(TraceHeader(VERSION, ("a", "b"), (channel,))).decode().strip()


def _decode_lines(lines: Iterable[bytes], name: str) -> Iterator[Line]:
    decode = _line_decoder.decode
    for number, text in enumerate(lines, start=2):
        try:
            line = decode(text)
            if line.payload:
                str(line.payload, "utf-8")  # the decoder does not check payloads: check that they are text
        except (ValueError, RecursionError) as error:
            _refuse_line(text, number, name, error)
        yield line


def _refuse_line(text: bytes, number: int, name: str, error: Exception) -> NoReturn:
    """Raise a UsageError that names line `number`, the fault and the remedy."""
    place = f"{name}, line {number}"
    if not text.strip():
        raise UsageError(f"{place}: the line is empty; remove it") from None
    if isinstance(error, msgspec.ValidationError):
        raise UsageError(f"{place}: {error}; docs/trace.md lists the fields of each kind of line") from None
    if not text.endswith(b"\n") and "truncated" in str(error):
        raise UsageError(
            f"{place}: the file ends in the middle of this line, as when its writer was stopped ({error}); "
            f"remove the line to use the {number - 1} before it"
        ) from None
    raise UsageError(f"{place}: not JSON: {error}; correct the line or record the trace again") from None
