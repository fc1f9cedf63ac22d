"""Tests as sequence diagrams: which events one machine receives, and exactly which effects follow.

    p = Playbook(ChandyLamport("p", VIEW))
    p >> request(S1) << [RecordState(S1), send_marker("pq", S1)]

`>>` passes the machine an event; `<<` compares all effects of that event with the expected ones. If the effects of an
event were never checked, the next step fails, so that none is missed. `p.ignores(event)` is `p >> event << []`.
"""

from collections.abc import Sequence
from typing import Any, Self

import msgspec
from hypothesis import settings

from strobe.protocol import FIFO, ChandyLamport, ChannelSpec, Fragment, Frame, LaiYang, SnapshotId, View
from strobe.protocol.process.effects import DeliverFrame, Effect, FinishFragment, SendFrame, SendMarker
from strobe.protocol.process.events import (
    Breakpoint,
    Event,
    FrameReceived,
    Marker,
    MarkerReceived,
    MessagesSent,
    SnapshotRequested,
)

Machine = ChandyLamport | LaiYang


class Playbook:
    """Drives one process's protocol, step by step."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.seen: list[Effect] | None = None

    def __rshift__(self, event: Event) -> Self:
        assert self.seen is None, f"nobody looked at {self.seen}"
        self.seen = self.machine.handle(event)
        return self

    def __lshift__(self, expected: Sequence[Effect]) -> Self:
        assert self.take() == list(expected)
        return self

    def take(self) -> list[Effect]:
        """Return the effects of the last event, for a closer look than `<<`."""
        seen, self.seen = self.seen, None
        assert seen is not None, "nothing has happened yet"
        return seen

    def handle(self, event: Event) -> list[Effect]:
        return (self >> event).take()

    def ignores(self, event: Event) -> None:
        self >> event << []

    def finishes(self, event: Event) -> Fragment:
        """Pass `event`, which must finish a fragment; return that fragment."""
        (fragment,) = finished(self.handle(event))
        return fragment


def examples(share: float) -> settings:
    """Use a share of the profile's examples, so that `--hypothesis-profile=search` searches longer in every test."""
    return settings(max_examples=max(1, round(share * settings.default.max_examples)))


def view(*channels: str, number: int = 1, alone: Sequence[str] = (), kind: str = FIFO) -> View:
    """Make a view of channels like "p>q", or "p>q:name" if two connect the same pair; ids are "pq", or the name."""
    specs = []
    for text in channels:
        ends, _, name = text.partition(":")
        source, _, target = ends.partition(">")
        specs.append(ChannelSpec(name or source + target, source, target, kind))
    processes = sorted({*alone, *(end for spec in specs for end in (spec.source, spec.target))})
    made = View(number, tuple(processes), tuple(specs))
    made.check()
    return made


def snapshot_id(counter: int, initiator: str = "coordinator", epoch: int = 1) -> SnapshotId:
    return SnapshotId(epoch, counter, initiator)


def body(*messages: Any) -> bytes:
    return msgspec.msgpack.encode(list(messages))


def frame(first_ordinal: int, *messages: Any, index: int = 0, view: int = 1) -> Frame:
    return Frame(first_ordinal, len(messages), body(*messages), index, view)


def sent(channel: str, *messages: Any) -> MessagesSent:
    return MessagesSent(channel, len(messages), body(*messages))


def received(channel: str, frame: Frame) -> FrameReceived:
    return FrameReceived(channel, frame)


def marker(channel: str, snapshot: SnapshotId, view: int = 1) -> MarkerReceived:
    return MarkerReceived(channel, Marker(snapshot.epoch, view, snapshot))


def request(snapshot: SnapshotId, view: int = 1, inside: Breakpoint | None = None) -> SnapshotRequested:
    return SnapshotRequested(snapshot, view, inside)


def send_marker(channel: str, snapshot: SnapshotId, view: int = 1) -> SendMarker:
    return SendMarker(channel, Marker(snapshot.epoch, view, snapshot))


def send(channel: str, frame: Frame) -> SendFrame:
    return SendFrame(channel, frame)


def deliver(channel: str, frame: Frame) -> DeliverFrame:
    return DeliverFrame(channel, frame)


def finished(effects: Sequence[Effect]) -> list[Fragment]:
    return [effect.fragment for effect in effects if isinstance(effect, FinishFragment)]


def in_flight(fragment: Fragment) -> dict[str, list[Any]]:
    """Decode the messages in flight to the process of `fragment`; of a partly consumed frame, only the rest."""
    return {
        channel: [message for item in items for message in msgspec.msgpack.decode(item.frame.body)[item.consumed :]]
        for channel, items in fragment.in_flight.items()
    }


def counts(frontiers: dict[str, Any]) -> dict[str, int]:
    return {channel: frontier.count for channel, frontier in frontiers.items()}
