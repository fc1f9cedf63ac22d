"""How both ends of a control connection end it."""

import asyncio
from contextlib import suppress

CLOSE_S_MAX = 1.0


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close the connection when what was sent has gone out; a peer that does not read is not waited for long."""
    writer.close()
    with suppress(OSError):
        try:
            # Not by `wait_for`, which in Python 3.11 may swallow that this task is cancelled.
            async with asyncio.timeout(CLOSE_S_MAX):
                await writer.wait_closed()
        except TimeoutError:
            writer.transport.abort()
