"""Keeps a loop awake for a moment after something has come: an answer to it may be on its way.

Whoever sleeps has to be woken, which takes the system longer than a small message takes to be received and answered. So
the loop polls on for `spin_s` before it sleeps. That is of no use where nothing follows so soon, or where the one who
would answer waits for this very processor; so after a look that was in vain some are left out, twice as many each time.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter

LEFT_OUT_MAX = 15


class BusyPoller:
    """One for each timeline."""

    def __init__(self, spin_s: float, clock: Callable[[], float] = perf_counter) -> None:
        self._spin_s = spin_s
        self._clock = clock
        self._until_s = 0.0
        self._left_out = 0
        self._to_leave_out = 0
        # Looking on, up to `_until_s`.
        self.looking = False
        self._call_soon = asyncio.get_running_loop().call_soon

    def poll_soon(self) -> None:
        """Something has come: look on from now."""
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
        """Look no longer."""
        self._until_s = 0.0

    def _look(self) -> None:
        # A loop that has something to do soon asks its sockets, and does not sleep.
        if self._clock() < self._until_s:
            self._call_soon(self._look)
        else:
            self.looking = False
            self._to_leave_out = min(2 * self._to_leave_out + 1, LEFT_OUT_MAX)
