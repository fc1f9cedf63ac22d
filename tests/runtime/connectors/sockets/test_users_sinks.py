"""Users' own sinks may raise any error: the node retries or ends with the reason, and never hangs (R2)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.fake_coordinator import coordinating
from tests.runtime.link_ends import run, until
from tests.runtime.node.sockets.host_views import trio, without
from tests.runtime.scripted import acting, pair

from strobe.outside import Sink
from strobe.protocol.coordinator.messages import Dismiss, Drained, InstallView, Released, Reset
from strobe.runtime import retry
from strobe.runtime.node import effects


class Broker(Sink):
    """Fails once, in the method `fails_in`, and then works."""

    error: BaseException = ConnectionResetError("the broker hung up")

    def __init__(self, process: str, fails_in: str = "") -> None:
        self.process = process
        self.fails_in = fails_in
        self.records = 0

    def _work(self, name: str) -> None:
        if self.fails_in == name:
            self.fails_in = ""
            raise self.error

    @property
    def position(self) -> int:
        return self.records

    def restore(self, position: int, **_: Any) -> None:
        self._work("restore")
        self.records = position

    def emit(self, record: Any) -> None:
        self.records += 1

    def prepare(self, position: int) -> None:
        self._work("prepare")

    def release(self, position: int) -> None:
        self._work("release")

    def close(self) -> None:
        pass


class Forgetful(Broker):
    @property
    def released(self) -> int | None:
        raise KeyError("no such topic")


def test_R2_a_process_leaves_once_its_sink_has_prepared_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(effects, "STAGE_AGAIN_S", 0.001)

    async def scenario() -> None:
        sink = Broker("c")
        async with coordinating(tmp_path, trio(sinks={"out": sink})) as coordinator:
            hosts = await coordinator.started("a", "b", "c")
            acting(hosts[2]).emit("last")
            sink.fails_in = "prepare"
            view = without(coordinator.view, 2, "c")
            for name in "cab":
                coordinator.links[name].send(InstallView(name, view))
            link = coordinator.links["c"]
            await until(lambda: Drained("c", 2, {"out": 1}) in link.said(Drained))

    run(scenario())
    assert "process c cannot leave yet: ConnectionResetError: the broker hung up" in caplog.text


def test_R2_a_release_is_reported_until_the_coordinator_confirms(tmp_path: Path) -> None:
    async def scenario() -> None:
        sink = Broker("c")
        async with coordinating(tmp_path, trio(sinks={"out": sink})) as coordinator:
            await coordinator.started("a", "b", "c")
            link = coordinator.links["c"]
            for times in (1, 2):  # the first report is lost, so the order is repeated
                link.send(Dismiss("c", {"out": 7}, 2))
                await until(lambda times=times: link.said(Released) == [Released("c", 2)] * times)  # type: ignore[misc]
            assert sink.records == 7
            link.send(Dismiss("c"))
            assert await coordinator.ended("c") == 0

    run(scenario())


def test_R2_after_an_undone_departure_the_next_one_releases_output(tmp_path: Path) -> None:
    async def scenario() -> None:
        sink = Broker("c")
        async with coordinating(tmp_path, trio(sinks={"out": sink})) as coordinator:
            await coordinator.started("a", "b", "c")
            link = coordinator.links["c"]
            link.send(Dismiss("c", {"out": 7}, 2))
            assert await link.handle(Released) == Released("c", 2)
            await coordinator.begin(["c"], epoch=2)  # a rollback to before it left
            assert sink.records == 0
            link.send(Dismiss("c", {"out": 9}, 4))
            assert await link.handle(Released) == Released("c", 4)
            assert sink.records == 9

    run(scenario())


def test_R2_a_departed_process_releasing_output_ignores_a_rollback(tmp_path: Path) -> None:
    """Its report that all output is released may cross the reset: it reports once more, and is then dismissed."""

    async def scenario() -> None:
        async with coordinating(tmp_path, trio(sinks={"out": Broker("c")})) as coordinator:
            await coordinator.started("a", "b", "c")
            link = coordinator.links["c"]
            link.send(Dismiss("c", {"out": 7}, 2))
            await link.handle(Released)
            link.send(Reset("c"))
            await link.handle(Released)
            link.send(Dismiss("c"))
            assert await coordinator.ended("c") == 0
            assert coordinator.links["c"] is link

    run(scenario())


def test_R2_a_release_that_fails_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry, "PAUSE_S_MIN", 0.001)

    async def scenario() -> None:
        sink = Broker("c")
        async with coordinating(tmp_path, trio(sinks={"out": sink})) as coordinator:
            await coordinator.started("a", "b", "c")
            sink.fails_in = "restore"
            coordinator.links["c"].send(Dismiss("c", {"out": 7}, 2))
            await coordinator.links["c"].handle(Released)
            assert sink.records == 7

    run(scenario())
    assert "process c cannot release its output yet: the broker hung up; trying again" in caplog.text


def test_R2_a_departed_process_without_its_sink_names_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, trio(sinks={"out": Broker("c")})) as coordinator:
            host = coordinator.run("c")
            (await coordinator.registered("c")).send(Dismiss("c", {"audit": 7}, 2))
            assert await coordinator.ended("c") == 1
            assert "process c has left with output of its sink audit, which it no longer has" in host.problem

    run(scenario())


def test_R2_a_node_registers_without_a_sinks_released_position(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair(sinks={"out": Forgetful("b")})) as coordinator:
            coordinator.run("b")
            link = await coordinator.registered("b")
            assert link.register.released == {"out": None}

    run(scenario())
    assert "sink out of process b cannot report what it has released: KeyError: 'no such topic'" in caplog.text


@pytest.mark.parametrize(
    "error", [StopIteration(), asyncio.CancelledError(), GeneratorExit(), SystemExit(3)], ids=lambda one: repr(one)
)
def test_any_error_of_a_sink_in_its_thread_ends_the_node(tmp_path: Path, error: BaseException) -> None:
    """A task that awaits a raised CancelledError would look cancelled itself, and the node would hang."""

    async def scenario() -> None:
        sink = Broker("b", "restore")
        sink.error = error
        async with coordinating(tmp_path, pair(sinks={"out": sink})) as coordinator:
            host = coordinator.run("b")
            coordinator.restore(await coordinator.registered("b"), 1, None)
            assert await coordinator.ended("b") == 1
            assert host.problem is not None
            assert type(error).__name__ in host.problem
            assert f"{Path(__file__).name}:" in host.problem

    run(scenario())


def test_R2_an_unreachable_sink_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair(sinks={"out": Broker("b", "restore")})) as coordinator:
            await coordinator.started("a", "b")

    run(scenario())
    assert "process b cannot begin yet: the broker hung up; trying again" in caplog.text
