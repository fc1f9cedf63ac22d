"""Reports user code that blocks a node, in its log and to the coordinator.

While a handler runs, the event loop does not, and the node sends no heartbeats. So the watchdog's thread
tells the coordinator on a connection of its own. A source or a sink that blocks the writer thread is in the heartbeats.
"""

import faulthandler
import logging
import socket
import time
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import Protocol, TextIO

from strobe.runtime.messages.control import Blocked, pack, running_text
from strobe.runtime.settings import NodeSettings
from strobe.watchdog import LOOK_S, STACK, CallWatch, LongCall, Watchdog, innermost_frame

SEND_S_MAX = 2.0

logger = logging.getLogger("strobe.node")


class WatchedThread(Protocol):
    """A thread by its ident; 0 while it has not run."""

    thread: int


class WatchedHost(Protocol):
    """What the watchdog uses of its host."""

    name: str
    system: str
    settings: NodeSettings

    @property
    def writer(self) -> WatchedThread: ...

    @property
    def instance(self) -> str: ...

    @property
    def coordinator(self) -> tuple[str, int]: ...


class NodeWatchdog:
    """Watches the event loop and the writer thread of one node."""

    def __init__(self, host: WatchedHost) -> None:
        self.dumps_to: TextIO | None = None
        """Where all stacks are written if native code keeps even the watchdog from running. Set it in a program that
        has nothing else to do than to run a node: Python has only one such timer."""
        self._host = host
        self._on_loop = CallWatch()
        self._on_writer = CallWatch()
        self._turns = 0
        self._turns_asked = 0
        self._cpu_s = 0.0

    @property
    def blocked(self) -> str:
        """The call that blocks the writer thread, if any; then the event loop still runs."""
        long = self._on_writer.current
        return running_text(long.call.describe(self._host.name), long.running_s) if long is not None else ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the current event loop."""
        loop, thread = get_running_loop(), get_ident()
        watchdog = Watchdog(lambda elapsed_s: self._look(watchdog, loop, thread, elapsed_s))
        try:
            with watchdog:
                yield
        finally:
            if self.dumps_to is not None:
                faulthandler.cancel_dump_traceback_later()

    def _look(self, watchdog: Watchdog, loop: AbstractEventLoop, thread: int, elapsed_s: float) -> None:
        blocked_s = self._host.settings.blocked_s
        watchdog.every_s = min(LOOK_S, blocked_s / 4)
        self._dump_later(max(blocked_s, 4 * LOOK_S), watchdog.gap_s)
        for watch, watched, turns in (
            (self._on_loop, thread, self._turns),
            (self._on_writer, self._host.writer.thread, None),
        ):
            watch.blocked_s = blocked_s
            found = watch.look(innermost_frame(watched), elapsed_s, turns)
            if found is not None:
                self._report(found, watched == thread)
        if self._turns == self._turns_asked:
            self._turns_asked += 1
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._turned)

    def _dump_later(self, after_s: float, gap_s: float) -> None:
        """Have all stacks written unless this is called again in time; log it if that has just happened."""
        if self.dumps_to is None:
            return
        faulthandler.dump_traceback_later(after_s, file=self.dumps_to)
        cpu_s, self._cpu_s = time.process_time() - self._cpu_s, time.process_time()
        if gap_s > after_s and cpu_s > gap_s / 2:  # otherwise the program was suspended
            problem = "a call of native code has kept the GIL; see the stacks logged above"
            logger.warning("nothing of process %s ran for %.1f s: %s", self._host.name, gap_s, problem)

    def _turned(self) -> None:
        self._turns = self._turns_asked

    def _report(self, found: LongCall, blocks_loop: bool) -> None:
        call = found.call.describe(self._host.name)
        if found.ended:
            logger.warning("%s has ended, after %.1f s", call, found.running_s)
            return
        what = "nothing else of this process runs" if blocks_loop else "its input, output and snapshots wait"
        logger.warning("%s; %s", running_text(call, found.running_s), what, extra={STACK: found.call.stack})
        if blocks_loop:
            self._send(Blocked(self._host.name, self._host.instance, self._host.system, call, found.running_s))

    def _send(self, blocked: Blocked) -> None:
        with (
            suppress(OSError, ValueError),  # without a coordinator, the log has it; ValueError: an invalid host name
            socket.create_connection(self._host.coordinator, SEND_S_MAX) as connection,
        ):
            connection.sendall(pack(blocked))
