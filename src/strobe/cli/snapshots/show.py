"""Shows a snapshot: every process, every channel, every message in flight, decoded."""

from collections.abc import Iterator
from typing import Any

import msgspec

from strobe.causality.proof import Verdict
from strobe.cli.shell.output import Cell, Column, count, print_line, print_lines, print_table, size_text
from strobe.declarations import Declared
from strobe.errors import UNREADABLE
from strobe.outside import shown_position
from strobe.protocol import ChannelSpec, Fragment, InFlight, LocalState, Snapshot
from strobe.protocol.values.fragment import KEYED, MSGPACK
from strobe.protocol.values.log_entries import Manifest, ProcessRecord
from strobe.storage.content.keyed_state_blobs import keyed_items
from strobe.storage.inspection.state_path import FoundValue

TEXT_MAX = 400
MESSAGES_MAX = 8

_decode = msgspec.msgpack.Decoder().decode
_decode_body = msgspec.msgpack.Decoder(list[Any]).decode

# Times of live systems count from 1970, those of simulations from the start of the run.
_SIMULATED_US_MAX = 10**15
_NOT_SHOWN = (*UNREADABLE, TypeError, ValueError)
"""Errors of decoding and printing: maps nested too deeply, keys that JSON cannot represent."""


class FrozenProcess(msgspec.Struct, frozen=True):
    """One recorded process. `state` is plain values, or None with the bytes in `state_bytes` (base64 in JSON).

    A keyed state is not shown entry by entry: `keys` is the number of entries, `deltas` the number of delta blobs.
    `declared` is what the process declares about itself (G2).
    """

    process: str
    position: int
    encoding: str
    state: Any
    state_bytes: bytes | None
    timers: dict[str, float]
    size_bytes: int
    keys: int | None
    deltas: int
    sources: dict[str, int]
    sinks: dict[str, int]
    pause_us: int
    duration_us: int
    signed: bool
    declared: Declared | None
    state_version: int


class Message(msgspec.Struct, frozen=True):
    """A message in flight."""

    ordinal: int
    payload: Any


class FrozenChannel(msgspec.Struct, frozen=True):
    """One recorded channel: sent and received counts at the cut, the messages in between, and their frames' bytes."""

    channel: str
    source: str
    target: str
    kind: str
    sent: int
    received: int
    in_flight_bytes: int
    in_flight: list[Message]


def processes(snapshot: Snapshot, manifest: Manifest) -> Iterator[FrozenProcess]:
    """Yield the processes, in the order of the view."""
    for name in snapshot.view.processes:
        fragment = snapshot.fragments.get(name)
        if fragment is not None and fragment.state is not None:  # the proof names a missing one
            yield _process(name, fragment.state, manifest.processes[name])


def _process(name: str, state: LocalState, record: ProcessRecord) -> FrozenProcess:
    value, plain = _plain(state.data) if state.encoding == MSGPACK else (None, False)
    keyed = state.encoding == KEYED
    return FrozenProcess(
        name,
        state.position,
        state.encoding,
        value,
        None if plain or keyed else bytes(state.data),
        dict(state.timers),
        state.bytes,
        _count_keys(state) if keyed else None,
        len(state.deltas),
        state.sources,
        state.sinks,
        record.pause_us,
        record.duration_us,
        record.signature is not None,
        state.declared,
        state.version,
    )


def channels(snapshot: Snapshot) -> Iterator[FrozenChannel]:
    """Yield the channels, in the order of the view."""
    for spec in snapshot.view.channels:
        sender, receiver = snapshot.fragments.get(spec.source), snapshot.fragments.get(spec.target)
        if sender is not None and receiver is not None:
            yield _channel(spec, sender, receiver)


def _channel(spec: ChannelSpec, sender: Fragment, receiver: Fragment) -> FrozenChannel:
    sent, received = sender.sent.get(spec.id), receiver.received.get(spec.id)
    items = receiver.in_flight.get(spec.id, ())
    return FrozenChannel(
        spec.id,
        spec.source,
        spec.target,
        spec.kind,
        sent.count if sent is not None else 0,
        received.count if received is not None else 0,
        sum(len(item.frame.body) for item in items),
        [message for item in items for message in _messages(item)],
    )


def _messages(item: InFlight) -> Iterator[Message]:
    try:
        payloads = _decode_body(item.frame.body)
        msgspec.json.encode(payloads, enc_hook=repr)
    except _NOT_SHOWN:
        return  # the proof reports a frame that is not a list of messages
    for place, payload in enumerate(payloads):
        if place >= item.consumed:
            yield Message(item.frame.first_ordinal + place, payload)


def _count_keys(state: LocalState) -> int | None:
    """Return the number of keys of a keyed state, with its deltas applied; None if it cannot be read."""
    try:
        return sum(1 for _ in keyed_items(state))
    except ValueError:
        return None


def _plain(data: bytes) -> tuple[Any, bool]:
    try:
        value = _decode(data)
        msgspec.json.encode(value, enc_hook=repr)
        return value, True
    except _NOT_SHOWN:
        return None, False


def time_text(at_us: int) -> str:
    """Return a time as text: seconds from the start for a simulation, UTC for a live system."""
    if at_us < _SIMULATED_US_MAX:
        return f"{at_us / 1_000_000:.6f} s"
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError, OSError):  # outside the range of dates
        return f"{at_us:,} us"


