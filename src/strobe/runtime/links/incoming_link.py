"""The target's end of a link: what has come on one channel, and the credit that its source is given.

It outlives connections: a source that connects again is told how far it had come, and goes on from there. Credit is
given for whole frames, when the process has received their messages; so the window bounds what waits at this machine.
"""

import asyncio
from typing import Protocol

import msgspec

from strobe.protocol.process.events import Marker
from strobe.protocol.values.frames import Frame
from strobe.protocol.values.view import View
from strobe.runtime.links.codec import FrameRejected, LinkWelcome, credit_frame, held_bytes
from strobe.runtime.links.frame_builder import messages_bytes_max
from strobe.runtime.settings import NodeSettings

# Credit is told when a quarter of the window is due, and after this long at the latest.
GRANT_AFTER_S = 0.01
UNREADABLE_TIMES = 3
"""A frame that was rejected this often is a trouble: a single one may be a stranger's."""
INSISTED_TIMES = 5
"""A frame that breaks a rule, and came this often without any other between, is what its source has really sent."""
NOTHING_DUE = -1
"""In place of the next ordinal of a channel that has ended."""


class InletConnection(Protocol):
    """The connection that an inlet uses at the moment."""

    def write(self, data: bytes) -> None: ...

    def drop(self) -> None:
        """End the connection at once; nothing more comes from it."""


class Overtaking(msgspec.Struct):
    """A barrier that has come, and what it has overtaken as far as that has come; None where that is too much."""

    marker: Marker
    due: int
    frames: list[Frame] | None
    bytes: int = 0


