"""Several processes in one program: they start, run and end together on one event loop.

- If one fails, all end with its exit code. They share a thread, modules and memory, so what has damaged one may have
  damaged the others, and only the whole program can be started again.
- The first one registers before the others. So if a program is lost again and again, the same process is blamed each
  time, and the limit on its rollbacks holds.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from strobe.runtime.messages.control import Failed
from strobe.runtime.program.shared_parts import SharedParts

ANSWER_S_MAX = 1.0
"""How long the others wait for the coordinator's first answer to the first process."""
REGISTERING_MAX = 32
"""Maximum number of further processes that register at the same time."""


class GroupedHost(Protocol):
    """What a group uses of each host."""

    name: str
    problem: str | None
    answered: asyncio.Event

    async def run(self) -> int: ...

    def end(self, code: int) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def send(self, message: msgspec.Struct) -> None:
        """Send a message to the coordinator."""


class HostGroup:
    """The hosts of one program. `run` returns the exit code."""

    def __init__(self, hosts: Sequence[GroupedHost], parts: SharedParts) -> None:
        self._hosts = list(hosts)
        self._parts = parts
        self._running: dict[asyncio.Task[int], GroupedHost] = {}
        self._code: int | None = None

    async def run(self) -> int:
        """Run all processes until each has ended; return the exit code of the first that has failed, else 0."""
        loop = asyncio.get_running_loop()
        try:
            for number, host in enumerate(self._hosts):
                if self._code is not None:
                    break
                task = loop.create_task(host.run())
                self._running[task] = host
                task.add_done_callback(self._ended)
                if number % REGISTERING_MAX == 0:
                    await _await_answer(host, task)
            # Their errors, if any, are raised only when all have ended.
            ended = await asyncio.gather(*self._running, return_exceptions=True)
        finally:
            await self._parts.writer.close()
        for result in ended:
            if isinstance(result, BaseException):
                raise result
        return self._code or 0

    def end(self, code: int) -> None:
        """End all of them."""
        if self._code is None:
            self._code = code
        for host in self._hosts:
            host.end(code)

    def unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For `loop.set_exception_handler`: a callback has failed, and it is not known whose."""
        error = context.get("exception")
        if error is not None:
            self._hosts[0].fail(error)
        else:
            loop.default_exception_handler(context)

    def _ended(self, task: asyncio.Task[int]) -> None:
        """One has ended: unless it has left, end all."""
        failed = task.cancelled() or task.exception() is not None
        code = 1 if failed else task.result()
        if not code or self._code is not None:
            return
        self._code = code
        ended = self._running[task]
        for host in self._hosts:
            if host is not ended and ended.problem is not None:
                reason = f"process {ended.name}, in the same program, has failed: {ended.problem}"
                host.send(Failed(host.name, reason))
            host.end(code)


async def _await_answer(host: GroupedHost, task: asyncio.Task[int]) -> None:
    """Wait until the coordinator has answered `host`, or it has ended, but not for long."""
    answered = asyncio.ensure_future(host.answered.wait())
    await asyncio.wait({answered, task}, timeout=ANSWER_S_MAX, return_when=asyncio.FIRST_COMPLETED)
    answered.cancel()


def program_name(names: Sequence[str]) -> str:
    """Return the name of the program that runs these processes: `a`, or `a+3` for it and three more."""
    return names[0] if len(names) == 1 else f"{names[0]}+{len(names) - 1}"
