"""The event loop of a live program: uvloop, ended by SIGINT and SIGTERM like any other program."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from strobe.errors import MissingExtra

Result = TypeVar("Result")


def run_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` to its end."""
    try:
        import uvloop
    except ImportError:
        main.close()
        raise MissingExtra("live", "a live system") from None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
