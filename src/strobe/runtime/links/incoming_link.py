"""The target's end of a link: counts the frames of one channel, and grants credit to its source.

It outlives connections: a reconnecting source gets the last received sequence number and continues from there. Credit
is granted per frame, after the process has received its messages. So the window bounds the data queued on this machine.
"""

import asyncio
from typing import Protocol

import msgspec

from strobe.protocol.process.events import Marker
from strobe.protocol.values.frames import Frame
from strobe.protocol.values.view import View
from strobe.runtime.links.codec import FrameRejected, LinkWelcome, credit_frame, held_bytes
from strobe.runtime.links.frame_builder import messages_bytes_max
from strobe.runtime.links.handed_over_ends import ReceivingEnd
from strobe.runtime.settings import NodeSettings

# Credit is sent when a quarter of the window is due, and after this time at the latest.
GRANT_AFTER_S = 0.01
UNREADABLE_TIMES = 3
"""Rejections of the same frame before it is reported as a problem. A single one may come from a foreign program."""
REPEATED_TIMES = 5
"""How often in a row the same invalid frame must arrive until the node ends: then the source really sent it."""
NOTHING_DUE = -1
"""The next ordinal of a channel that has ended."""


class LinkConnection(Protocol):
    """The current connection of an `IncomingLink`."""

    def write(self, data: bytes) -> None: ...

    def drop(self) -> None:
        """Close the connection at once; no more frames come from it."""


class Overtaking(msgspec.Struct):
    """A barrier, and the copies of overtaken frames so far; `frames` is None if they exceed the memory bound."""

    marker: Marker
    due: int
    frames: list[Frame] | None
    bytes: int = 0


