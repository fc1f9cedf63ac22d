"""A node's one thread for reading and writing: what is slow, in order, beside the loop."""

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
    """Does work in the order in which it is given."""

    def __init__(self, name: str) -> None:
        self._store = ("", "")
        self._blobs: Blobs | None = None
        self._thread = ThreadPoolExecutor(1, f"strobe-writer-{name}")

    def keep_in(self, url: str, identity: str) -> None:
        """Blobs go into the store with this identity, which belongs at `url`."""
        if (url, identity) != self._store:
            self._store, self._blobs = (url, identity), None

    def submit(self, work: Callable[..., Result], *arguments: object) -> "Future[Result]":
        return self._thread.submit(_carrying, work, *arguments)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do `work`, and return what it returns."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _carrying, work)

    async def with_blobs(self, work: Callable[[Blobs], Result]) -> Result:
        """Do `work` on the store's blobs."""
        return await self.run(lambda: work(self._open_blobs()))

    def later(self, work: Callable[[], None]) -> None:
        """Do `work` some time; a failure is told and not fatal: it is done again with the next."""
        self.submit(work).add_done_callback(_tell_failure)

    def open_blob(self, begin: int) -> BlobWriter:
        """Begin a blob of the snapshot that began there; for this thread."""
        return self._open_blobs().open(begin)

    async def close(self) -> None:
        """Wait until all is done; the loop may be a program's own, and goes on turning."""
        await asyncio.to_thread(self._thread.shutdown)

    def _open_blobs(self) -> Blobs:
        if self._blobs is None:
            url, identity = self._store
            self._blobs = Store.open(url, identity=identity).blobs
        return self._blobs


def _carrying(work: Callable[..., Result], *arguments: object) -> Result:
    """Do `work`; what it raises is raised again where it is awaited."""
    try:
        return work(*arguments)
    except RAISED as error:
        raise carry(error)  # noqa: B904 -- the cause is set, if there is another


def _tell_failure(done: "Future[None]") -> None:
    error = done.exception()
    if error is not None:
        logger.warning("%s", explain(error))
