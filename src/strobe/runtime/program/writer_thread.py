"""A node's single thread for slow I/O, beside the event loop; and the event loop's yield of the GIL to it.

A waiting thread is woken when the event loop releases the GIL, but by then the loop has usually taken it again. Python
forces a switch only if a callback takes longer than the switch interval. Callbacks of a busy node are shorter: a writer
thread with a few microseconds of work, and so a snapshot, was seen to wait for half a second. So while the thread has
work, the event loop sleeps briefly from time to time. It sleeps less often for longer jobs, which mostly wait for the
disk.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import get_ident
from time import sleep
from types import TracebackType
from typing import TypeVar

from strobe.storage import Store
from strobe.storage.content.blobs import Blobs, BlobWriter
from strobe.user_code import RAISED, carry, explain

Result = TypeVar("Result")

logger = logging.getLogger("strobe.node")

AFTER_S = 0.001
AFTER_S_MAX = 0.004
MOMENT_S = 50e-6


class WriterThread:
    """Runs jobs in the order of submission."""

    def __init__(self, name: str) -> None:
        # Entered while one of its jobs is awaited; one for all who use the thread, since it makes the event loop sleep.
        self.gil_yield = GilYield()
        self._store = ("", "")
        self._blobs: Blobs | None = None
        self.thread = 0
        """The ident of the thread, once it has had a job."""
        self._thread = ThreadPoolExecutor(1, f"strobe-writer-{name}", self._begin)

    def _begin(self) -> None:
        self.thread = get_ident()

    def keep_in(self, url: str, identity: str) -> None:
        """Write blobs to the store at `url` with this identity."""
        if (url, identity) != self._store:
            self._store, self._blobs = (url, identity), None

    def submit(self, work: Callable[..., Result], *arguments: object) -> "Future[Result]":
        return self._thread.submit(_carrying, work, *arguments)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run `work` and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _carrying, work)

    async def with_blobs(self, work: Callable[[Blobs], Result]) -> Result:
        """Run `work` with the store's blobs."""
        return await self.run(lambda: work(self._open_blobs()))

    async def with_store(self, work: Callable[[Store], Result]) -> Result:
        """Run `work` with the store, opened for it."""
        url, identity = self._store
        return await self.run(lambda: work(Store.open(url, identity=identity)))

    def later(self, work: Callable[[], None]) -> None:
        """Run `work` in the background. A failure is logged and not fatal: the next call retries."""
        self.submit(work).add_done_callback(_log_failure)

    def open_blob(self, begin: int) -> BlobWriter:
        """Open a blob of the snapshot that began at log position `begin`. Call it in this thread."""
        return self._open_blobs().open(begin)

    async def close(self) -> None:
        """Wait for all jobs without blocking the event loop, which may be a program's own."""
        await asyncio.to_thread(self._thread.shutdown)

    def _open_blobs(self) -> Blobs:
        if self._blobs is None:
            url, identity = self._store
            self._blobs = Store.open(url, identity=identity).blobs
        return self._blobs


class GilYield:
    """Used in a `with` statement while the writer thread has work."""

    def __init__(self) -> None:
        self._jobs = 0
        self._after_s = AFTER_S
        self._timer: asyncio.Handle | None = None

    def __enter__(self) -> None:
        self._jobs += 1
        self._after_s = AFTER_S
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._yield)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jobs -= 1

    def _yield(self) -> None:
        self._timer = None
        if self._jobs:
            sleep(MOMENT_S)
            self._timer = asyncio.get_running_loop().call_later(self._after_s, self._yield)
            self._after_s = min(2 * self._after_s, AFTER_S_MAX)


def _carrying(work: Callable[..., Result], *arguments: object) -> Result:
    """Run `work`; its exceptions are raised again in the awaiting task."""
    try:
        return work(*arguments)
    except RAISED as error:
        raise carry(error)  # noqa: B904 -- the cause is set, if there is another


def _log_failure(done: "Future[None]") -> None:
    error = done.exception()
    if error is not None:
        logger.warning("%s", explain(error))
