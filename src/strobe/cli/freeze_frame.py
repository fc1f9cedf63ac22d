"""A snapshot as people read it: every process, every channel, every message in flight, decoded."""

from collections.abc import Iterator
from typing import Any

import msgspec

from strobe.causality.proof import Verdict
from strobe.cli.output import Column, count, print_table, say
from strobe.protocol import ChannelSpec, Fragment, InFlight, Snapshot
from strobe.protocol.fragment import MSGPACK

TEXT_MAX = 400
MESSAGES_MAX = 8

_decode = msgspec.msgpack.Decoder().decode
_decode_body = msgspec.msgpack.Decoder(list[Any]).decode

# Times of live systems count from 1970, those of simulations from the start of the run.
_SIMULATED_US_MAX = 10**15


class Process(msgspec.Struct, frozen=True):
    """One process, frozen. `state` is plain values, or None with the bytes in `state_bytes` (base64 in JSON)."""

    process: str
    position: int
    encoding: str
    state: Any
    state_bytes: bytes | None
    timers: dict[str, float]


class Message(msgspec.Struct, frozen=True):
    """A message in flight."""

    ordinal: int
    payload: Any


class Channel(msgspec.Struct, frozen=True):
    """One channel, frozen: sent and received at the cut, and what is between."""

    channel: str
    source: str
    target: str
    kind: str
    sent: int
    received: int
    in_flight: list[Message]


def processes(snapshot: Snapshot) -> Iterator[Process]:
    """Yield the processes, in the order of the view."""
    for name in snapshot.view.processes:
        fragment = snapshot.fragments.get(name)
        if fragment is None or fragment.state is None:
            continue  # the proof names it
        state = fragment.state
        value, plain = _plain(state.data) if state.encoding == MSGPACK else (None, False)
        yield Process(
            name, state.position, state.encoding, value, None if plain else bytes(state.data), dict(state.timers)
        )


def channels(snapshot: Snapshot) -> Iterator[Channel]:
    """Yield the channels, in the order of the view."""
    for spec in snapshot.view.channels:
        sender, receiver = snapshot.fragments.get(spec.source), snapshot.fragments.get(spec.target)
        if sender is not None and receiver is not None:
            yield _channel(spec, sender, receiver)


def _channel(spec: ChannelSpec, sender: Fragment, receiver: Fragment) -> Channel:
    sent, received = sender.sent.get(spec.id), receiver.received.get(spec.id)
    messages = [message for item in receiver.in_flight.get(spec.id, ()) for message in _messages(item)]
    return Channel(
        spec.id,
        spec.source,
        spec.target,
        spec.kind,
        sent.count if sent is not None else 0,
        received.count if received is not None else 0,
        messages,
    )


def _messages(item: InFlight) -> Iterator[Message]:
    try:
        payloads = _decode_body(item.frame.body)
    except msgspec.DecodeError:
        return  # the proof says so of a frame that is no list of messages
    for place, payload in enumerate(payloads):
        if place >= item.consumed:
            yield Message(item.frame.first_ordinal + place, payload)


def _plain(data: bytes) -> tuple[Any, bool]:
    try:
        return _decode(data), True
    except msgspec.DecodeError:
        return None, False


def time_text(at_us: int) -> str:
    """Return a time: of a simulation in seconds from its start, of a live system in UTC."""
    if at_us < _SIMULATED_US_MAX:
        return f"{at_us / 1_000_000:.6f} s"
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def value_text(value: Any) -> str:
    """Return a decoded state or message in one line, cut off where it is too long to read."""
    text = msgspec.json.encode(value, enc_hook=repr).decode()
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}… ({len(text):,} characters; --json has all)"


def print_frame(snapshot: Snapshot, verdict: Verdict) -> None:
    """Print the whole freeze-frame."""
    say(f"snapshot   {snapshot.id}{f', retries {snapshot.retries}' if snapshot.retries else ''}")
    say(f"protocol   {snapshot.protocol}, initiated by {', '.join(snapshot.initiators)}, view {snapshot.view.number}")
    ms = (snapshot.completed_us - snapshot.started_us) / 1000
    say(f"time       {time_text(snapshot.started_us)}, complete after {ms:,.1f} ms")
    _print_proof(verdict)
    say()
    rows = [[one.process, f"{one.position:,}", _state_text(one), _timers(one)] for one in processes(snapshot)]
    print_table([Column("process", name=True), Column("events", number=True), Column("state"), Column("timers")], rows)
    say()
    _print_channels(list(channels(snapshot)))


def _print_proof(verdict: Verdict) -> None:
    if verdict.holds:
        say(f"proof      holds on {count(verdict.channels, 'channel')} (self-consistent, signer unknown)")
        return
    say("proof      violated")
    for finding in verdict.findings:
        say(f"  {finding}")


def _print_channels(found: list[Channel]) -> None:
    rows = [
        [
            channel.channel if channel.kind == "fifo" else f"{channel.channel} ({channel.kind})",
            f"{channel.sent:,}",
            f"{channel.received:,}",
            f"{len(channel.in_flight):,}",
            _messages_text(channel.in_flight),
        ]
        for channel in found
    ]
    titles = ("sent", "received", "in flight")
    print_table(
        [Column("channel", name=True), *(Column(title, number=True) for title in titles), Column("messages")], rows
    )
    say()
    messages = sum(len(channel.in_flight) for channel in found)
    say(f"{count(messages, 'message')} in flight on {count(len(found), 'channel')}")


def _state_text(process: Process) -> str:
    if process.state_bytes is None:
        return value_text(process.state)
    start = process.state_bytes[:16].hex(" ")
    return f"{len(process.state_bytes):,} bytes: {start}{' …' if len(process.state_bytes) > 16 else ''}"


def _timers(process: Process) -> str:
    return ", ".join(f"{name} in {after_s * 1000:,.1f} ms" for name, after_s in process.timers.items())


def _messages_text(messages: list[Message]) -> str:
    lines = [f"#{message.ordinal} {value_text(message.payload)}" for message in messages[:MESSAGES_MAX]]
    if len(messages) > MESSAGES_MAX:
        lines.append(f"and {len(messages) - MESSAGES_MAX:,} more; --json has all")
    return "\n".join(lines)