class IncomingLink:
    """One for each incoming channel, for as long as the epoch lasts."""

    __slots__ = (
        "_connection",
        "_grant_bytes",
        "_insisted",
        "_overtaken_bytes_max",
        "_overtaking",
        "_timer",
        "_unreadable",
        "acknowledged",
        "channel",
        "consumed_bytes",
        "duplicates",
        "granted_bytes",
        "last_sequence",
        "messages_bytes_max",
        "next_ordinal",
        "passes_over",
        "received_bytes",
        "view",
        "window_bytes",
    )

    def __init__(self, channel: str, settings: NodeSettings, next_ordinal: int = 1) -> None:
        self.channel = channel
        # The first message that has not come, and the newest view that has: whatever waits here is counted as come.
        self.next_ordinal = next_ordinal
        self.view: View | None = None
        self.window_bytes = settings.window_bytes
        self.messages_bytes_max = messages_bytes_max(settings)
        self.last_sequence = 0
        self.acknowledged = 0
        self.received_bytes = 0
        self.consumed_bytes = 0
        self.granted_bytes = 0
        # Frames that came again after a reconnect, and were skipped.
        self.duplicates = 0
        self._grant_bytes = max(1, settings.window_bytes // 4)
        self._connection: InletConnection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._overtaken_bytes_max = settings.recording_bytes_max
        self._overtaking: Overtaking | None = None
        # Whether copies are ignored that still come for a barrier which was given up.
        self.passes_over = False
        # The newest frame that was no good, how often it has come, and why.
        self._unreadable = (0, 0, "")
        # The same of one that broke a rule: its sequence, what it contained, and how often just that has come.
        self._insisted = (0, 0, 0)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def waiting_bytes(self) -> int:
        """What has come and has not been consumed."""
        return self.received_bytes - self.consumed_bytes

    def attach(self, connection: InletConnection) -> LinkWelcome:
        """Use `connection` from now on, drop the one before, and return what to answer."""
        if self._connection is not None:
            self._connection.drop()
        self._connection = connection
        self._settle()
        return LinkWelcome(self.acknowledged, self.consumed_bytes, self.window_bytes)

    def detach(self, connection: InletConnection) -> None:
        """`connection` is gone."""
        if self._connection is connection:
            self._connection = None

    def note_messages(self, wire_bytes: int) -> None:
        """Count a frame of messages that has come; raise FrameRejected where its source had no credit for it."""
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
        """The newest frame is no good: as if it had not come. Its source may send it again."""
        times = self._unreadable[1] + 1 if self._unreadable[0] == self.last_sequence else 1
        self._unreadable = self.last_sequence, times, problem
        self.received_bytes -= wire_bytes
        self.last_sequence -= 1

    def insists(self, sequence: int, content: int) -> bool:
        """Tell whether the source has sent this frame, which breaks a rule, so often that it will send no other.

        Then the two ends of the channel remember different pasts, and no retransmission mends that.
        """
        times = self._insisted[2] + 1 if self._insisted[:2] == (sequence, content) else 1
        self._insisted = sequence, content, times
        return times >= INSISTED_TIMES

    @property
    def unreadable(self) -> str | None:
        """What is wrong with the next frame, where its source sends it again and again and it cannot be read."""
        sequence, times, problem = self._unreadable
        return problem if sequence == self.last_sequence + 1 and times >= UNREADABLE_TIMES else None

    def consumed(self, wire_bytes: int) -> None:
        """The process has received the messages of a frame of `wire_bytes`: its source may send as much again."""
        self.consumed_bytes += wire_bytes
        if self.consumed_bytes - self.granted_bytes >= self._grant_bytes:
            self._grant()
        elif self._timer is None:
            self.acknowledge_soon()

    def begin_barrier(self, marker: Marker, count: int) -> None:
        """A barrier has come, and copies of `count` frames that it has overtaken follow."""
        self._overtaking, self.passes_over = Overtaking(marker, count, []), False

    def add_overtaken(self, frames: list[Frame]) -> None:
        """Keep frames that the barrier has overtaken: there is no credit for these, only the bound of recording."""
        overtaking = self._overtaking
        if overtaking is None and self.passes_over:
            return
        if overtaking is None or len(frames) > overtaking.due:
            due = 0 if overtaking is None else overtaking.due
            self.give_up_barrier()
            problem = f"{len(frames)} OVERTAKEN frames on {self.channel}, where a barrier has {due} to come"
            raise FrameRejected("unexpected kind", problem)
        overtaking.due -= len(frames)
        overtaking.bytes += sum(map(held_bytes, frames))
        if overtaking.bytes > self._overtaken_bytes_max:
            overtaking.frames = None
        elif overtaking.frames is not None:
            overtaking.frames += frames

    def take_barrier(self) -> tuple[Marker, tuple[Frame, ...] | None] | None:
        """Return the barrier that is complete now, if one is, and what it has overtaken; None: more than may be."""
        overtaking = self._overtaking
        if overtaking is None or overtaking.due:
            return None
        self._overtaking = None
        return overtaking.marker, None if overtaking.frames is None else tuple(overtaking.frames)

    def give_up_barrier(self) -> None:
        """Forget the barrier that is under way, whose copies do not add up, and pass over the rest of them.

        They are only copies: the snapshot is lost, and times out; the messages themselves come later.
        """
        self.passes_over = self._overtaking is not None
        self._overtaking = None

    def refuse_within_barrier(self, kind: str) -> None:
        """Raise FrameRejected where a frame of this kind comes among what a barrier has overtaken."""
        if self._overtaking is not None:
            problem = f"a {kind} frame on {self.channel} among the {self._overtaking.due} that a barrier has overtaken"
            self.give_up_barrier()
            raise FrameRejected("unexpected kind", problem)

    def acknowledge_soon(self) -> None:
        """Tell the source before long how far it has come, so that it keeps nothing in vain."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRANT_AFTER_S, self._grant_late)

    def close(self) -> None:
        """End the channel here: its connection is dropped, and nothing is granted any more."""
        if self._connection is not None:
            self._connection.drop()
            self._connection = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _grant_late(self) -> None:
        self._timer = None
        if self.consumed_bytes > self.granted_bytes or self.last_sequence > self.acknowledged:
            self._grant()

    def _grant(self) -> None:
        # Without a connection nothing is told: the next one begins with a Welcome that says all of it.
        if self._connection is not None:
            self._settle()
            self._connection.write(credit_frame(self.acknowledged, self.consumed_bytes))

    def _settle(self) -> None:
        self.granted_bytes = self.consumed_bytes
        self.acknowledged = self.last_sequence
