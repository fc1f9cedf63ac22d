"""A pipe that ties a child to its parent: when the parent is gone, however it went, the child ends."""

import asyncio
import os
from collections.abc import Callable

VARIABLE = "STROBE_LIFELINE"


def follow_lifeline(end: Callable[[], None]) -> None:
    """Call `end` when whoever started this program has ended; nothing where it was not started like that."""
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
