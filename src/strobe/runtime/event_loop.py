"""The event loop of a live program: uvloop, ended by SIGINT and SIGTERM like any other program. And its busy polling.

Waking a sleeping event loop takes longer than receiving and answering a small message. So after a read the loop polls
for `spin_s` before it sleeps. That is wasted if nothing follows so soon, or if the peer needs this very processor: then
the kernel takes it from the polling thread before each read. After each fruitless poll the next ones are skipped, with
exponential back-off.
"""

import asyncio
import resource
import sys
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, TypeVar

from strobe.errors import MissingExtra

Result = TypeVar("Result")

SWITCH_S = 0.001
KEPT_BYTES = 8 << 20
SKIPPED_MAX = 255
FOUND_MAX = 16
"""Number of reads during polling, after which the polling thread looks whether it was preempted for them."""


def run_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` until it ends."""
    try:
        import uvloop
    except ImportError:
        main.close()
        raise MissingExtra("live", "a live system") from None
    # The thread that writes to disk needs the GIL now and then, for microseconds. In a busy process it would wait for
    # Python's default of 5 ms each time.
    sys.setswitchinterval(SWITCH_S)
    _keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for reuse, up to twice `KEPT_BYTES`; elsewhere this does nothing.

    Frames are freed in bursts, when they are acknowledged. By default glibc returns all but 128 KB of such memory to
    the kernel, and the next frames cause a page fault for every 4 KB. It raises that limit when a large block is freed.
    """
    bytes(KEPT_BYTES)


def _preemptions() -> int:
    """Return how often the kernel has taken the processor from this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class BusyPoller:
    """The busy polling of one timeline."""

    def __init__(
        self, spin_s: float, clock: Callable[[], float] = perf_counter, preemptions: Callable[[], int] = _preemptions
    ) -> None:
        self._spin_s = spin_s
        self._clock = clock
        self._preemptions = preemptions
        # The number of reads since the last look, and of preemptions before it.
        self._found = 0
        self._preempted = 0
        # How many polls to skip because the peer shares this processor.
        self._penalty = 0
        self._until_s = 0.0
        self._skipped = 0
        self._to_skip = 0
        # Whether it polls, until `_until_s`.
        self.polling = False
        self._call_soon = asyncio.get_running_loop().call_soon

    def poll_soon(self) -> None:
        """Start or extend polling after a read."""
        if self.polling:
            self._to_skip = 0
            self._until_s = self._clock() + self._spin_s
            self._found += 1
            if self._found == FOUND_MAX:
                self._look()
        elif self._skipped < self._to_skip:
            self._skipped += 1
        elif self._spin_s:
            self._skipped = self._found = 0
            self._preempted = self._preemptions()
            self.polling = True
            self._until_s = self._clock() + self._spin_s
            self._call_soon(self._poll)

    def close(self) -> None:
        """Stop polling."""
        self._until_s = 0.0

    def _look(self) -> None:
        """Stop polling if most of the last reads came because another program had this processor."""
        before, self._preempted, self._found = self._preempted, self._preemptions(), 0
        if self._preempted - before > FOUND_MAX // 2:
            self._penalty = self._to_skip = min(2 * self._penalty + 1, SKIPPED_MAX)
            self._until_s = 0.0
        else:
            self._penalty = 0

    def _poll(self) -> None:
        # With a scheduled callback the event loop polls its sockets instead of sleeping.
        if self._clock() < self._until_s:
            self._call_soon(self._poll)
        else:
            self.polling = False
            self._to_skip = min(2 * self._to_skip + 1, SKIPPED_MAX)
