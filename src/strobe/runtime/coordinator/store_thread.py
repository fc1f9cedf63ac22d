"""The one thread that uses the store: runs jobs in order, and delivers their results on the event loop.

A store may not respond for minutes, or ever, so the program does not wait for the thread to end. Unfinished work is
then left as after a kill of the coordinator (E7).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from strobe.protocol.values.log_entries import EntryRef
from strobe.runtime.coordinator.log_writer import Closing, CoordinatorLog, LogResult
from strobe.runtime.event_log import ERROR, EventLog

Result = TypeVar("Result")

CLOSE_S_MAX = 5.0


class StoreThread:
    """Keeps disk I/O off the event loop, which keeps running while the store is slow, full or gone."""

    def __init__(self, take: Callable[[LogResult], None], fail: Callable[[BaseException], None], log: EventLog) -> None:
        # What is wrong with the store, if anything.
        self.problem: str | None = None
        self._take = take
        self._fail = fail
        self._events = log
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="strobe-log", daemon=True)
        self._log: CoordinatorLog | None = None
        self._is_open = False

    @property
    def log(self) -> CoordinatorLog:
        """The log whose methods are the jobs."""
        assert self._log is not None, "nothing is ordered before the log was read"
        return self._log

    @property
    def last_entry(self) -> EntryRef | None:
        """The newest log entry that was read or written, or None."""
        return self._log.last if self._log is not None else None

    @property
    def durable_entry(self) -> EntryRef | None:
        """The newest log entry that is known to be on disk, or None."""
        return self._log.store.durable_entry if self._log is not None else None

    async def open(
        self,
        url: str,
        now_us: Callable[[], int],
        identity: str = "",
        create: bool = False,
        known: EntryRef | None = None,
    ) -> None:
        """Open the store and read its whole log. StoreError: it cannot be opened, or is damaged.

        With an `identity`, it waits until the store is there; with `known`, until its log has that entry.
        """
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._log = CoordinatorLog(url, now_us, self._report)
        await self._do(self._log.open, identity, create, known)
        self._is_open = True
        while some := await self._do(self._log.read_some):
            for result in some:
                self._take(result)

    async def lead(self, coordinator: str) -> None:
        """Begin the term of this coordinator. StoreError: the log cannot be written."""
        for result in await self._do(self.log.lead, coordinator):
            self._take(result)

    def work(self, job: Callable[..., list[LogResult]], *arguments: Any) -> "asyncio.Future[list[LogResult]]":
        """Run `job` after all earlier jobs. The returned future ends when its results have been delivered."""
        future = self._do(job, *arguments)
        future.add_done_callback(self._worked)
        return future

    async def close(self) -> None:
        """Finish the queued jobs, but do not wait for an unusable store. A store not yet open has no jobs left."""
        self._jobs.put(None)
        if self._log is not None:
            self._log.close()
            if self._is_open:
                await asyncio.to_thread(self._thread.join, CLOSE_S_MAX)

    def _do(self, job: Callable[..., Result], *arguments: Any) -> "asyncio.Future[Result]":
        future: Future[Result] = Future()

        def do() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job(*arguments))
                except BaseException as error:  # noqa: BLE001 -- raised to the caller that awaits the future
                    future.set_exception(error)

        self._jobs.put(do)
        return asyncio.wrap_future(future)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _worked(self, future: "asyncio.Future[list[LogResult]]") -> None:
        if future.cancelled() or isinstance(future.exception(), Closing):
            return
        try:
            for result in future.result():
                self._take(result)
        except Exception as error:  # noqa: BLE001 -- a bug of ours: `_fail` ends the coordinator with it
            self._fail(error)

    def _report(self, problem: str | None) -> None:
        self._loop.call_soon_threadsafe(self._note, problem)

    def _note(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            self._events.emit("store trouble", ERROR, problem=problem)
        if problem is None and self.problem is not None:
            self._events.emit("store available again")
        self.problem = problem
