"""The source's end of a link: keeps frames in order until the target has acknowledged them, across reconnects.

Unacknowledged frames are sent again, byte for byte, on the next connection. Frames of messages need credit, which the
target grants when its process has received them. Markers and views need no credit, but stay behind all earlier frames.
A barrier overtakes the backlog, and carries copies of it (V4). Back-pressure: a slow target costs its source at most a
window and a backlog, since a process receives nothing while one of its links is `full`. Both follow the target's rate
(`adaptive_window.py`).
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable

from strobe.backoff import Backoff
from strobe.protocol.process.events import Marker
from strobe.runtime.links.adaptive_window import AdaptiveWindow
from strobe.runtime.links.codec import (
    KIND_AT,
    MESSAGES,
    FrameRejected,
    Hello,
    LinkWelcome,
    Refusal,
    barrier_frames,
    number,
)
from strobe.runtime.links.handed_over_ends import SendingEnd
from strobe.runtime.links.handshake import OF_ANOTHER_NODE, Rejections, logger
from strobe.runtime.links.outgoing_connection import Connect, OutgoingConnection
from strobe.runtime.settings import NodeSettings

CONNECT_TIMEOUT_S = 10.0
BACK_OFF_S_MIN = 0.05
BACK_OFF_S_MAX = 1.0
# A target that refuses temporarily is alive: retry it sooner.
LATER_S_MAX = 0.2

AHEAD_MAX = 4
"""Maximum number of queued barriers. The newest are kept: the snapshots of the others have timed out."""
READY_BYTES_MAX = 128 << 10
"""Maximum bytes collected for one system call, which costs about as much for two frames as for one."""
STALLED_BYTES = 1 << 20
"""Above this size of the write buffer a barrier would wait behind it, so its copies are not made yet."""


class OutgoingLink:
    """The source's end of one channel in one epoch.

    `on_room` is called when the link is no longer `full`; `on_refused`, with the channel and the reason, when the
    target has refused it permanently. `connect` opens connections; by default they are TCP.
    """

    def __init__(
        self,
        hello: Hello,
        settings: NodeSettings,
        on_room: Callable[[], None] | None = None,
        on_refused: Callable[[str, str], None] | None = None,
        rejections: Rejections | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.hello = hello
        self.channel = hello.channel
        self.window = AdaptiveWindow(settings.backlog_bytes_max)
        self.backlog_bytes_max = settings.backlog_bytes_max
        self.rejections = rejections or Rejections()
        self._connections = 0
        self.refusal: Refusal | None = None
        # Written, but not sent yet for lack of credit or of a connection.
        self.backlog_bytes = 0
        self._on_room = on_room
        self._on_refused = on_refused
        self._was_full = False
        self.closed = False
        self._finishing = False
        self._sequence = 0
        self._backlog: deque[tuple[bytearray, int]] = deque()
        # Numbered frames for the next system call.
        self._ready: list[bytearray] = []
        self._ready_bytes = 0
        # Barriers that wait for a connection or for its write buffer. Overtaken frames are copied when they are sent.
        self._ahead: deque[Marker] = deque(maxlen=AHEAD_MAX)
        self._acknowledged = 0
        self._unacknowledged: deque[bytearray] = deque()
        self._sent_bytes = 0
        self._consumed_bytes = 0
        self._room_bytes = 0
        self._waiting_since: float | None = None
        self._connection: OutgoingConnection | None = None
        self._attempt: OutgoingConnection | None = None
        self._address: tuple[str, int] | None = None
        self._wake = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._now_s = loop.time
        self._open: Connect = connect or loop.create_connection
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def reconnects(self) -> int:
        return max(0, self._connections - 1)

    @property
    def full(self) -> bool:
        return self.backlog_bytes > self.backlog_bytes_max

    @property
    def outstanding_bytes(self) -> int:
        """Bytes sent and not known to be consumed."""
        return self._sent_bytes - self._consumed_bytes

    @property
    def unacknowledged(self) -> int:
        """Number of frames that the target may not have."""
        return len(self._unacknowledged) + len(self._ahead) + len(self._backlog)

    @property
    def waiting_s(self) -> float:
        """How long the next frame has been waiting for credit."""
        return 0.0 if self._waiting_since is None else self._now_s() - self._waiting_since

    def reach(self, address: tuple[str, int] | None) -> None:
        """Set the address of the target (None: unknown), and try to connect at once."""
        if self.refusal is not None and self.refusal.reason in OF_ANOTHER_NODE and address != self._address:
            self.refusal = None  # the listener at the old address was not the target
        if self.refusal is not None or self.closed:
            return
        if address != self._address:
            self._disconnect()
            self._address = address
        self._wake.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_connected(), name=f"link {self.channel}")

    def write(self, frame: bytearray) -> None:
        """Send a finished frame, behind all earlier frames."""
        self.put(frame)
        self.flush()

    def put(self, frame: bytearray) -> None:
        """Queue a finished frame, behind all earlier frames. It is sent at the next `flush`, or sooner."""
        if self.closed:
            return
        credit_bytes = len(frame) if frame[KIND_AT] == MESSAGES else 0
        connection = self._connection
        if connection is not None and not self._backlog and self._has_credit(credit_bytes):
            self._sequence = sequence = self._sequence + 1
            number(frame, sequence)
            if self._sent_bytes == self._consumed_bytes:
                self.window.begin(self._now_s())
            self._sent_bytes += credit_bytes
            self._unacknowledged.append(frame)
            self._ready.append(frame)
            self._ready_bytes += len(frame)
            if self._ready_bytes > READY_BYTES_MAX:
                self.flush()
            return
        self._backlog.append((frame, credit_bytes))
        self.backlog_bytes += len(frame)
        if self.backlog_bytes > self.backlog_bytes_max:
            self._was_full = True
        self._note_waiting()

    def flush(self) -> None:
        """Write the frames from `put` to the connection."""
        if self._ready:
            assert self._connection is not None, "what is ready has a connection"
            self._connection.transport.writelines(self._take_ready())

    def _take_ready(self) -> list[bytearray]:
        ready, self._ready, self._ready_bytes = self._ready, [], 0
        return ready

    def overtake(self, marker: Marker) -> None:
        """Send a barrier ahead of the backlog, behind earlier barriers."""
        if self.closed:
            return
        self._ahead.append(marker)
        connection = self._connection
        if connection is None:
            return
        # With a backlog the barrier can wait: later frames queue behind the backlog, and it still overtakes them all.
        if not self._backlog or connection.transport.get_write_buffer_size() <= STALLED_BYTES:
            self._send_ahead(connection)

    def finish(self) -> None:
        """The channel has ended: close when the target has acknowledged everything, without a timeout.

        Until then no snapshot begins, so no frame may be dropped while the target exists.
        """
        self.flush()
        self._finishing = True
        self._close_if_finished()

    def close(self) -> None:
        """End the channel here: drop all unsent frames and send nothing more."""
        self.closed = True
        self._disconnect()
        self._take_ready()
        self._backlog.clear()
        self._ahead.clear()
        self._unacknowledged.clear()
        self.backlog_bytes = 0
        self._waiting_since = None

    def hand_over(self) -> SendingEnd:
        """Close, and return what the successor of this process needs to go on. Queued barriers are dropped."""
        self._disconnect()
        backlog = [frame for frame, _ in self._backlog]
        counts = self._sequence, self._acknowledged, self._sent_bytes, self._consumed_bytes
        end = SendingEnd(*counts, list(self._unacknowledged), backlog)
        self.close()
        return end

    def resume(self, end: SendingEnd) -> None:
        """Go on from `end`, before the first connection."""
        self._sequence, self._acknowledged = end.sequence, end.acknowledged
        self._sent_bytes, self._consumed_bytes = end.sent_bytes, end.consumed_bytes
        self._unacknowledged.extend(end.unacknowledged)
        for frame in end.backlog:
            self.put(frame)

    def welcomed(self, connection: OutgoingConnection, welcome: LinkWelcome) -> None:
        """The target has accepted the connection: resend the frames that it lacks, then the backlog that has credit."""
        if not self._acknowledged <= welcome.last_sequence <= self._acknowledged + len(self._unacknowledged):
            # The two ends disagree on the channel's history: no frame from here could follow what the target has.
            self.refused(Refusal("another past", final=True))
            raise FrameRejected("another past", f"{self.channel}: frame {welcome.last_sequence} was never sent")
        self.window.welcome(welcome.window_bytes)
        self.set_adaptive(self.window.applies)
        self._connection = connection
        self._connections += 1
        self._settle(welcome.last_sequence, welcome.consumed_bytes)
        if self._unacknowledged:
            connection.transport.writelines(self._unacknowledged)
        self._send_backlog()
        self._close_if_finished()

    def credited(self, last_sequence: int, consumed_bytes: int) -> None:
        """The target has received frames up to `last_sequence`; its process has consumed `consumed_bytes`."""
        taken_bytes = consumed_bytes - self._consumed_bytes
        self._settle(last_sequence, consumed_bytes)
        if taken_bytes:
            self.window.note(taken_bytes, self.outstanding_bytes + self.backlog_bytes, self._now_s())
            self.set_adaptive(self.window.applies)
        if self._backlog:
            self._send_backlog()
        self._close_if_finished()

    def set_adaptive(self, applies: bool) -> None:
        """Use the bounds that follow the target's rate if `applies`, otherwise those of the settings."""
        self.window.applies = applies
        self._room_bytes, self.backlog_bytes_max = self.window.room_bytes, self.window.backlog_bytes_max

    def refused(self, refusal: Refusal) -> None:
        """The target refuses this channel, permanently or for now."""
        if not refusal.final:
            logger.debug("channel %s is refused for now: %s", self.channel, refusal.reason)
            return
        logger.warning("channel %s is refused permanently: %s", self.channel, refusal.reason)
        self.refusal = refusal
        if self._on_refused is not None:
            self._on_refused(self.channel, refusal.reason)
        if self._finishing and refusal.reason not in OF_ANOTHER_NODE:
            self.close()  # the target is a later incarnation or in a later epoch, and does not need these frames

    def disconnected(self, connection: OutgoingConnection) -> None:
        """`connection` has ended; frames queue up until the next one."""
        if self._connection is connection:
            self._connection = None
            self._waiting_since = None
            self._take_ready()  # the next connection begins with all unacknowledged frames

    def _disconnect(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._attempt is not None:
            self._attempt.drop()

    def _close_if_finished(self) -> None:
        if self._finishing and not self.unacknowledged:
            self.close()

    def _has_credit(self, credit_bytes: int) -> bool:
        # A frame larger than the window is sent alone.
        outstanding_bytes = self._sent_bytes - self._consumed_bytes
        return not credit_bytes or outstanding_bytes + credit_bytes <= self._room_bytes or not outstanding_bytes

    def _settle(self, last_sequence: int, consumed_bytes: int) -> None:
        """Free the acknowledged frames; raise FrameRejected if the target claims more than was sent."""
        arrived = last_sequence - self._acknowledged
        if not 0 <= arrived <= len(self._unacknowledged) or not (
            self._consumed_bytes <= consumed_bytes <= self._sent_bytes
        ):
            raise FrameRejected("wrong credit", f"{self.channel}: frame {last_sequence}, {consumed_bytes} bytes")
        for _ in range(arrived):
            self._unacknowledged.popleft()
        self._acknowledged = last_sequence
        self._consumed_bytes = consumed_bytes

    def _send_ahead(self, connection: OutgoingConnection) -> None:
        waiting = [frame for frame, credit_bytes in self._backlog if credit_bytes]
        frames = [frame for marker in self._ahead for frame in barrier_frames(marker, waiting)]
        self._ahead.clear()
        self._put_on_wire(connection, frames)

    def _put_on_wire(self, connection: OutgoingConnection, frames: list[bytearray]) -> None:
        for sequence, frame in enumerate(frames, self._sequence + 1):
            number(frame, sequence)
        self._sequence += len(frames)
        self._unacknowledged.extend(frames)
        connection.transport.writelines([*self._take_ready(), *frames])

    def _send_backlog(self) -> None:
        assert self._connection is not None
        if self._ahead:
            self._send_ahead(self._connection)
        ready: list[bytearray] = []
        while self._backlog and self._has_credit(self._backlog[0][1]):
            frame, credit_bytes = self._backlog.popleft()
            if credit_bytes and self._sent_bytes == self._consumed_bytes:
                self.window.begin(self._now_s())
            self._sent_bytes += credit_bytes
            self.backlog_bytes -= len(frame)
            ready.append(frame)
        if ready:
            self._waiting_since = None
            self._put_on_wire(self._connection, ready)
        self._note_waiting()
        # At half the limit, so that the process is not stopped and started for every frame.
        if self._was_full and self.backlog_bytes <= self.backlog_bytes_max // 2:
            self._was_full = False
            if self._on_room is not None:
                self._on_room()

    def _note_waiting(self) -> None:
        if self._connection is not None and self._backlog and self._waiting_since is None:
            self._waiting_since = self._now_s()

    async def _keep_connected(self) -> None:
        backoff = Backoff(BACK_OFF_S_MIN, BACK_OFF_S_MAX)
        while self.refusal is None:
            self._wake.clear()
            if self._address is None:
                await self._wake.wait()
                continue
            connection, acknowledged, began_s = OutgoingConnection(self), self._acknowledged, self._now_s()
            await self._connect(connection, *self._address)
            # Back off after a connection without progress, for example if the target rejects the next frame.
            useful = self._acknowledged > acknowledged or self._now_s() - began_s > BACK_OFF_S_MAX
            if connection.was_welcome and useful:
                backoff.reset()
            wait_s = min(backoff.next(), LATER_S_MAX if connection.was_refused else BACK_OFF_S_MAX)
            await self._pause(wait_s * (0.5 + random.random() / 2))
        self._task = None

    async def _connect(self, connection: OutgoingConnection, host: str, port: int) -> None:
        """Open `connection` and wait until it has ended."""
        self._attempt = connection
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._open(lambda: connection, host, port)
            await connection.gone.wait()
        except Exception as error:  # noqa: BLE001 -- retry after any error, even a missing thread for the name lookup
            logger.debug("channel %s: %s:%d cannot be reached: %s", self.channel, host, port, error)
        finally:
            connection.drop()
            if self._attempt is connection:
                self._attempt = None

    async def _pause(self, pause_s: float) -> None:
        """Wait, but not longer than until `reach` is called."""
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass
