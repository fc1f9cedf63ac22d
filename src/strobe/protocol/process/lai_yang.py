"""Lai-Yang (1987), for channels that may reorder: cut indices on messages, and relayed counts (V1).

    L1  Every frame carries its sender's cut index. One sequencer per epoch issues them: index n is snapshot n. A frame
        of an older epoch, received after a rollback, has the index 0: it is before every cut of this epoch.
    L2  On a frame with an index above its own, a process records every missing index first, then delivers the frame.
    L3  The coordinator requests the recording from every process, so that quiet ones record too.
    L4  A frame with an index below n that comes after the local recording of n was in flight at cut n.
    L5  When it records, a process reports how many messages it had sent on each channel. The coordinator relays each
        count to the receiver. The channel is complete when that number of messages of a lower index have come.

Why it works: a frame with an index below n was sent before its sender's cut n, a frame with n or more after it. So no
order on the channel is needed. By L2 no message sent after the sender's cut is received before the receiver's. By L4
and L5 the channel state is exactly the messages sent before the sender's cut and not received before the receiver's.
"""

from strobe.errors import ProtocolViolation
from strobe.protocol.process.effects import Effect, ReportSentCounts
from strobe.protocol.process.endpoint import Endpoint, Recording
from strobe.protocol.process.events import (
    Breakpoint,
    FrameReceived,
    SentCountRelayed,
    SnapshotRequested,
)
from strobe.protocol.values.frames import InFlight
from strobe.protocol.values.ids import COORDINATOR, SnapshotId

CUTS_AT_ONCE_MAX = 64
"""Maximum number of missing indices that are recorded when a higher one is seen."""


class LaiYang(Endpoint):
    """One process's part of the protocol: events in, effects out."""

    name = "lai-yang"
    sequenced = True

    def _receive_frame(self, event: FrameReceived) -> list[Effect]:
        if self._is_early(event):
            return []
        channel, frame, consumed = event.channel, event.frame, event.consumed
        incoming = self._known(channel)
        index = incoming.index_of(frame)
        effects: list[Effect] = []
        if index > self.index:
            incoming.check(frame, self.process, consumed)
            if not self.may_advance_to(index):
                raise ProtocolViolation(self.process, channel, f"the cut index of a frame leaps to {index}")
            effects = self._advance(index, None)
        effects += self._accept(event)
        for recording in list(self.open.values()):
            if index < recording.snapshot.counter and channel in recording.pending:
                recording.frames[channel].append(InFlight(frame, consumed))
                recording.arrived[channel] += frame.count - consumed
                effects += self._close_if_exhausted(recording, channel)
        return effects

    def may_advance_to(self, index: int) -> bool:
        return self._is_near(index)

    def _request(self, event: SnapshotRequested) -> list[Effect]:
        snapshot = event.snapshot
        if self._is_settled(snapshot) or not self._takes_part_in(event.view):
            return []
        if snapshot.counter > self.index:
            return self._advance(snapshot.counter, event.breakpoint)
        # A repeated request, from a restarted coordinator. It has lost the counts, so report them again.
        recording = self.open.get(snapshot)
        return [_report(recording)] if recording is not None else []

    def _relayed(self, event: SentCountRelayed) -> list[Effect]:
        if self._is_settled(event.snapshot):
            return []
        # Counts are relayed only for an existing cut, so this process takes part in it now at the latest.
        effects = self._advance(event.snapshot.counter, None)
        recording = self.open.get(event.snapshot)
        if recording is None or event.channel not in recording.pending:
            return effects
        recording.expected[event.channel] = event.count
        return effects + self._close_if_exhausted(recording, event.channel)

    def _advance(self, index: int, inside: Breakpoint | None) -> list[Effect]:
        """Record every cut after our own index up to `index`, all at this moment (L2)."""
        effects: list[Effect] = []
        # After a jump, all but the last few ended long ago. A process may name a snapshot with a counter far ahead
        # (C1).
        self.index = max(self.index, index - CUTS_AT_ONCE_MAX)
        while self.index < index:
            self.index += 1
            snapshot = SnapshotId(self.epoch, self.index, COORDINATOR)
            if self._is_settled(snapshot):
                continue
            recording, record_state = self._begin(snapshot, inside)
            for channel, items in recording.frames.items():
                recording.arrived[channel] += sum(item.frame.count - item.consumed for item in items)
            effects += [record_state, _report(recording), *self._finish(recording)]
        return effects

    def _close_if_exhausted(self, recording: Recording, channel: str) -> list[Effect]:
        expected = recording.expected.get(channel)
        if expected is None or recording.arrived[channel] < expected:
            return []
        recording.pending.discard(channel)
        return self._finish(recording)


def _report(recording: Recording) -> Effect:
    return ReportSentCounts(recording.snapshot, {channel: sent.count for channel, sent in recording.sent.items()})
