"""What barriers ask of a live node (V3-V5): channels that are held back, what waits on each, and how long that lasts.

A channel that is held back gets no credit for what comes on it, so what waits here is never more than its window. What
is held back was taken out of the inbox, and goes back to its end, in order, when the channel goes on.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from strobe.protocol import Frame, InFlight, SnapshotId
from strobe.protocol.events import AlignmentTimedOut, BarrierArrived, Marker, SnapshotAborted

if TYPE_CHECKING:
    from strobe.runtime.timeline import Timeline


class Waiting(NamedTuple):
    """Something that waits at this machine; `frame`, where it is one, is still in its `channel`."""

    needs_room: bool
    action: Callable[[], None]
    channel: str | None = None
    frame: Frame | None = None
    consumed: int = 0


class Barriers:
    """The channels of one timeline that wait for each other."""

    def __init__(self, timeline: "Timeline") -> None:
        # What has come on each channel that is held back.
        self.held: dict[str, deque[Waiting]] = {}
        self._timeline = timeline
        self._timers: dict[SnapshotId, asyncio.TimerHandle] = {}
        self._patience: dict[SnapshotId, asyncio.TimerHandle] = {}

    def arrived(self, channel: str, marker: Marker, overtaken: tuple[Frame, ...] = (), overtakes: bool = False) -> None:
        """A barrier has reached this machine: tell of it as soon as the process is between two events."""
        self._timeline.run_between(partial(self._tell_arrived, channel, marker, overtaken, overtakes))

    def hold(self, channel: str, snapshot: SnapshotId) -> None:
        """Hand over nothing more from `channel`, whatever of it waits already."""
        inbox = self._timeline.inbox
        self.held[channel] = deque(waiting for waiting in inbox if waiting.channel == channel)
        rest = [waiting for waiting in inbox if waiting.channel != channel]
        inbox.clear()
        inbox.extend(rest)
        if snapshot not in self._patience:
            self._patience[snapshot] = self._later(self._timeline.host.settings.patience_s, self._give_up, snapshot)

    def resume(self, channel: str) -> None:
        """Go on with what has come on `channel`."""
        self._timeline.inbox.extend(self.held.pop(channel, ()))
        self._timeline.pump_soon()

    def time(self, snapshot: SnapshotId) -> None:
        """Say when alignment has taken as long as it may (V5)."""
        self._timers[snapshot] = self._later(self._timeline.host.settings.alignment_s, self._time_out, snapshot)

    def close(self) -> None:
        for timer in (*self._timers.values(), *self._patience.values()):
            timer.cancel()
        self.held.clear()

    def _tell_arrived(self, channel: str, marker: Marker, overtaken: tuple[Frame, ...], overtakes: bool) -> None:
        waiting = tuple(self._in_channel(channel))
        self._timeline.tell(BarrierArrived(channel, marker, waiting, overtaken, overtakes))
        self._timeline.recordings.joined()

    def _in_channel(self, channel: str) -> Iterator[InFlight]:
        for waiting in (*self.held.get(channel, ()), *self._timeline.inbox):
            if waiting.channel == channel and waiting.frame is not None:
                yield InFlight(waiting.frame, waiting.consumed)

    def _later(self, after_s: float, action: Callable[[SnapshotId], None], snapshot: SnapshotId) -> asyncio.TimerHandle:
        timeline = self._timeline
        between = partial(timeline.run_between, partial(action, snapshot))
        return asyncio.get_running_loop().call_later(after_s, timeline.attempt, between)

    def _time_out(self, snapshot: SnapshotId) -> None:
        del self._timers[snapshot]
        self._timeline.tell(AlignmentTimedOut(snapshot))
        self._timeline.recordings.joined()

    def _give_up(self, snapshot: SnapshotId) -> None:
        """No outcome has come for too long: the coordinator may never return, and nothing is held back for it (E7)."""
        del self._patience[snapshot]
        if self._timeline.protocol.is_under_way(snapshot):
            self._timeline.tell(SnapshotAborted(snapshot))
