"""The event loop of a live program: uvloop, ended by SIGINT and SIGTERM like any other program. And its busy polling.

Waking a sleeping event loop takes longer than receiving and answering a small message. So after a read the loop polls
for `spin_s` before it sleeps. That is wasted if nothing follows so soon, or if the peer needs this very processor. So
after each fruitless poll the next ones are skipped, with exponential back-off.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, TypeVar

from strobe.errors import MissingExtra

Result = TypeVar("Result")

SWITCH_S = 0.001
SKIPPED_MAX = 15


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
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


class BusyPoller:
    """The busy polling of one timeline."""

    def __init__(self, spin_s: float, clock: Callable[[], float] = perf_counter) -> None:
        self._spin_s = spin_s
        self._clock = clock
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
        elif self._skipped < self._to_skip:
            self._skipped += 1
        elif self._spin_s:
            self._skipped = 0
            self.polling = True
            self._until_s = self._clock() + self._spin_s
            self._call_soon(self._poll)

    def close(self) -> None:
        """Stop polling."""
        self._until_s = 0.0

    def _poll(self) -> None:
        # With a scheduled callback the event loop polls its sockets instead of sleeping.
        if self._clock() < self._until_s:
            self._call_soon(self._poll)
        else:
            self.polling = False
            self._to_skip = min(2 * self._to_skip + 1, SKIPPED_MAX)
