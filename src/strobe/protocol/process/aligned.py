"""Aligned barriers (asynchronous barrier snapshotting; Carbone et al., 2015), for FIFO channels without a cycle (V3).

    A1  A process without inputs records when it is asked to, and sends a barrier on every output. Others are not asked.
    A2  A barrier on an input: hold that input back. Nothing behind the barrier is received before the recording.
    A3  A barrier has come on every input: record, send a barrier on every output, go on with all inputs. Every channel
        is empty: all before its barrier was received, nothing behind it was.
    A4  The sequencer names the snapshots, and sources record them in its order; so on each channel barriers come in
        that order. A barrier of a later snapshot on an input says that no earlier one will come on it: what waits for
        one is given up, its inputs are let go, and its coordinator's time-out ends it (E6).
    A5  An abort, a crash, another view: inputs that were held back are let go.

Why it works: the process's cut lies on each input exactly at the barrier, which is where the sender's cut lies. So what
was sent before the one cut was received before the other, and nothing else was. Why it ends: what is ahead of a barrier
never waits for it, and without a cycle nobody waits for a barrier of his own.
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
        # The inputs that are held back, by the snapshot that they wait for.
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
            problem = f"a barrier says that {marker.sent_count} messages came before it, and not"
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
        # While inputs are held back, `handle` looks at each frame.
        return not self.aligning and super().take_plain(channel, frame)

    def is_under_way(self, snapshot: SnapshotId) -> bool:
        return snapshot in self.aligning or super().is_under_way(snapshot)

    def _is_held(self, channel: str) -> bool:
        return any(channel in held for held in self.aligning.values())

    def _release(self, snapshot: SnapshotId) -> list[Effect]:
        return [ResumeChannel(channel) for channel in sorted(self.aligning.pop(snapshot, ()))]

    def _give_up_before(self, snapshot: SnapshotId, channel: str) -> list[Effect]:
        """Let go of earlier snapshots, whose barrier will not come on `channel` any more (A4)."""
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
