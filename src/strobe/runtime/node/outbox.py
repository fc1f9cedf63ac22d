"""The output of a process: open frames, sealed once per event-loop iteration or when full, and passed to the links.

A message counts as sent when `send` returns, even while its frame is open. So code that may record must flush first.
"""

import asyncio
from _thread import get_ident
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from strobe.encodable import UNENCODABLE, encode_message, listed, message_refusal
from strobe.errors import UsageError
from strobe.event_bound import FRAME_BYTES, EventBound
from strobe.handlers import misplaced
from strobe.message_types import MessageTypes
from strobe.protocol import Endpoint
from strobe.runtime.links.codec import finish_messages
from strobe.runtime.links.frame_builder import OpenFrame
from strobe.runtime.links.handed_over_ends import SendingEnd
from strobe.runtime.links.outgoing_link import OutgoingLink
from strobe.runtime.settings import NodeSettings

_ENCODER = msgspec.msgpack.Encoder()
_encode_into = _ENCODER.encode_into

Sealed = Callable[[str, int, int, list[int], Any], None]
"""Called with each sealed frame: its channel, first ordinal, message count, events and body."""


class Outbox:
    """The outgoing channels of one process in one epoch. `bound` limits the output of one event.

    A process can send only during an event: between `begin_event` and `end_event`, in the thread that made the outbox.
    A program with its own loop may send at any time, so no event begins or ends.
    """

    def __init__(
        self, name: str, protocol: Endpoint, settings: NodeSettings, types: MessageTypes, bound: EventBound
    ) -> None:
        self.name = name
        self._types = types
        self._bound = bound
        self._in_event = True
        self._thread = get_ident()
        self.outgoing_links: dict[str, OutgoingLink] = {}
        # Links of ended channels, with their targets: some messages may still be in flight.
        self._ended: list[tuple[str, OutgoingLink]] = []
        # With a trace: returns the number of the current event, which messages are assigned to.
        self._position: Callable[[], int] | None = None
        self._on_seal: Sealed | None = None
        # With a trace: the frames that the current event has put messages into.
        self.touched: list[OpenFrame] = []
        self._protocol = protocol
        self._settings = settings
        self._frames: dict[str, OpenFrame] = {}
        # The same, or empty outside of events and after the current event has exceeded its bound. This saves checks per
        # message.
        self._open = self._frames
        # Channels with sends since the last flush, in order.
        self._dirty: dict[str, None] = {}
        # Back-pressure: whether a channel is full, so that the process receives nothing; and the full channels.
        self.full = False
        self._full: set[str] = set()
        self._waiting: list[asyncio.Future[None]] = []
        # Whether a flush follows in this event-loop iteration, so that no callback is needed.
        self.flush_follows = False
        self._closed = False
        self._call_soon: Callable[..., Any] = asyncio.get_running_loop().call_soon

    def trace(self, position: Callable[[], int], on_seal: Sealed) -> None:
        """Assign each message to the event with the number `position()`, and call `on_seal` with each sealed frame."""
        self._position, self._on_seal = position, on_seal

    def add(self, channel: str, outgoing_link: OutgoingLink) -> None:
        self.outgoing_links[channel] = outgoing_link
        self._frames[channel] = OpenFrame(channel, _ENCODER, self._settings)

    def resume(self, channel: str, end: SendingEnd) -> None:
        """Go on with the link of `channel` as it was handed over."""
        outgoing_link = self.outgoing_links[channel]
        outgoing_link.resume(end)
        if outgoing_link.full:
            self._full.add(channel)
            self.full = True

    def finish(self, channel: str, target: str) -> None:
        """Remove an ended channel. Its link still delivers all sent messages."""
        self._frames.pop(channel)
        outgoing_link = self.outgoing_links.pop(channel)
        outgoing_link.finish()
        self._ended = [*((to, ended) for to, ended in self._ended if not ended.closed), (target, outgoing_link)]
        self.has_room(channel)

    def reach_ended(self, addresses: Mapping[str, tuple[str, int]], members: Collection[str]) -> None:
        """Update the addresses of ended channels' targets. A target outside `members` has left and received everything,
        even if its last acknowledgement was lost.
        """
        for target, outgoing_link in self._ended:
            if target not in members:
                outgoing_link.close()
            elif target in addresses:
                outgoing_link.reach(addresses[target])
        self._ended = [(target, outgoing_link) for target, outgoing_link in self._ended if not outgoing_link.closed]

    def begin_event(self) -> None:
        self._in_event = True
        self._open = self._frames

    def end_event(self) -> None:
        """Refuse to send until the next event begins."""
        self._in_event = False
        self._open = {}

    def send(self, channel: str, message: Any) -> None:
        """Send `message`. It is sent when this returns, and may be changed afterwards."""
        try:
            frame = self._open[channel]
        except KeyError:
            frame = self._find(channel)
        # Inlines `OpenFrame.append`: the call alone would be a third of the cost per message. Rare work is behind `due`
        # for the same reason.
        if type(message) is not frame.kind:
            self._take_kind(frame, message)
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
            self._do_rare_work(frame, count - 1)

    def send_many(self, channel: str, messages: Iterable[Any]) -> None:
        """Send `messages`, into the same frames as `send` for each. If one cannot be sent, none is.

        So all are encoded before the first is put into a frame: a sealed frame cannot be taken back.
        """
        frame = self._open.get(channel) or self._find(channel)
        if get_ident() != self._thread:
            raise self._misplaced(channel)
        batch = listed(self.name, channel, messages)
        self._types.require_all(self.name, channel, batch)
        for count, body in self._encode_parts(frame, batch):
            before = frame.count
            if frame.append_encoded(count, body) or frame.count >= frame.due:
                self._do_rare_work(frame, before)

    def _encode_parts(self, frame: OpenFrame, messages: list[Any]) -> Sequence[tuple[int, bytes | memoryview]]:
        """Return `messages` encoded in parts that each fit into a frame; raise UsageError if one cannot be sent."""
        try:
            parts = frame.encode_parts(messages)
        except UNENCODABLE:
            parts = None
        if parts is not None:
            return parts
        # The messages are long, or one of them cannot be encoded: now the error names it.
        encoded = [encode_message(self.name, frame.channel, message) for message in messages]
        for message, body in zip(messages, encoded, strict=True):
            if len(body) > frame.message_bytes_max:
                raise frame.too_long(message, len(body))
        return [(1, body) for body in encoded]

    def _take_kind(self, frame: OpenFrame, message: Any) -> None:
        """Raise UsageError if `message` is of no declared type; remember its class if all of that class may be sent."""
        kind = type(message)
        self._types.require(self.name, frame.channel, message)
        frame.kind = kind if self._types.has(kind) else None

    def _do_rare_work(self, frame: OpenFrame, before: int) -> None:
        """Do the rare work: for the first or last message of `frame`, or the first message of an event.

        `before` is the number of messages that it had before the newest ones.
        """
        if not before and get_ident() != self._thread:
            frame.remove_first()
            raise self._misplaced(frame.channel)
        if self._position is not None and (position := self._position()) != frame.position:
            frame.note_event(position, before)
            self.touched.append(frame)
        if not before:
            self._dirty[frame.channel] = None
            if not self.flush_follows:
                self.flush_follows = True
                self._call_soon(self.flush_now)
        if frame.count >= frame.messages_max or frame.size >= frame.bytes_max:
            self._seal(frame)
        else:
            frame.due = frame.messages_max

    def next_event(self) -> None:
        """Assign all further sends to the next event (with a trace)."""
        for frame in self.touched:
            frame.due = 0
        self.touched.clear()

    def _find(self, channel: str) -> OpenFrame:
        """Return the open frame of `channel`; raise UsageError if nothing may be sent on it now."""
        if not self._in_event:
            raise self._misplaced(channel)
        self._bound.check()
        self._open = self._frames
        if channel in self._frames:
            return self._frames[channel]
        known = ", ".join(self._frames) or "none"
        raise UsageError(f"process {self.name!r} sends on {channel!r}, which is not an output of it; outputs: {known}")

    def require_event(self, action: str) -> None:
        """Raise UsageError if the process does `action`, something other than sending, outside of its events."""
        if not self._in_event or get_ident() != self._thread:
            raise misplaced(self.name, action)

    def _misplaced(self, channel: str) -> UsageError:
        return misplaced(self.name, f"sends on {channel!r}")

    def flush_now(self) -> None:
        """Do the scheduled flush."""
        self.flush_follows = False
        self.flush()

    def flush(self) -> None:
        """Seal every open frame, and flush the links."""
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
        # Numbered in place, with the same result as a `MessagesSent` event and its `SendFrame` effect.
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
        if self._on_seal is not None:
            self._on_seal(channel, first, count, open_frame.take_events(), body)

    def _trace_unsealed(self) -> None:
        """Add unsealed messages to the trace: they never leave the node, but their events have happened."""
        for channel, frame in self._frames.items():
            if self._on_seal is not None and frame.count and not self._closed:
                following = self._protocol.outgoing[channel].count + 1
                count, body = frame.seal()
                self._on_seal(channel, following, count, frame.take_events(), body)

    def is_full(self, channel: str) -> bool:
        """Return whether the backlog of `channel` holds the process back."""
        return channel in self._full

    def has_room(self, channel: str) -> None:
        """Mark `channel` as no longer full."""
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
        self._trace_unsealed()
        self._closed = True
        self._full.clear()
        self.has_room("")
        for outgoing_link in (*self.outgoing_links.values(), *(ended for _, ended in self._ended)):
            outgoing_link.close()