class IncomingLink:
    """The target's end of one channel in one epoch."""

    __slots__ = (
        "_connection",
        "_grant_bytes",
        "_overtaken_bytes_max",
        "_overtaking",
        "_repeated",
        "_timer",
        "_unreadable",
        "acknowledged",
        "channel",
        "consumed_bytes",
        "duplicates",
        "granted_bytes",
        "ignores_copies",
        "last_sequence",
        "messages_bytes_max",
        "next_ordinal",
        "received_bytes",
        "view",
        "window_bytes",
    )

    def __init__(self, channel: str, settings: NodeSettings, next_ordinal: int = 1) -> None:
        self.channel = channel
        # The next expected message, and the newest view received. Queued items count as received.
        self.next_ordinal = next_ordinal
        self.view: View | None = None
        self.window_bytes = settings.window_bytes
        self.messages_bytes_max = messages_bytes_max(settings)
        self.last_sequence = 0
        self.acknowledged = 0
        self.received_bytes = 0
        self.consumed_bytes = 0
        self.granted_bytes = 0
        # Frames sent again after a reconnect, and skipped.
        self.duplicates = 0
        self._grant_bytes = max(1, settings.window_bytes // 4)
        self._connection: LinkConnection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._overtaken_bytes_max = settings.recording_bytes_max
        self._overtaking: Overtaking | None = None
        # Whether to ignore further copies for an abandoned barrier.
        self.ignores_copies = False
        # The newest rejected frame: its sequence, the number of arrivals, and the problem.
        self._unreadable = (0, 0, "")
        # The newest rule-breaking frame: its sequence, a hash of its content, and the number of arrivals.
        self._repeated = (0, 0, 0)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def waiting_bytes(self) -> int:
        """Bytes received but not consumed."""
        return self.received_bytes - self.consumed_bytes

    def attach(self, connection: LinkConnection) -> LinkWelcome:
        """Use `connection` from now on, drop the previous one, and return the answer to its `Hello`."""
        if self._connection is not None:
            self._connection.drop()
        self._connection = connection
        self._settle()
        return LinkWelcome(self.acknowledged, self.consumed_bytes, self.window_bytes)

    def detach(self, connection: LinkConnection) -> None:
        """Forget `connection`: it is closed."""
        if self._connection is connection:
            self._connection = None

    def note_messages(self, wire_bytes: int) -> None:
        """Count a received frame of messages; raise FrameRejected if its source had no credit for it."""
        if self._overtaking is not None:
            self.refuse_within_barrier("MESSAGES")
        outstanding_bytes = self.received_bytes - self.granted_bytes
        if outstanding_bytes and outstanding_bytes + wire_bytes > self.window_bytes:
            raise FrameRejected(
                "beyond credit",
                f"{wire_bytes} bytes on {self.channel}, of whose window of {self.window_bytes} bytes "
                f"{outstanding_bytes} are taken",
            )
        self.received_bytes += wire_bytes

    def take_back(self, problem: str, wire_bytes: int = 0) -> None:
        """Undo the arrival of the newest frame, which was rejected. Its source may send it again."""
        times = self._unreadable[1] + 1 if self._unreadable[0] == self.last_sequence else 1
        self._unreadable = self.last_sequence, times, problem
        self.received_bytes -= wire_bytes
        self.last_sequence -= 1

    def is_repeated(self, sequence: int, content: int) -> bool:
        """Return whether the source has sent this rule-breaking frame so often that it will send no other.

        Then the two ends of the channel disagree on its history, and retransmission cannot repair that.
        """
        times = self._repeated[2] + 1 if self._repeated[:2] == (sequence, content) else 1
        self._repeated = sequence, content, times
        return times >= REPEATED_TIMES

    @property
    def unreadable(self) -> str | None:
        """The problem of the next frame, if its source keeps sending it and it is always rejected."""
        sequence, times, problem = self._unreadable
        return problem if sequence == self.last_sequence + 1 and times >= UNREADABLE_TIMES else None

    def consumed(self, wire_bytes: int) -> None:
        """Grant credit for a frame of `wire_bytes`: the process has received its messages."""
        self.consumed_bytes += wire_bytes
        if self.consumed_bytes - self.granted_bytes >= self._grant_bytes:
            self._grant()
        elif self._timer is None:
            self.acknowledge_soon()

    def begin_barrier(self, marker: Marker, count: int) -> None:
        """Begin a barrier; copies of the `count` frames that it has overtaken follow."""
        self._overtaking, self.ignores_copies = Overtaking(marker, count, []), False

    def add_overtaken(self, frames: list[Frame]) -> None:
        """Keep copies of overtaken frames. They need no credit; only the bound on recording applies."""
        overtaking = self._overtaking
        if overtaking is None and self.ignores_copies:
            return
        if overtaking is None or len(frames) > overtaking.due:
            due = 0 if overtaking is None else overtaking.due
            self.give_up_barrier()
            problem = f"{len(frames)} OVERTAKEN frames on {self.channel}, but the barrier lacks only {due}"
            raise FrameRejected("unexpected kind", problem)
        overtaking.due -= len(frames)
        overtaking.bytes += sum(map(held_bytes, frames))
        if overtaking.bytes > self._overtaken_bytes_max:
            overtaking.frames = None
        elif overtaking.frames is not None:
            overtaking.frames += frames

    def take_barrier(self) -> tuple[Marker, tuple[Frame, ...] | None] | None:
        """Return the barrier if it is complete, with the overtaken frames (None: they exceed the memory bound)."""
        overtaking = self._overtaking
        if overtaking is None or overtaking.due:
            return None
        self._overtaking = None
        return overtaking.marker, None if overtaking.frames is None else tuple(overtaking.frames)

    def give_up_barrier(self) -> None:
        """Abandon the current barrier, whose copies are inconsistent, and ignore the remaining copies.

        Only the snapshot is lost, and times out. The messages themselves come later.
        """
        self.ignores_copies = self._overtaking is not None
        self._overtaking = None

    def refuse_within_barrier(self, kind: str) -> None:
        """Raise FrameRejected if a frame of this kind comes among the copies for a barrier."""
        if self._overtaking is not None:
            problem = f"a {kind} frame on {self.channel} among the {self._overtaking.due} that a barrier has overtaken"
            self.give_up_barrier()
            raise FrameRejected("unexpected kind", problem)

    def acknowledge_soon(self) -> None:
        """Send an acknowledgement shortly, so that the source can free its copies."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRANT_AFTER_S, self._grant_late)

    def close(self) -> None:
        """End the channel here: drop its connection and grant no more credit."""
        if self._connection is not None:
            self._connection.drop()
            self._connection = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def hand_over(self, incarnation: int) -> ReceivingEnd:
        """Close, and return what the successor of this process needs to go on."""
        self.close()
        self.give_up_barrier()
        return ReceivingEnd(
            self.channel,
            incarnation,
            self.next_ordinal,
            self.view,
            self.last_sequence,
            self.received_bytes,
            self.consumed_bytes,
            self.ignores_copies,
        )

    def resume(self, end: ReceivingEnd) -> None:
        """Go on from `end`, before the first connection."""
        self.next_ordinal, self.view, self.ignores_copies = end.next_ordinal, end.view, end.ignores_copies
        self.last_sequence = self.acknowledged = end.last_sequence
        self.received_bytes = end.received_bytes
        self.consumed_bytes = self.granted_bytes = end.consumed_bytes

    def _grant_late(self) -> None:
        self._timer = None
        if self.consumed_bytes > self.granted_bytes or self.last_sequence > self.acknowledged:
            self._grant()

    def _grant(self) -> None:
        # Without a connection there is nothing to send: the next `LinkWelcome` contains these counts.
        if self._connection is not None:
            self._settle()
            self._connection.write(credit_frame(self.acknowledged, self.consumed_bytes))

    def _settle(self) -> None:
        self.granted_bytes = self.consumed_bytes
        self.acknowledged = self.last_sequence
