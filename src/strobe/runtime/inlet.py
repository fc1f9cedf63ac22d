"""The target's end of a link: what has come on one channel, and the credit that its source is given.

It outlives connections: a source that connects again is told how far it had come, and goes on from there. Credit is
given for whole frames, when the process has received their messages; so the window bounds what waits at this machine.
"""

import asyncio
from typing import Protocol

import msgspec

from strobe.protocol.events import Marker
from strobe.protocol.frames import Frame
from strobe.runtime.open_frame import messages_bytes_max
from strobe.runtime.settings import NodeSettings
from strobe.runtime.wire import FrameRejected, Welcome, credit_frame, held_bytes

# Credit is told when a quarter of the window is due, and after this long at the latest.
GRANT_AFTER_S = 0.01
UNREADABLE_TIMES = 3
"""Once may be a stranger's garbage; what comes so often is what its source has to say."""


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


class Inlet:
    """One for each incoming channel, for as long as the epoch lasts."""

    __slots__ = (
        "_connection",
        "_grant_bytes",
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
        "received_bytes",
        "window_bytes",
    )

    def __init__(self, channel: str, settings: NodeSettings) -> None:
        self.channel = channel
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
        # The newest frame that was no good, how often it has come, and why.
        self._unreadable = (0, 0, "")

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def waiting_bytes(self) -> int:
        """What has come and has not been consumed."""
        return self.received_bytes - self.consumed_bytes

    def attach(self, connection: InletConnection) -> Welcome:
        """Use `connection` from now on, drop the one before, and return what to answer."""
        if self._connection is not None:
            self._connection.drop()
        self._connection = connection
        self._settle()
        return Welcome(self.last_sequence, self.consumed_bytes, self.window_bytes)

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

    def take_back_messages(self, wire_bytes: int, problem: str) -> None:
        """The frame that was noted last is garbage: as if it had not come. Its source may send it again."""
        times = self._unreadable[1] + 1 if self._unreadable[0] == self.last_sequence else 1
        self._unreadable = self.last_sequence, times, problem
        self.received_bytes -= wire_bytes
        self.last_sequence -= 1

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
        if count < 0:
            raise FrameRejected("wrong body", f"a BARRIER frame on {self.channel} that has overtaken {count} frames")
        self._overtaking = Overtaking(marker, count, [])

    def add_overtaken(self, frames: list[Frame]) -> None:
        """Keep frames that the barrier has overtaken: there is no credit for these, only the bound of recording."""
        overtaking = self._overtaking
        if overtaking is None or len(frames) > overtaking.due:
            due = 0 if overtaking is None else overtaking.due
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

    def refuse_within_barrier(self, kind: str) -> None:
        """Raise FrameRejected where a frame of this kind comes among what a barrier has overtaken."""
        if self._overtaking is not None:
            problem = f"a {kind} frame on {self.channel} among the {self._overtaking.due} that a barrier has overtaken"
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
            self._connection.write(credit_frame(self.last_sequence, self.consumed_bytes))

    def _settle(self) -> None:
        self.granted_bytes = self.consumed_bytes
        self.acknowledged = self.last_sequence