def value_text(value: Any) -> str:
    """Return a decoded state or message in one line, cut off if it is too long."""
    text = msgspec.json.encode(value, enc_hook=repr).decode()
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}… ({len(text):,} characters; --json shows all)"


def print_value(found: FoundValue) -> None:
    """Print one value of a snapshot."""
    print_line(f"snapshot   {found.id}")
    try:
        text = msgspec.json.format(msgspec.json.encode(found.value, enc_hook=repr), indent=2).decode()
    except _NOT_SHOWN:
        text = repr(found.value)
    print_lines(f"{found.path} = {text}")


def print_frame(snapshot: Snapshot, manifest: Manifest, verdict: Verdict, pinned: bool, name: str) -> None:
    """Print the whole snapshot; `name` is its short form."""
    retries = f", retries {snapshot.retries}" if snapshot.retries else ""
    short = f" ({name})" if name != str(snapshot.id) else ""
    print_line(f"snapshot   {snapshot.id}{short}{retries}{', pinned' if pinned else ''}")
    place = f"view {snapshot.view.number}, epoch {manifest.epoch}"
    print_line(f"protocol   {snapshot.protocol}, initiated by {', '.join(snapshot.initiators)}, {place}")
    found = list(processes(snapshot, manifest))
    ms = (snapshot.completed_us - snapshot.started_us) / 1000
    pause_us = max((one.pause_us for one in found), default=0)
    pause = f", longest pause {pause_us / 1000:,.1f} ms" if pause_us else ""
    print_line(f"time       {time_text(snapshot.started_us)}, complete after {ms:,.1f} ms{pause}")
    in_flight = f"{count(snapshot.in_flight_messages, 'message')} of {size_text(snapshot.in_flight_bytes)} in flight"
    print_line(f"size       {size_text(snapshot.state_bytes)} of state, {in_flight}")
    _print_proof(verdict)
    print_line()
    _print_processes(found)
    print_line()
    _print_channels(list(channels(snapshot)))


def _print_processes(found: list[FrozenProcess]) -> None:
    """Print a table; omit columns that are empty for all processes."""
    cells = {
        "events": [f"{one.position:,}" for one in found],
        "pause ms": [f"{one.pause_us / 1000:,.2f}" if one.pause_us else "" for one in found],
        "ms": [f"{one.duration_us / 1000:,.1f}" if one.duration_us else "" for one in found],
        "state": [_state_text(one) for one in found],
        "version": [str(one.state_version) if one.state_version != 1 else "" for one in found],
        "timers": [_timers(one) for one in found],
        "waits for": [_waits(one) for one in found],
        "outside": [_outside(one) for one in found],
    }
    shown = {title: column for title, column in cells.items() if any(column)}
    columns = [Column(title, number=title in ("events", "pause ms", "ms", "version")) for title in shown]
    rows = zip([one.process for one in found], *shown.values(), strict=True)
    print_table([Column("process", name=True), *columns], list(rows))


def _print_proof(verdict: Verdict) -> None:
    if verdict.holds:
        print_line(f"proof      holds on {count(verdict.channels, 'channel')} (self-consistent, signer unknown)")
        return
    print_line("proof      violated")
    for finding in verdict.findings:
        print_line(f"  {finding}")


def _print_channels(found: list[FrozenChannel]) -> None:
    rows: list[list[Cell]] = [
        [
            channel.channel if channel.kind == "fifo" else f"{channel.channel} ({channel.kind})",
            f"{channel.sent:,}",
            f"{channel.received:,}",
            f"{len(channel.in_flight):,}",
            size_text(channel.in_flight_bytes) if channel.in_flight_bytes else "",
            _messages_lines(channel.in_flight),
        ]
        for channel in found
    ]
    titles = ("sent", "received", "in flight", "bytes")
    print_table(
        [Column("channel", name=True), *(Column(title, number=True) for title in titles), Column("messages")], rows
    )
    print_line()
    messages = sum(len(channel.in_flight) for channel in found)
    print_line(f"{count(messages, 'message')} in flight on {count(len(found), 'channel')}")


def _state_text(process: FrozenProcess) -> str:
    if process.encoding == KEYED:
        keys = count(process.keys, "key") if process.keys is not None else "unreadable"
        deltas = f", {count(process.deltas, 'delta')}" if process.deltas else ""
        return f"{keys} in {size_text(process.size_bytes)}{deltas}"
    if process.state_bytes is None:
        return value_text(process.state)
    start = process.state_bytes[:16].hex(" ")
    return f"{len(process.state_bytes):,} bytes: {start}{' …' if len(process.state_bytes) > 16 else ''}"


def _timers(process: FrozenProcess) -> str:
    return ", ".join(f"{name} in {after_s * 1000:,.1f} ms" for name, after_s in process.timers.items())


def _waits(process: FrozenProcess) -> str:
    return str(process.declared.waits) if process.declared is not None and process.declared.waits is not None else ""


def _outside(process: FrozenProcess) -> str:
    read = [f"{name} read to {shown_position(position):,}" for name, position in process.sources.items()]
    return ", ".join(read + [f"{name} written to {position:,}" for name, position in process.sinks.items()])


def _messages_lines(messages: list[Message]) -> list[str]:
    lines = [f"#{message.ordinal} {value_text(message.payload)}" for message in messages[:MESSAGES_MAX]]
    if len(messages) > MESSAGES_MAX:
        lines.append(f"and {len(messages) - MESSAGES_MAX:,} more; --json shows all")
    return lines
