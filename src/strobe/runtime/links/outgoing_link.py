"""The source's end of a link: keeps frames in order until the target has them, whatever happens to connections.

Frames that the target has not acknowledged are kept and sent again, byte for byte, on the next connection. Frames of
messages need credit, which the target gives for what its process has received; markers and views need none, but stay
behind everything written before them. A barrier goes ahead of all that waits here, with copies of it (V4). So a slow
target costs its source a window and a backlog, and never more: a process whose outlet is `full` is given nothing to
receive until there is room again. How much of both is used follows the target's pace (`adaptive_window.py`).
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable

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
from strobe.runtime.links.handshake import OF_ANOTHER_NODE, Rejections, logger
from strobe.runtime.links.outgoing_connection import OutgoingConnection
from strobe.runtime.settings import NodeSettings

CONNECT_TIMEOUT_S = 10.0
BACK_OFF_S_MIN = 0.05
BACK_OFF_S_MAX = 1.0
# Who said "later" is there and knows about us: it is worth asking more often.
LATER_S_MAX = 0.2

AHEAD_MAX = 4
"""So many barriers are kept while there is no way to send them, the newest: the others' snapshots have timed out."""
READY_BYTES_MAX = 128 << 10
"""So much is put together for one call to the system, which costs about as much for two frames as for one."""
STALLED_BYTES = 1 << 20
"""With more than this on its way to the system, a barrier would wait behind it: nothing is copied for it yet."""


