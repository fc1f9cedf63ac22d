"""Shared by both ends of a link: admission rules, the count of rejections, and socket options.

A link is the TCP connection of one directed channel. When it breaks, the channel's source reconnects and continues
from the last acknowledged frame (source: `outgoing_link.py`; target: `listener.py` and `incoming_link.py`).
"""

import logging
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from strobe.errors import ProtocolViolation
from strobe.protocol.process.events import Marker
from strobe.protocol.values.frames import Frame
from strobe.protocol.values.view import View
from strobe.runtime.links.codec import VERSION, Hello, Refusal

if TYPE_CHECKING:
    from strobe.runtime.links.incoming_link import IncomingLink

logger = logging.getLogger("strobe.links")

LOG_EVERY_S = 1.0
# A dead peer is detected within about ten seconds, even if there is nothing to send.
DEAD_AFTER_S = 10
KEEPALIVE_IDLE_S = 5
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_PROBES = 3


class Gate(Protocol):
    """The node, as its listener sees it. Frames are handed over complete, in order, and only once."""

    def admit(self, hello: Hello) -> "IncomingLink | Refusal":
        """Return the `IncomingLink` of the channel in `hello`: always the same one during an epoch."""

    def take_frame(self, incoming_link: "IncomingLink", frame: Frame, wire_bytes: int) -> None:
        """Take a frame of messages, and call `incoming_link.consumed(wire_bytes)` when the process has received them.

        Raise FrameRejected if the frame cannot be decoded, and BrokenRule if it breaks a rule; then nothing has
        changed. The other methods do the same.
        """

    def take_marker(self, incoming_link: "IncomingLink", marker: Marker) -> None: ...

    def take_barrier(self, incoming_link: "IncomingLink", marker: Marker, overtaken: tuple[Frame, ...] | None) -> None:
        """Take a barrier, with copies of the frames that it has overtaken at its sender."""

    def take_view(self, incoming_link: "IncomingLink", view: View, sent_count: int) -> None: ...

    def disagree(self, violation: ProtocolViolation) -> None:
        """Handle a source that keeps sending the same frame with this `violation`."""

    def taken(self) -> bool:
        """Send the output caused by the frames just handed over. Called after each read.

        Return whether to read more in this event-loop iteration.
        """


ANOTHER_VERSION = "another version"
STRANGER = "stranger"
OF_ANOTHER_NODE = frozenset({ANOTHER_VERSION, STRANGER})
"""Refusals by a node of another system: the wanted node may still be alive elsewhere."""


def refuse_hello(hello: Hello, system: str, epoch: int) -> Refusal | None:
    """Return why a node of `system`, now in `epoch`, refuses `hello`; None if it accepts.

    An older epoch has ended. A newer epoch has begun, but this node does not know it yet (R1).
    """
    if hello.version != VERSION:
        return Refusal(ANOTHER_VERSION, final=True)
    if hello.system != system:
        return Refusal(STRANGER, final=True)
    if hello.epoch < epoch:
        return Refusal("older epoch", final=True)
    if hello.epoch > epoch:
        return Refusal("newer epoch", final=False)
    return None


class Rejections:
    """Counts rejections by reason, and logs at most one line per second and reason, so that garbage cannot flood the
    log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._logged_at: dict[str, float] = {}
        self._counts_logged: Counter[str] = Counter()

    def note(self, reason: str, detail: str, place: object, quiet: bool = False) -> None:
        """Count one rejection at `place`, and log it unless `quiet`."""
        self.counts[reason] += 1
        if quiet:
            return
        now = self._clock()
        if now - self._logged_at.get(reason, float("-inf")) < LOG_EVERY_S:
            return
        silent = self.counts[reason] - self._counts_logged[reason] - 1
        more = f" (and {silent} more like it since the last line)" if silent else ""
        logger.warning("rejected from %s: %s: %s%s", place, reason, detail, more)
        self._logged_at[reason] = now
        self._counts_logged[reason] = self.counts[reason]


def set_socket(connection: socket.socket | None) -> None:
    """Send small frames at once, and detect a dead peer. An in-memory connection has no socket."""
    if connection is None:
        return
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000),
    ]
    for level, option, value in options:
        connection.setsockopt(level, option, value)
