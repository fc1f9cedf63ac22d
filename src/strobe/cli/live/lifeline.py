"""A pipe that ties a child to its parent: the child ends when the parent does, for whatever reason."""

import asyncio
import os
from collections.abc import Callable

VARIABLE = "STROBE_LIFELINE"


def follow_lifeline(end: Callable[[], None]) -> None:
    """Call `end` when the parent process has ended; does nothing if there is no lifeline."""
    number = os.environ.pop(VARIABLE, "")
    if not number.isdecimal():
        return
    descriptor = int(number)
    loop = asyncio.get_running_loop()

    def cut() -> None:
        if not os.read(descriptor, 1):
            loop.remove_reader(descriptor)
            end()

    loop.add_reader(descriptor, cut)