class OutgoingLink:
    """One for each outgoing channel, for as long as the epoch lasts.

    `on_room` is called when being `full` has passed; `on_refused`, with the channel and the reason, when the target has
    refused for good.
    """

    def __init__(
        self,
        hello: Hello,
        settings: NodeSettings,
        on_room: Callable[[], None] | None = None,
        on_refused: Callable[[str, str], None] | None = None,
        rejections: Rejections | None = None,
    ) -> None:
        self.hello = hello
        self.channel = hello.channel
        self.window = AdaptiveWindow(settings.backlog_bytes_max)
        self.backlog_bytes_max = settings.backlog_bytes_max
        self.rejections = rejections or Rejections()
        self._connections = 0
        self.refusal: Refusal | None = None
        # Written, and not on the wire yet for lack of credit or of a connection.
        self.backlog_bytes = 0
        self._on_room = on_room
        self._on_refused = on_refused
        self._was_full = False
        self.closed = False
        self._finishing = False
        self._sequence = 0
        self._backlog: deque[tuple[bytearray, int]] = deque()
        # On its way already, but for the call to the system.
        self._ready: list[bytearray] = []
        self._ready_bytes = 0
        # Barriers that wait for a connection, or for one that takes more. What they overtake is copied when they go.
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
        self._told = asyncio.Event()
        self._now_s = asyncio.get_running_loop().time
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
        """What has been sent, and not been consumed as far as this end knows."""
        return self._sent_bytes - self._consumed_bytes

    @property
    def unacknowledged(self) -> int:
        """How many frames the target may not have."""
        return len(self._unacknowledged) + len(self._ahead) + len(self._backlog)

    @property
    def waiting_s(self) -> float:
        """For how long the next frame has been waiting for credit."""
        return 0.0 if self._waiting_since is None else self._now_s() - self._waiting_since

    def reach(self, address: tuple[str, int] | None) -> None:
        """The target listens there now; with None, nobody knows where. Told again, tries at once."""
        if self.refusal is not None and self.refusal.reason in OF_ANOTHER_NODE and address != self._address:
            self.refusal = None  # whoever listens at the old place is not the target
        if self.refusal is not None or self.closed:
            return
        if address != self._address:
            self._disconnect()
            self._address = address
        self._told.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_connected(), name=f"link {self.channel}")

    def write(self, frame: bytearray) -> None:
        """Send a finished frame, behind everything written before it."""
        self.put(frame)
        self.flush()

    def put(self, frame: bytearray) -> None:
        """Send a finished frame, behind everything written before it, when `flush` is called at the latest."""
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
        """Hand over to the system what was put here."""
        if self._ready:
            assert self._connection is not None, "what is ready has a connection"
            self._connection.transport.writelines(self._take_ready())

    def _take_ready(self) -> list[bytearray]:
        ready, self._ready, self._ready_bytes = self._ready, [], 0
        return ready

    def overtake(self, marker: Marker) -> None:
        """Send a barrier ahead of all that waits here, behind barriers that were sent before."""
        if self.closed:
            return
        self._ahead.append(marker)
        connection = self._connection
        if connection is None:
            return
        # Where something waits here, whatever is written meanwhile waits behind it, and the barrier goes before both.
        if not self._backlog or connection.transport.get_write_buffer_size() <= STALLED_BYTES:
            self._send_ahead(connection)

    def finish(self) -> None:
        """The channel has ended: close when the target has everything, however long that takes.

        Until it has, no snapshot begins, so nothing of it may be dropped while the target is there.
        """
        self.flush()
        self._finishing = True
        self._close_if_finished()

    def close(self) -> None:
        """End the channel here: nothing more is sent, what was not sent is forgotten."""
        self.closed = True
        self._disconnect()
        self._take_ready()
        self._backlog.clear()
        self._ahead.clear()
        self._unacknowledged.clear()
        self.backlog_bytes = 0
        self._waiting_since = None

    def welcomed(self, connection: OutgoingConnection, welcome: LinkWelcome) -> None:
        """The target has let this connection in: send again what it does not have, then whatever has credit."""
        if not self._acknowledged <= welcome.last_sequence <= self._acknowledged + len(self._unacknowledged):
            # It remembers another past than this outlet does: nothing that could be sent now would fit.
            self.refused(Refusal("another past", final=True))
            raise FrameRejected("another past", f"{self.channel}: frame {welcome.last_sequence} was never sent")
        self.window.welcome(welcome.window_bytes)
        self.keep_pace(self.window.applies)
        self._connection = connection
        self._connections += 1
        self._settle(welcome.last_sequence, welcome.consumed_bytes)
        if self._unacknowledged:
            connection.transport.writelines(self._unacknowledged)
        self._send_backlog()
        self._close_if_finished()

    def credited(self, last_sequence: int, consumed_bytes: int) -> None:
        """The target has received up to `last_sequence`, and its process `consumed_bytes`."""
        taken_bytes = consumed_bytes - self._consumed_bytes
        self._settle(last_sequence, consumed_bytes)
        if taken_bytes:
            self.window.note(taken_bytes, self.outstanding_bytes + self.backlog_bytes, self._now_s())
            self.keep_pace(self.window.applies)
        if self._backlog:
            self._send_backlog()
        self._close_if_finished()

    def keep_pace(self, applies: bool) -> None:
        """Let as much wait as the target's pace allows, where that `applies`, else as much as the settings do."""
        self.window.applies = applies
        self._room_bytes, self.backlog_bytes_max = self.window.room_bytes, self.window.backlog_bytes_max

    def refused(self, refusal: Refusal) -> None:
        """The target does not let this channel in: for good, or for now."""
        if not refusal.final:
            logger.debug("channel %s is refused for now: %s", self.channel, refusal.reason)
            return
        logger.warning("channel %s is refused for good: %s", self.channel, refusal.reason)
        self.refusal = refusal
        if self._on_refused is not None:
            self._on_refused(self.channel, refusal.reason)
        if self._finishing and refusal.reason not in OF_ANOTHER_NODE:
            self.close()  # it is a later incarnation of the target, or of a later epoch: nobody waits for this any more

    def disconnected(self, connection: OutgoingConnection) -> None:
        """`connection` is gone; what comes now waits for the next one."""
        if self._connection is connection:
            self._connection = None
            self._waiting_since = None
            self._take_ready()  # the next connection begins with all that is not acknowledged

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
        # A frame longer than the room goes alone.
        outstanding_bytes = self._sent_bytes - self._consumed_bytes
        return not credit_bytes or outstanding_bytes + credit_bytes <= self._room_bytes or not outstanding_bytes

    def _settle(self, last_sequence: int, consumed_bytes: int) -> None:
        """Let go of what the target has; raise FrameRejected where it claims more than it was sent."""
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
        # Half of it, so that a process is not stopped and started for every frame.
        if self._was_full and self.backlog_bytes <= self.backlog_bytes_max // 2:
            self._was_full = False
            if self._on_room is not None:
                self._on_room()

    def _note_waiting(self) -> None:
        if self._connection is not None and self._backlog and self._waiting_since is None:
            self._waiting_since = self._now_s()

    async def _keep_connected(self) -> None:
        back_off_s = BACK_OFF_S_MIN
        while self.refusal is None:
            self._told.clear()
            if self._address is None:
                await self._told.wait()
                continue
            connection, acknowledged, began_s = OutgoingConnection(self), self._acknowledged, self._now_s()
            await self._connect(connection, *self._address)
            # One that let nothing through, such as where the target rejects the next frame, is no reason to hurry.
            useful = self._acknowledged > acknowledged or self._now_s() - began_s > BACK_OFF_S_MAX
            back_off_s = BACK_OFF_S_MIN if connection.was_welcome and useful else min(2 * back_off_s, BACK_OFF_S_MAX)
            if connection.was_refused:
                back_off_s = min(back_off_s, LATER_S_MAX)
            await self._pause(back_off_s * (0.5 + random.random() / 2))
        self._task = None

    async def _connect(self, connection: OutgoingConnection, host: str, port: int) -> None:
        """Open `connection` and stay until it is gone."""
        loop = asyncio.get_running_loop()
        self._attempt = connection
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: connection, host, port)
            await connection.gone.wait()
        except Exception as error:  # noqa: BLE001 -- whatever it is, such as no thread to look up a name: try again
            logger.debug("channel %s: %s:%d cannot be reached: %s", self.channel, host, port, error)
        finally:
            connection.drop()
            if self._attempt is connection:
                self._attempt = None

    async def _pause(self, pause_s: float) -> None:
        """Wait, but not longer than until the target's address is told."""
        try:
            async with asyncio.timeout(pause_s):
                await self._told.wait()
        except TimeoutError:
            pass
