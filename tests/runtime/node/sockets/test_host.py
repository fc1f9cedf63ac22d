"""The host of a process: epochs, rollbacks, joining and leaving."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.fake_coordinator import coordinating
from tests.runtime.link_ends import run, until
from tests.runtime.node.sockets.host_views import (
    trio,
    without,
)
from tests.runtime.scripted import Memory, acting, pair, scripted

from strobe.outside import Source
from strobe.protocol import View
from strobe.protocol.coordinator.messages import (
    Dismiss,
    Drained,
    InstallView,
    ReportOutcome,
    ReportSettled,
    Reset,
)
from strobe.protocol.coordinator.restart_messages import CannotResume, HandOverRef, Resume
from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.connectors.file_source import FileSource
from strobe.runtime.messages.control import Heartbeat, Stop
from strobe.runtime.node import external_io


def test_R1_a_rollback_undoes_messages_after_the_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            a, b = await coordinator.started("a", "b")
            send = acting(a).send
            send("a->b", 1)
            await until(lambda: scripted(system, "b").messages == [1])
            taken = await coordinator.photograph("a")
            send("a->b", 2)
            await until(lambda: scripted(system, "b").messages == [1, 2])
            await coordinator.begin(("a", "b"), taken, epoch=2)
            assert scripted(system, "b").messages == [1]
            assert (a.epoch, b.epoch) == (2, 2)
            acting(a).send("a->b", 3)
            await until(lambda: scripted(system, "b").messages == [1, 3])

    run(scenario())


def test_R1_a_restart_from_the_beginning_has_the_initial_state(tmp_path: Path) -> None:
    """Without a committed snapshot, a rollback resets every process to its initial state, although it keeps running."""

    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            a, _ = await coordinator.started("a", "b")
            acting(a).send("a->b", 1)
            await until(lambda: scripted(system, "b").messages == [1])
            await coordinator.begin(("a", "b"), epoch=2)
            assert scripted(system, "b").memory == Memory(started=1)
            assert scripted(system, "a").memory == Memory(started=1)
            acting(a).send("a->b", 2)
            await until(lambda: scripted(system, "b").messages == [2])

    run(scenario())


class SlowSource(Source):
    """A source whose `open` blocks until `may_open` is set."""

    process = "a"

    def __init__(self) -> None:
        self.may_open = threading.Event()
        self.opening = threading.Event()
        self.opened: list[int] = []

    def open(self, position: int) -> None:
        self.opening.set()
        assert self.may_open.wait(20)
        self.opened.append(position)

    def poll(self, records_max: int) -> list[Any]:
        return []

    @property
    def position(self) -> int:
        return 0

    def position_after(self, count: int) -> int:
        return 0

    def close(self) -> None:
        pass


def test_an_epoch_superseded_during_its_restore_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        source = SlowSource()
        async with coordinating(tmp_path, pair(sources={"slow": source})) as coordinator:
            a = coordinator.run("a")
            link = await coordinator.registered("a")
            coordinator.restore(link, 1)
            await until(source.opening.is_set)
            outgoing_links = [task for task in asyncio.all_tasks() if task.get_name() == "link a->b"]
            coordinator.restore(link, 2)
            coordinator.restore(link, 1)  # a late order of an earlier epoch
            await until(lambda: a.epoch == 2)
            source.may_open.set()
            await link.handle(Drained)
            assert a.epoch == 2
            assert a.timeline is not None
            assert a.timeline.epoch == 2
            assert all(task.done() for task in outgoing_links)
            assert len(link.said(Drained)) == 1

    run(scenario())


@pytest.mark.parametrize("code", [0, 1])
def test_a_node_can_be_stopped_during_a_restore(tmp_path: Path, code: int) -> None:
    async def scenario() -> None:
        source = SlowSource()
        async with coordinating(tmp_path, pair(sources={"slow": source})) as coordinator:
            host = coordinator.run("a")
            link = await coordinator.registered("a")
            coordinator.restore(link, 1)
            await until(source.opening.is_set)
            link.send(Stop("enough", code))
            source.may_open.set()
            assert await coordinator.ended("a") == code
            assert host.problem == ("enough" if code else None)

    run(scenario())


def test_orders_of_an_epoch_wait_until_it_has_been_restored(tmp_path: Path) -> None:
    """Duty 9: they are applied in order. Waiting orders of the previous epoch are dropped."""

    async def scenario() -> None:
        source = SlowSource()
        system = pair(sources={"slow": source})
        async with coordinating(tmp_path, system) as coordinator:
            coordinator.run("a")
            link = await coordinator.registered("a")
            coordinator.restore(link, 1)
            link.send(InstallView("a", View(7, ("a", "b"), coordinator.view.channels)))
            coordinator.restore(link, 2)
            link.send(InstallView("a", View(3, ("a", "b"), coordinator.view.channels)))
            source.may_open.set()
            assert (await link.handle(Drained)).view == 1
            assert (await link.handle(Drained)).view == 3

    run(scenario())


def test_R2_a_commit_received_with_a_rollback_releases_its_output(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair(sinks={"out": FileSink(tmp_path / "out.jsonl", process="a")})
        async with coordinating(tmp_path, system) as coordinator:
            a, _ = await coordinator.started("a", "b")
            acting(a).emit("said")
            begun = coordinator.ask("a")
            taken = await coordinator.commit(begun, report=False)
            acting(a).emit("said later")
            link = coordinator.links["a"]
            link.send(ReportOutcome("a", begun.snapshot, True), coordinator.order("a", 2, taken))
            await link.handle(Drained)
            assert (tmp_path / "out.jsonl").read_bytes() == b'"said"\n'
            assert a.problem is None

    run(scenario())


def test_a_heartbeat_has_no_position_without_a_timeline(tmp_path: Path) -> None:
    """Otherwise the jump to the restored position would look like a very high event rate."""

    async def scenario() -> None:
        source = SlowSource()
        async with coordinating(tmp_path, pair(sources={"slow": source}), heartbeat_s=0.005) as coordinator:
            coordinator.run("a")
            link = await coordinator.registered("a")
            coordinator.restore(link, 1)
            await until(source.opening.is_set)
            beat = await link.handle(Heartbeat)
            while beat.epoch:
                beat = await link.handle(Heartbeat)
            source.may_open.set()
            while not beat.epoch:
                beat = await link.handle(Heartbeat)
            assert beat.position == 1

    run(scenario())


def joined(view: View, number: int, process: str) -> View:
    """Return `view` after `process` has joined, with new channels."""
    channels = tuple(
        msgspec.structs.replace(spec, incarnation=number) if process in (spec.source, spec.target) else spec
        for spec in view.channels
    )
    return View(number, view.processes, channels)


def test_E2_the_last_messages_of_a_leaving_process_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_io, "IDLE_S", 0)

    async def scenario() -> None:
        source = FileSource(tmp_path / "in.jsonl", process="c")
        system = trio(sources={"in": source})
        scripted(system, "c").on_leave = lambda ctx: ctx.send("c->a", "all I have")
        async with coordinating(tmp_path, system) as coordinator:
            hosts = await coordinator.started("a", "b", "c")
            view = without(coordinator.view, 2, "c")
            acting(hosts[0]).send("a->c", "for you")
            for name in ("c", "a", "b"):
                coordinator.links[name].send(InstallView(name, view))
            for name in ("a", "b", "c"):
                while (await coordinator.links[name].handle(Drained)).view != 2:
                    pass
            assert scripted(system, "c").messages == ["for you"]
            assert scripted(system, "a").messages == ["all I have"]
            assert acting(hosts[0]).outputs == ("a->b",)
            # After its last event, a process reads nothing more from its sources.
            (tmp_path / "in.jsonl").write_text("1\n2\n")
            for _ in range(20):
                await asyncio.sleep(0)
            coordinator.links["c"].send(Dismiss("c"))
            assert await coordinator.ended("c") == 0
            assert scripted(system, "c").messages == ["for you"]
            assert not hosts[0].problem

    run(scenario())


def test_E2_a_joining_process_begins_with_its_first_view(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "in.jsonl").write_text("1\n2\n")
        system = trio(
            sources={"in": FileSource(tmp_path / "in.jsonl", process="c")},
            sinks={"out": FileSink(tmp_path / "out.jsonl", process="c")},
        )
        scripted(system, "c").on_receive = lambda ctx, channel, message: ctx.emit(message)
        async with coordinating(tmp_path, system) as coordinator:
            whole = coordinator.view
            coordinator.view = without(whole, 1, "c")
            await coordinator.started("a", "b")
            coordinator.run("c")
            link = await coordinator.registered("c")
            coordinator.view = joined(whole, 2, "c")
            link.send(ReportSettled("c", 1), InstallView("c", coordinator.view))
            for name in ("a", "b"):
                coordinator.links[name].send(InstallView(name, coordinator.view))
            for name in ("a", "b", "c"):
                while (await coordinator.links[name].handle(Drained)).view != 2:
                    pass
            await until(lambda: scripted(system, "c").messages == [1, 2])
            taken = await coordinator.photograph("a")
            await until(lambda: (tmp_path / "out.jsonl").read_bytes() == b"1\n2\n")
            assert coordinator.record_of(taken, "c").sinks == {"out": 4}

    run(scenario())


def test_R1_a_process_that_joined_later_is_reset_and_joins_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "in.jsonl").write_text("1\n")
        system = trio(sources={"in": FileSource(tmp_path / "in.jsonl", process="c")})
        async with coordinating(tmp_path, system) as coordinator:
            host = coordinator.run("c")
            first = await coordinator.registered("c")
            first.send(ReportSettled("c", 1), InstallView("c", coordinator.view))
            await until(lambda: scripted(system, "c").messages == [1])
            coordinator.epoch = 2
            first.send(Reset("c"), InstallView("c", View(9, ("c",), ())))
            second = await coordinator.registered("c", after=first)
            assert second.register.epoch == 0
            assert second.register.instance != first.register.instance
            assert host.timeline is None
            view = joined(coordinator.view, 5, "c")
            second.send(ReportSettled("c", 1), InstallView("c", view))
            assert (await second.handle(Drained)).view == 5
            await until(lambda: scripted(system, "c").messages == [1])
            assert scripted(system, "c").memory == Memory(received=[("in", 1)], started=1)
            assert host.epoch == 2

    run(scenario())


def test_E11_a_successor_without_a_usable_hand_over_registers_again_without_state(tmp_path: Path) -> None:
    """The next coordinator believes that it has its state, and must not make it begin again in the same epoch."""

    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            host = coordinator.run("b")
            link = await coordinator.registered("b")
            ref = HandOverRef(f"{0:016x}-000003-{7:016x}", "0" * 64, 5)
            link.send(Resume("b", 3, ref))
            await link.handle(CannotResume)
            link.send(ReportSettled("b", 1), InstallView("b", coordinator.view))
            again = await coordinator.registered("b", after=link)
            assert (again.register.epoch, host.epoch) == (0, 0)
            assert again.register.instance != link.register.instance
            assert link.said(Drained) == []

    run(scenario())
