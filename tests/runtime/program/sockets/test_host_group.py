"""Several hosts in one program: who registers first, and what the end of one means for the others."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.link_ends import run, until

from strobe.runtime.program.host_group import HostGroup, program_name
from strobe.runtime.program.shared_parts import SharedParts


class ModelledHost:
    """A host without a process; the test answers and ends it."""

    def __init__(self, name: str, begun: list[str]) -> None:
        self.name = name
        self.problem: str | None = None
        self.answered = asyncio.Event()
        self.sent: list[Any] = []
        self._begun = begun
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        self._begun.append(self.name)
        return await self._code

    def end(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)

    def fail(self, error: BaseException) -> None:
        self.problem = str(error)
        self.end(1)

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def lose(self, error: BaseException) -> None:
        self._code.set_exception(error)


def scenario(steps: Callable[[HostGroup, list[ModelledHost], list[str]], Any], answered: bool = True) -> None:
    async def all_steps() -> None:
        begun: list[str] = []
        hosts = [ModelledHost(name, begun) for name in "abc"]
        if answered:
            hosts[0].answered.set()
        await steps(HostGroup(hosts, SharedParts("a+2", 3)), hosts, begun)

    run(all_steps())


def test_the_first_process_is_answered_before_the_others_register() -> None:
    async def steps(group: HostGroup, hosts: list[ModelledHost], begun: list[str]) -> None:
        running = asyncio.ensure_future(group.run())
        await until(lambda: begun)
        await asyncio.sleep(0)
        assert begun == ["a"]
        hosts[0].answered.set()
        await until(lambda: len(begun) == 3)
        group.end(0)
        assert await running == 0

    scenario(steps, answered=False)


def test_a_process_that_fails_ends_the_others_with_its_code_and_reason() -> None:
    async def steps(group: HostGroup, hosts: list[ModelledHost], begun: list[str]) -> None:
        running = asyncio.ensure_future(group.run())
        await until(lambda: len(begun) == 3)
        hosts[1].fail(ValueError("a bad message"))
        assert await running == 1
        assert [len(host.sent) for host in hosts] == [1, 0, 1]
        assert hosts[2].sent[0].process == "c"
        assert hosts[2].sent[0].reason == "process b, in the same program, has failed: a bad message"

    scenario(steps)


def test_a_process_that_ends_without_failure_ends_alone() -> None:
    async def steps(group: HostGroup, hosts: list[ModelledHost], begun: list[str]) -> None:
        running = asyncio.ensure_future(group.run())
        await until(lambda: len(begun) == 3)
        hosts[0].end(0)
        await asyncio.sleep(0)
        assert not running.done()
        group.end(130)
        assert await running == 130
        assert [host.sent for host in hosts] == [[], [], []]

    scenario(steps)


def test_an_error_of_one_host_is_raised_when_all_have_ended() -> None:
    async def steps(group: HostGroup, hosts: list[ModelledHost], begun: list[str]) -> None:
        running = asyncio.ensure_future(group.run())
        await until(lambda: len(begun) == 3)
        hosts[2].lose(OSError("the port is taken"))
        with pytest.raises(OSError, match="port is taken"):
            await running

    scenario(steps)


def test_a_program_is_named_after_its_first_process() -> None:
    assert program_name(["a"]) == "a"
    assert program_name(["a", "b", "c"]) == "a+2"
