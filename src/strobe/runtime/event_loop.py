"""The event loop of a live program: uvloop, ended by SIGINT and SIGTERM like any other program."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from strobe.errors import MissingExtra

Result = TypeVar("Result")

SWITCH_S = 0.001


def run_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` to its end."""
    try:
        import uvloop
    except ImportError:
        main.close()
        raise MissingExtra("live", "a live system") from None
    # The thread that writes to the disk needs the interpreter now and then, for microseconds. At a process that is busy
    # it would wait for Python's 5 ms each time.
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
