"""Lai-Yang (1987), for channels that may reorder: cut indices on messages, and relayed counts (V1).

    L1  Every frame carries its sender's cut index. One sequencer per epoch issues them: index n is snapshot n. What was
        sent in an older epoch, and is received after a rollback, has the index 0: it is before every cut of this one.
    L2  An index above one's own: record every missing index first, then deliver.
    L3  The coordinator asks every process to record, so that quiet ones do.
    L4  A frame with an index below n that comes after the local recording of n was in flight at cut n.
    L5  At the recording, report how many messages had been sent on each channel; the coordinator relays the count to
        the receiver. The channel is complete when that many messages of a lower index have come.

Why it works: a frame with an index below n was sent before its sender's cut n, one with n or more after it; no order on
the channel is needed to tell. By L2 nothing sent after the sender's cut is received before the receiver's. By L4 and L5
the channel state is what was sent before the sender's cut and not received before the receiver's, all of it.
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
"""How many missing indices are recorded at most when one above them is seen."""


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
        # Asked again, by a coordinator that came back: the counts it had are lost, so report them once more.
        recording = self.open.get(snapshot)
        return [_report(recording)] if recording is not None else []

    def _relayed(self, event: SentCountRelayed) -> list[Effect]:
        if self._is_settled(event.snapshot):
            return []
        # A count is relayed only of a cut that exists, so this process takes part in it now at the latest.
        effects = self._advance(event.snapshot.counter, None)
        recording = self.open.get(event.snapshot)
        if recording is None or event.channel not in recording.pending:
            return effects
        recording.expected[event.channel] = event.count
        return effects + self._close_if_exhausted(recording, event.channel)

    def _advance(self, index: int, inside: Breakpoint | None) -> list[Effect]:
        """Record every cut after the own index up to `index`, all at this moment (L2)."""
        effects: list[Effect] = []
        # After a leap, those before the last few have ended long ago; a process may have named one far ahead (C1).
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
