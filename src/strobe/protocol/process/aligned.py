"""Aligned barriers (asynchronous barrier snapshotting; Carbone et al., 2015), for FIFO channels without a cycle (V3).

    A1  A process without inputs records on request, and sends a barrier on every output. Others get no request.
    A2  A barrier on an input: hold that input back. Nothing behind the barrier is received before the recording.
    A3  A barrier on every input: record, send a barrier on every output, resume all inputs. Every channel is empty: all
        messages before its barrier were received, and no message behind it was.
    A4  The sequencer names the snapshots, and sources record them in its order; so on each channel barriers come in
        that order. A barrier of a later snapshot on an input means that no earlier one will come on it: give up each
        snapshot that waits for one, and resume its inputs. The coordinator's time-out ends that snapshot (E6).
    A5  On an abort, a crash or a new view: resume the inputs that were held back.

Why it works: on each input, the process's cut lies exactly at the barrier, as does the sender's cut. So the messages
received before the one cut are exactly those sent before the other. Why it ends: messages ahead of a barrier never wait
for it, and without a cycle no process waits for its own barrier.
"""

from typing import Any

from strobe.errors import ProtocolViolation
from strobe.protocol.process.effects import Effect, HoldChannel, ResumeChannel, SendMarker
from strobe.protocol.process.endpoint import Endpoint
from strobe.protocol.process.events import FrameReceived, MarkerReceived, SnapshotRequested
from strobe.protocol.values.frames import Frame
from strobe.protocol.values.ids import SnapshotId


class Aligned(Endpoint):
    """One process's part of the protocol: events in, effects out."""

    name = "aligned"
    sequenced = True
    barriers = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # The inputs that are held back, by the snapshot they wait for.
        self.aligning: dict[SnapshotId, set[str]] = {}
        self.newest: SnapshotId | None = None

    def _receive_frame(self, event: FrameReceived) -> list[Effect]:
        if self._is_early(event):
            return []
        if self._is_held(event.channel):
            raise ProtocolViolation(self.process, event.channel, "a frame was handed over that is held back (A2)")
        return self._accept(event)

    def _receive_marker(self, event: MarkerReceived) -> list[Effect]:
        channel, marker = event.channel, event.marker
        if not self._concerns(channel, marker):
            return []
        if marker.sent_count != self.incoming[channel].count:
            problem = f"a barrier states that {marker.sent_count} messages arrived before it, not"
            raise ProtocolViolation(self.process, channel, f"{problem} {self.incoming[channel].count}")
        effects = self._give_up_before(marker.snapshot, channel)
        held = self.aligning.setdefault(marker.snapshot, set())
        if len(held) + 1 == len(self.incoming):
            return effects + self._align(marker.snapshot)
        held.add(channel)
        return [*effects, HoldChannel(channel, marker.snapshot)]

    def _request(self, event: SnapshotRequested) -> list[Effect]:
        snapshot = event.snapshot
        if self.incoming or self._is_settled(snapshot) or not self._takes_part_in(event.view):
            return []
        if self.newest is not None and snapshot < self.newest:
            return []
        return self._align(snapshot)

    def _align(self, snapshot: SnapshotId) -> list[Effect]:
        """Record: every input is at its barrier (A3)."""
        recording, record_state = self._begin(snapshot, None)
        recording.pending.clear()
        self.newest = snapshot
        markers = [SendMarker(channel, self._barrier(recording, channel)) for channel in self.outgoing]
        return [record_state, *markers, *self._finish(recording), *self._release(snapshot)]

    def take_plain(self, channel: str, frame: Frame) -> bool:
        # While inputs are held back, `handle` must check each frame.
        return not self.aligning and super().take_plain(channel, frame)

    def is_under_way(self, snapshot: SnapshotId) -> bool:
        return snapshot in self.aligning or super().is_under_way(snapshot)

    def _is_held(self, channel: str) -> bool:
        return any(channel in held for held in self.aligning.values())

    def _release(self, snapshot: SnapshotId) -> list[Effect]:
        return [ResumeChannel(channel) for channel in sorted(self.aligning.pop(snapshot, ()))]

    def _give_up_before(self, snapshot: SnapshotId, channel: str) -> list[Effect]:
        """Abort earlier snapshots whose barrier can no longer come on `channel` (A4)."""
        lost = [known for known, held in self.aligning.items() if known < snapshot and channel not in held]
        return [effect for known in lost for effect in self._abort(known, "a later one has come")]

    # Aborts (A5)

    def _abort(self, snapshot: SnapshotId, reason: str) -> list[Effect]:
        return super()._abort(snapshot, reason) + self._release(snapshot)

    def _abort_all(self, reason: str) -> list[Effect]:
        aligning = [effect for snapshot in list(self.aligning) for effect in self._abort(snapshot, reason)]
        return aligning + super()._abort_all(reason)

    def _settle(self, counter: int) -> list[Effect]:
        late = [snapshot for snapshot in self.aligning if snapshot.counter < counter]
        effects = [effect for snapshot in late for effect in self._abort(snapshot, "settled elsewhere")]
        return effects + super()._settle(counter)
