"""What both ends of a link share: who is let in, what is done about what is wrong, and how sockets are set.

A link is the TCP connection of one directed channel; when it breaks, the channel's source opens it again and goes on
where it broke off (`outgoing_link.py` is the source's end; `listener.py` and `incoming_link.py` are the target's).
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
# A peer that vanished without a word is noticed within about ten seconds, whether or not there is something to send.
DEAD_AFTER_S = 10
KEEPALIVE_IDLE_S = 5
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_PROBES = 3


class Gate(Protocol):
    """The node, as its listener sees it. What it is given is complete, in order, and never given twice."""

    def admit(self, hello: Hello) -> "IncomingLink | Refusal":
        """Return the inlet of the channel that `hello` names: the same one for as long as the epoch lasts."""

    def take_frame(self, incoming_link: "IncomingLink", frame: Frame, wire_bytes: int) -> None:
        """Take messages from the link; once they are received, `incoming_link.consumed(wire_bytes)` is called.

        Raise FrameRejected, with nothing changed, where no messages can be read in it, and BrokenRule where it cannot
        have been sent; so do the others for what they are given.
        """

    def take_marker(self, incoming_link: "IncomingLink", marker: Marker) -> None: ...

    def take_barrier(self, incoming_link: "IncomingLink", marker: Marker, overtaken: tuple[Frame, ...] | None) -> None:
        """Take a barrier, with copies of what it has overtaken at its sender."""

    def take_view(self, incoming_link: "IncomingLink", view: View, sent_count: int) -> None: ...

    def disagree(self, violation: ProtocolViolation) -> None:
        """The source of a channel sends the same frame again and again, and this is wrong with it."""

    def taken(self) -> bool:
        """All that was read at once has been given: the time to send what it has led to.

        Return whether more may be read before the loop turns.
        """


ANOTHER_VERSION = "another version"
STRANGER = "stranger"
OF_ANOTHER_NODE = frozenset({ANOTHER_VERSION, STRANGER})
"""Refusals by one that is no node of the same system: they say nothing of the node that was looked for."""


def refuse_hello(hello: Hello, system: str, epoch: int) -> Refusal | None:
    """Return why a node of `system`, now in `epoch`, has nothing to do with whoever says `hello`; None where it has.

    An older epoch is over for good. A newer one has begun and this node does not know of it yet (R1).
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
    """Counts what was rejected, by reason, and logs it: at most one line a second for each reason, so that a flood of
    garbage does not become a flood of log lines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._logged_at: dict[str, float] = {}
        self._counts_logged: Counter[str] = Counter()

    def note(self, reason: str, detail: str, place: object, quiet: bool = False) -> None:
        """Count one rejection of what came from or happened at `place`; log it, unless it is `quiet`."""
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


def set_socket(connection: socket.socket) -> None:
    """Send small frames at once, and notice a dead peer."""
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
