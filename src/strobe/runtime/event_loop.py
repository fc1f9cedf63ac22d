"""The event loop of a live program: uvloop, ended by SIGINT and SIGTERM like any other program."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from strobe.errors import MissingExtra

Result = TypeVar("Result")

SWITCH_S = 0.001


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
