"""Releases the staged output of a departed process, so that the coordinator can dismiss it (R2)."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from strobe.errors import UsageError
from strobe.handlers import call
from strobe.outside import Sink
from strobe.protocol.coordinator.messages import Dismiss, Released
from strobe.runtime.program.writer_thread import WriterThread
from strobe.runtime.retry import RetryLoop
from strobe.user_code import RAISED, is_failure


class _Release(NamedTuple):
    """The release of the output of a process that left with `view`."""

    view: int
    task: asyncio.Task[None]


class OutputRelease:
    """Releases the output of process `name` after its departure. `send` reaches the coordinator, `fail` ends the node.

    `epoch` returns the current epoch.
    """

    def __init__(
        self,
        name: str,
        sinks: dict[str, Sink],
        writer: WriterThread,
        send: Callable[[Released], None],
        fail: Callable[[BaseException], None],
        epoch: Callable[[], int],
    ) -> None:
        self._name = name
        self._sinks = sinks
        self._writer = writer
        self._send = send
        self._fail = fail
        self._epoch = epoch
        self._release: _Release | None = None

    @property
    def under_way(self) -> bool:
        """Whether the process has left, and its output is being released or was released."""
        return self._release is not None

    def begin(self, order: Dismiss) -> None:
        """Release the output that `order` names, and report that."""
        if self._release is None or self._release.view != order.view:
            self.cancel()
            task = asyncio.get_running_loop().create_task(self._run(order))
            self._release = _Release(order.view, task)
        else:
            self.report()

    def report(self) -> None:
        """Report the release again, if it is done: the first message was lost."""
        if self._release is not None and self._release.task.done():
            self._send(Released(self._name, self._release.view))

    def cancel(self) -> None:
        """Cancel the release: after a rollback to before the departure, the process may leave with other output."""
        if self._release is not None:
            self._release.task.cancel()
            self._release = None

    async def _run(self, order: Dismiss) -> None:
        """Release all staged output, whether or not the state of the process is loaded."""
        release = partial(self._writer.run, partial(self._release_all, order.sinks))
        try:
            await RetryLoop(self._name, "release its output").until_done(release)
        except RAISED as error:  # it is retried when this node is restarted
            if not is_failure(error, awaited=True):
                raise
            self._fail(error)
        else:
            self._send(Released(self._name, order.view))

    def _release_all(self, positions: dict[str, int]) -> None:
        epoch = self._epoch()
        for name, position in positions.items():
            if name not in self._sinks:
                problem = f"process {self._name} has left with output of its sink {name}, which it no longer has"
                raise UsageError(f"{problem}; start it with that sink once more, so that it can release the output")
            call(self._sinks[name], "restore", position, epoch=epoch, origin=epoch)
