"""Each recorded channel state is exactly the messages in flight at the cut, byte for byte."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from strobe.protocol import FIFO, Snapshot
from strobe.simulation.checkers.base import Checker
from strobe.simulation.checkers.cut_consistent import positions

if TYPE_CHECKING:
    from strobe.simulation.journal import ChannelJournal
    from strobe.simulation.world import World

_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def recorded_messages(snapshot: Snapshot, target: str, channel: str) -> list[tuple[int, bytes]]:
    """Return (ordinal, bytes) of each message in flight on `channel`, in recorded order."""
    fragment = snapshot.fragments.get(target)
    items = fragment.in_flight.get(channel, ()) if fragment else ()
    return [
        (item.frame.first_ordinal + place, bytes(payload))
        for item in items
        for place, payload in enumerate(_split(item.frame.body))
        if place >= item.consumed
    ]


class ChannelsExact(Checker):
    name = "channels-exact"

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterator[str]:
        cut = positions(snapshot)
        for spec in snapshot.view.channels:
            if spec.source not in cut or spec.target not in cut:
                continue
            journal = world.journal.channels[spec.id, spec.incarnation]
            source_at, target_at = cut[spec.source], cut[spec.target]
            if journal.orphans(source_at, target_at):
                continue  # the cut is inconsistent here, so there is no channel state to compare
            recorded = recorded_messages(snapshot, spec.target, spec.id)
            yield from _compare(spec.id, journal, journal.in_flight(source_at, target_at), recorded)


def _compare(
    channel: str, journal: "ChannelJournal", expected: list[int], recorded: list[tuple[int, bytes]]
) -> Iterator[str]:
    ordinals = [ordinal for ordinal, _ in recorded]
    if (ordinals if journal.spec.kind == FIFO else sorted(ordinals)) != expected:
        yield f"{channel} has recorded the messages {ordinals}, in flight were {expected}"
        return
    for ordinal, payload in recorded:
        if payload != journal.payloads[ordinal - 1]:
            yield f"message {ordinal} on {channel} is not what was sent"
