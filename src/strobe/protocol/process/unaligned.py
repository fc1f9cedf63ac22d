"""Unaligned barriers, for FIFO channels without a cycle (V4): Chandy-Lamport with markers that overtake.

    U1  The first barrier, on any channel, as soon as it reaches the machine: record at once (C3), and send a barrier on
        every output, ahead of all messages queued there (C2).
    U2  A barrier carries the number of messages its sender had sent, and copies of those that it overtook at the
        sender. The host adds those that it overtook here. Both parts together, behind the messages received since the
        recording, are the state of its channel (C4). The overtaken messages are received later, in order, as usual.

Why it works: the cuts are those of Chandy-Lamport, and so is the state of a channel: the messages sent before the
sender's cut and not received before the receiver's. Only the source differs: they are taken from the queues, not from
the process as it receives them. So no process waits for a queue to drain: each hop takes as long as the wire does.

The sender's part is copied to the receiver instead of going into the sender's fragment. So the whole state of a channel
is in one place, and is proved, stored and restored as in every other protocol.
"""

from strobe.errors import ProtocolViolation
from strobe.protocol.process.chandy_lamport import ChandyLamport
from strobe.protocol.process.channels import Incoming
from strobe.protocol.process.effects import Effect, SendBarrier
from strobe.protocol.process.endpoint import Recording
from strobe.protocol.process.events import BarrierArrived, Breakpoint
from strobe.protocol.values.frames import InFlight
from strobe.protocol.values.ids import SnapshotId


class Unaligned(ChandyLamport):
    """One process's part of the protocol: events in, effects out."""

    name = "unaligned"
    sequenced = True
    barriers = True
    overtakes = True

    def check_barrier(self, event: BarrierArrived) -> None:
        recording = self.open.get(event.marker.snapshot)
        if self._concerns(event.channel, event.marker) and (recording is None or event.channel in recording.pending):
            joined(event, self.incoming[event.channel], self.process)

    def _barrier_arrived(self, event: BarrierArrived) -> list[Effect]:
        channel, marker = event.channel, event.marker
        if not self._concerns(channel, marker):
            return []
        recording, effects = self._recorded(marker.snapshot)
        if channel in recording.pending:
            recording.frames[channel] += self._overtaken(event)
            recording.pending.discard(channel)
        return effects + self._finish(recording)

    def _overtaken(self, event: BarrierArrived) -> list[InFlight]:
        return joined(event, self.incoming[event.channel], self.process)

    def _record(self, snapshot: SnapshotId, inside: Breakpoint | None) -> tuple[Recording, list[Effect]]:
        """Record the local state, then send the barriers ahead of queued messages (U1)."""
        recording, record_state = self._begin(snapshot, inside)
        barriers = (SendBarrier(channel, self._barrier(recording, channel)) for channel in self.outgoing)
        return recording, [record_state, *barriers]


def joined(event: BarrierArrived, incoming: Incoming, process: str) -> list[InFlight]:
    """Return the messages that a barrier has overtaken: first the receiver's part, then the sender's.

    Raise ProtocolViolation if they are not exactly the messages sent before the barrier and not yet received (U2).
    """
    sent = event.marker.sent_count
    assert sent is not None, "a barrier states how much was sent before it"
    queued = [*event.waiting, *(InFlight(frame) for frame in event.overtaken)]
    items = [item for item in queued if incoming.next_ordinal <= item.frame.first_ordinal <= sent]
    found = incoming.count + sum(item.frame.count - item.consumed for item in items)
    if found != sent:
        problem = f"a barrier states that {sent} messages were sent before it; {found} were received or overtaken"
        raise ProtocolViolation(process, event.channel, problem)
    return items
