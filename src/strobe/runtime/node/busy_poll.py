"""Busy polling: keeps the event loop awake briefly after a read, since an answer may follow.

Waking a sleeping event loop takes longer than receiving and answering a small message. So the loop polls for `spin_s`
before it sleeps. That is wasted if nothing follows so soon, or if the peer needs this very processor. So after each
fruitless poll the next ones are skipped, with exponential back-off.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter

LEFT_OUT_MAX = 15


class BusyPoller:
    """The busy polling of one timeline."""

    def __init__(self, spin_s: float, clock: Callable[[], float] = perf_counter) -> None:
        self._spin_s = spin_s
        self._clock = clock
        self._until_s = 0.0
        self._left_out = 0
        self._to_leave_out = 0
        # Whether it polls, until `_until_s`.
        self.looking = False
        self._call_soon = asyncio.get_running_loop().call_soon

    def poll_soon(self) -> None:
        """Start or extend polling after a read."""
        if self.looking:
            self._to_leave_out = 0
            self._until_s = self._clock() + self._spin_s
        elif self._left_out < self._to_leave_out:
            self._left_out += 1
        elif self._spin_s:
            self._left_out = 0
            self.looking = True
            self._until_s = self._clock() + self._spin_s
            self._call_soon(self._look)

    def close(self) -> None:
        """Stop polling."""
        self._until_s = 0.0

    def _look(self) -> None:
        # With a scheduled callback the event loop polls its sockets instead of sleeping.
        if self._clock() < self._until_s:
            self._call_soon(self._look)
        else:
            self.looking = False
            self._to_leave_out = min(2 * self._to_leave_out + 1, LEFT_OUT_MAX)
