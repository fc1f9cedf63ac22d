"""What a process sends: open frames, sealed once a loop turn or when they are full, and handed to the links.

A message is sent when `send` returns, even while its frame is open; so whatever may record must flush first.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from strobe.encodable import UNENCODABLE, message_refusal
from strobe.errors import UsageError
from strobe.event_bound import FRAME_BYTES, EventBound
from strobe.protocol import Endpoint
from strobe.runtime.links.codec import finish_messages
from strobe.runtime.links.frame_builder import OpenFrame
from strobe.runtime.links.outgoing_link import OutgoingLink
from strobe.runtime.node.application import Application
from strobe.runtime.settings import NodeSettings

_ENCODER = msgspec.msgpack.Encoder()
_encode_into = _ENCODER.encode_into

Sealed = Callable[[str, int, int, list[int], Any], None]
"""Told of each sealed frame: its channel, the ordinal of its first message, how many, their events, its body."""


class Outbox:
    """The outgoing channels of one process in one epoch. `bound` is on what one event may send."""

    def __init__(self, name: str, protocol: Endpoint, settings: NodeSettings, bound: EventBound) -> None:
        self.name = name
        self._bound = bound
        self.outgoing_links: dict[str, OutgoingLink] = {}
        # Those whose channel has ended, and to whom: what was sent on them may still be on its way.
        self._ended: list[tuple[str, OutgoingLink]] = []
        # A trace wants to know which event sent what; then this is whose events are meant.
        self.counted: Application | None = None
        self.on_seal: Sealed | None = None
        # Then, too: the frames that the event under way has put messages into.
        self.touched: list[OpenFrame] = []
        self._protocol = protocol
        self._settings = settings
        self._frames: dict[str, OpenFrame] = {}
        # The same; empty while the event under way may send nothing more. So that needs no look at every message.
        self._open = self._frames
        # Channels on which something was sent since the last flush, in that order.
        self._dirty: dict[str, None] = {}
        # Whether so much waits on some channel that the process is not to be given more; and on which.
        self.full = False
        self._full: set[str] = set()
        self._waiting: list[asyncio.Future[None]] = []
        # Somebody will flush in this turn of the loop: whoever hands over what was read says so, to spare a callback.
        self.flush_follows = False
        self._closed = False
        self._call_soon: Callable[..., Any] = asyncio.get_running_loop().call_soon

    def add(self, channel: str, outgoing_link: OutgoingLink) -> None:
        self.outgoing_links[channel] = outgoing_link
        self._frames[channel] = OpenFrame(channel, _ENCODER, self._settings)

    def finish(self, channel: str, target: str) -> None:
        """Take the channel out: it has ended. What was sent on it still goes its way."""
        self._frames.pop(channel)
        outgoing_link = self.outgoing_links.pop(channel)
        outgoing_link.finish()
        self._ended = [*((to, ended) for to, ended in self._ended if not ended.closed), (target, outgoing_link)]
        self.has_room(channel)

    def reach_ended(self, addresses: Mapping[str, tuple[str, int]], members: Collection[str]) -> None:
        """Peers may have new addresses. Who is none of `members` has left with all that it was sent, whether or not it
        could still say so.
        """
        for target, outgoing_link in self._ended:
            if target not in members:
                outgoing_link.close()
            elif target in addresses:
                outgoing_link.reach(addresses[target])
        self._ended = [(target, outgoing_link) for target, outgoing_link in self._ended if not outgoing_link.closed]

    def send(self, channel: str, message: Any) -> None:
        """Send `message`: it is sent when this returns, and may be changed afterwards."""
        try:
            frame = self._open[channel]
        except KeyError:
            frame = self._find(channel)
        # As `OpenFrame.append`, in place: the call alone is a third of what a message costs here. So is what happens at
        # few messages only: all of that is behind `due`.
        buffer = frame.buffer
        try:
            _encode_into(message, buffer, -1)
        except BaseException as error:
            del buffer[frame.size :]
            if not isinstance(error, UNENCODABLE):
                raise
            raise message_refusal(self.name, channel, message, error) from error
        size = len(buffer)
        if size >= frame.bytes_max:
            if size - frame.size > frame.message_bytes_max:
                frame.refuse(message)
            frame.due = 0
        frame.size = size
        frame.count = count = frame.count + 1
        if count >= frame.due:
            self._attend_to(frame)

    def _attend_to(self, frame: OpenFrame) -> None:
        """See to what the newest message of `frame` brings: it is the first, or the last, or another event's."""
        if self.counted is not None and self.counted.position != frame.position:
            frame.note_event(self.counted.position)
            self.touched.append(frame)
        if frame.count == 1:
            self._dirty[frame.channel] = None
            if not self.flush_follows:
                self.flush_follows = True
                self._call_soon(self.flush_now)
        if frame.is_full:
            self._seal(frame)
        else:
            frame.due = frame.messages_max

    def next_event(self) -> None:
        """An event has ended that sent something, and is counted: what is sent from now on is another's."""
        for frame in self.touched:
            frame.due = 0
        self.touched.clear()

    def _find(self, channel: str) -> OpenFrame:
        """Return the open frame of `channel`; raise UsageError if there is none, or the event has sent too much."""
        self._bound.check()
        self._open = self._frames
        if channel in self._frames:
            return self._frames[channel]
        known = ", ".join(self._frames) or "none"
        raise UsageError(f"process {self.name!r} sends on {channel!r}, which is not an output of it; outputs: {known}")

    def flush_now(self) -> None:
        """Flush as was promised."""
        self.flush_follows = False
        self.flush()

    def flush(self) -> None:
        """Seal every open frame, and let everything go."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        for channel in dirty:
            frame = self._frames.get(channel)
            if frame is not None:
                if frame.count:
                    self._seal(frame)
                self.outgoing_links[channel].flush()

    def _seal(self, open_frame: OpenFrame) -> None:
        if self._closed:
            open_frame.seal()
            return
        channel, protocol = open_frame.channel, self._protocol
        buffer = open_frame.buffer
        count, body = open_frame.seal()
        # Numbered here, where it lies: as `SendFrame`, which would follow from `MessagesSent`.
        first = protocol.number(channel, count, body)  # type: ignore[arg-type]
        outgoing_link = self.outgoing_links[channel]
        outgoing_link.put(finish_messages(buffer, count, protocol.announced, first, protocol.index))
        bound = self._bound
        bound.pending += FRAME_BYTES + len(buffer)
        if bound.pending >= bound.look_bytes and bound.exceeds():
            self._open = {}
        if outgoing_link.backlog_bytes > outgoing_link.backlog_bytes_max:
            self._full.add(channel)
            self.full = True
        if self.on_seal is not None:
            self.on_seal(channel, first, count, open_frame.take_events(), body)

    def _tell_unsealed(self) -> None:
        """What was sent and never left belongs into the trace all the same: its events have happened."""
        for channel, frame in self._frames.items():
            if self.on_seal is not None and frame.count and not self._closed:
                following = self._protocol.outgoing[channel].count + 1
                count, body = frame.seal()
                self.on_seal(channel, following, count, frame.take_events(), body)

    def is_full(self, channel: str) -> bool:
        """Tell whether what waits on `channel` holds the process back."""
        return channel in self._full

    def has_room(self, channel: str) -> None:
        """Enough of what waited on `channel` has gone."""
        self._full.discard(channel)
        self.full = bool(self._full)
        if not self.full:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def room(self) -> None:
        """Wait until no channel is full, or the epoch is over."""
        if self.full and not self._closed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def close(self) -> None:
        self._tell_unsealed()
        self._closed = True
        self._full.clear()
        self.has_room("")
        for outgoing_link in (*self.outgoing_links.values(), *(ended for _, ended in self._ended)):
            outgoing_link.close()
