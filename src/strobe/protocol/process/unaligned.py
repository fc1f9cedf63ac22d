"""Unaligned barriers, for FIFO channels without a cycle (V4): Chandy-Lamport whose markers overtake what is queued.

    U1  The first barrier, on whatever channel, as soon as it reaches the machine: record at once (C3), and send a
        barrier on every output, ahead of all that waits there (C2).
    U2  A barrier says how many messages its sender had sent, and brings copies of those that it overtook at the sender;
        the host adds what it overtook here. Both parts together, behind what was received since the recording, are the
        state of its channel (C4). What was overtaken is received later, in its order, like anything else.

Why it works: the cuts are those of Chandy-Lamport, and so is the state of a channel: what was sent before the sender's
cut and not received before the receiver's. Only where it is taken from differs: from the queues, where that rule takes
it from the process as it comes. So nobody waits for a queue to be worked off: each hop takes as long as the wire does.

Copies go to the receiver, and not the sender's part into the sender's fragment: a channel's state is then in one place,
as in every other protocol, and is proved, stored and restored as there.
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
        """Record the local state, then send the barriers ahead of what waits (U1)."""
        recording, record_state = self._begin(snapshot, inside)
        barriers = (SendBarrier(channel, self._barrier(recording, channel)) for channel in self.outgoing)
        return recording, [record_state, *barriers]


def joined(event: BarrierArrived, incoming: Incoming, process: str) -> list[InFlight]:
    """Return what a barrier has overtaken, the receiver's part and then the sender's; raise ProtocolViolation where it
    is not all that was sent before the barrier and has not been received (U2)."""
    sent = event.marker.sent_count
    assert sent is not None, "a barrier says how much was sent before it"
    queued = [*event.waiting, *(InFlight(frame) for frame in event.overtaken)]
    items = [item for item in queued if incoming.next_ordinal <= item.frame.first_ordinal <= sent]
    found = incoming.count + sum(item.frame.count - item.consumed for item in items)
    if found != sent:
        problem = f"a barrier says that {sent} messages were sent before it; {found} were received or overtaken"
        raise ProtocolViolation(process, event.channel, problem)
    return items
