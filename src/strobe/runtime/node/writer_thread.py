"""A node's single thread for slow I/O, beside the event loop."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from strobe.storage import Store
from strobe.storage.content.blobs import Blobs, BlobWriter
from strobe.user_code import RAISED, carry, explain

Result = TypeVar("Result")

logger = logging.getLogger("strobe.node")


class WriterThread:
    """Runs jobs in the order of submission."""

    def __init__(self, name: str) -> None:
        self._store = ("", "")
        self._blobs: Blobs | None = None
        self._thread = ThreadPoolExecutor(1, f"strobe-writer-{name}")

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

    def later(self, work: Callable[[], None]) -> None:
        """Run `work` in the background. A failure is logged and not fatal: the next call retries."""
        self.submit(work).add_done_callback(_tell_failure)

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


def _carrying(work: Callable[..., Result], *arguments: object) -> Result:
    """Run `work`; its exceptions are raised again in the awaiting task."""
    try:
        return work(*arguments)
    except RAISED as error:
        raise carry(error)  # noqa: B904 -- the cause is set, if there is another


def _tell_failure(done: "Future[None]") -> None:
    error = done.exception()
    if error is not None:
        logger.warning("%s", explain(error))
