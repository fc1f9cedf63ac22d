"""How the coordinator handles joining and leaving processes that are gone, or cannot start (E2, R2)."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.fake_nodes import FakeNode, Quiet, Running, both_alive, committed, running, system_of

from strobe.process import Channel, System
from strobe.protocol import ChannelSpec
from strobe.protocol.coordinator.messages import (
    Dismiss,
    Drained,
    InstallView,
    LeaveWanted,
    Released,
    Reset,
    RestoreState,
    RestoreWanted,
    SnapshotWanted,
)
from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.coordinator.operations import NoAnswer
from strobe.runtime.coordinator.pending_requests import RestoreFailed
from strobe.runtime.messages.api_documents import RestoreRequest, TakeRequest, TakeResult
from strobe.runtime.messages.control import SnapshotBegun

NAMES = ("a", "b", "c")
OUT = {"out": 70}


def with_sink(directory: Path) -> System:
    """A ring in which c has output."""
    channels = [Channel("a", "b"), Channel("b", "c"), Channel("c", "a")]
    return System({name: Quiet() for name in NAMES}, channels, sinks={"out": FileSink(directory / "out.jsonl", "c")})


async def all_alive(coordinator: Running, **how: Any) -> list[FakeNode]:
    nodes = [await coordinator.start_node(name, **how) for name in NAMES]
    await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
    return nodes


async def drained(*nodes: FakeNode, **how: Any) -> None:
    """Install the next view at these nodes."""
    for node in nodes:
        node.send(Drained(node.process, (await node.handle(InstallView)).view.number, **how))


async def left_with_output(coordinator: Running) -> tuple[FakeNode, FakeNode]:
    """Have c leave, with its output released; return the others."""
    a, b, c = await all_alive(coordinator)
    await leave_with_output(coordinator, a, b, c)
    return a, b


def test_R2_a_departed_process_ends_when_restarted_but_a_new_one_joins(tmp_path: Path) -> None:
    """A process killed just before its end must not undo its leave, nor be refused because of its released output."""

    async def scenario() -> None:
        async with running(tmp_path / "store", with_sink(tmp_path)) as coordinator:
            a, b, c = await all_alive(coordinator, run="first")
            await leave_with_output(coordinator, a, b, c)
            again = await coordinator.node("c", released=OUT, run="first")
            assert await again.handle(Dismiss) == Dismiss("c")
            await again.close()
            await coordinator.until(lambda: coordinator.coordinator.members.get("c") is None)
            second = await coordinator.node("c", released={"out": 0}, run="second")
            await second.handle(InstallView)
            # If it is killed before it has started, it may still join when it is restarted.
            assert coordinator.coordinator.members.runs["c"] == "first"
            await drained(a, b)
            second.send(Drained("c", coordinator.coordinator.lifecycle.view.number))
            await coordinator.until(lambda: coordinator.coordinator.members.runs["c"] == "second")

    asyncio.run(scenario())


def test_a_departed_process_with_unreleased_output_is_shown_as_leaving(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", with_sink(tmp_path)) as coordinator:
            a, b, c = await all_alive(coordinator)
            coordinator.coordinator.handle(LeaveWanted("c"))
            await drained(a, b)
            await drained(c, sinks=OUT)
            await asyncio.gather(a.take_part(), b.take_part())
            order = await c.handle(Dismiss)
            status = coordinator.service.status()
            assert [(one.name, one.state) for one in status.processes][-1] == ("c", "leaving")
            assert status.troubles == []
            await c.close()
            await coordinator.until(lambda: coordinator.coordinator.members.get("c") is None)
            (trouble,) = coordinator.service.status().troubles
            assert (trouble.kind, "process c has left, but has not reported" in trouble.problem) == ("output", True)
            again = await coordinator.node("c")
            assert await again.handle(Dismiss) == order
            again.send(Released("c", order.view))
            assert await again.handle(Dismiss) == Dismiss("c")
            assert coordinator.service.status().left == ["c"]

    asyncio.run(scenario())


async def leave_with_output(coordinator: Running, a: FakeNode, b: FakeNode, c: FakeNode) -> None:
    coordinator.coordinator.handle(LeaveWanted("c"))
    await drained(a, b)
    await drained(c, sinks=OUT)
    await asyncio.gather(a.take_part(), b.take_part())
    c.send(Released("c", (await c.handle(Dismiss)).view))
    assert await c.handle(Dismiss) == Dismiss("c")
    await c.close()
    await coordinator.until(lambda: coordinator.coordinator.members.get("c") is None)


@pytest.mark.parametrize("released", [70, None], ids=["as its sink says", "as the log says"])
def test_R2_a_process_with_released_output_cannot_join_again(tmp_path: Path, released: int | None) -> None:
    """R2: it would have to start at position 0 of its sink, which is released already; so it never enters the view."""

    async def scenario() -> None:
        async with running(tmp_path / "store", with_sink(tmp_path)) as coordinator:
            a, b = await left_with_output(coordinator)
            refused = await (await coordinator.node("c", released={"out": released})).refused()
            assert refused.final
            assert "its sink out has released output already" in refused.reason
            assert "give it another file" in refused.reason
            await committed(coordinator, a, b)
            assert coordinator.coordinator.lifecycle.view.processes == ("a", "b")
            assert coordinator.logged("rollback") == []

    asyncio.run(scenario())


def test_R2_a_process_with_released_output_rejoins_with_another_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", with_sink(tmp_path)) as coordinator:
            a, b = await left_with_output(coordinator)
            c = await coordinator.node("c", released={"out": 0})
            await drained(a, b, c)
            await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
            await committed(coordinator, a, b, c)

    asyncio.run(scenario())


def test_the_status_lists_departed_processes_from_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", with_sink(tmp_path)) as coordinator:
            assert coordinator.service.status().left == []
            a, b = await left_with_output(coordinator)
            await committed(coordinator, a, b)  # the log has that its output is released
            assert coordinator.service.status().left == ["c"]
        async with running(tmp_path / "store", with_sink(tmp_path)) as coordinator:
            assert coordinator.service.status().left == ["c"]

    asyncio.run(scenario())


JOINS_J = (ChannelSpec("a->j", "a", "j"), ChannelSpec("j->a", "j", "a"))


def test_E2_a_joiner_gone_before_its_turn_is_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            await b.close()
            await coordinator.until(lambda: not coordinator.coordinator.lifecycle.settled)
            j = await coordinator.node("j", channels=JOINS_J)
            await coordinator.until(lambda: coordinator.coordinator.members.get("j"))
            await j.close()
            await coordinator.until(lambda: coordinator.coordinator.members.get("j") is None)
            b = await coordinator.node("b", epoch=1, instance=f"b-{id(b)}")
            await drained(b)
            await committed(coordinator, a, b)
            status = coordinator.service.status()
            assert [one.name for one in status.processes] == ["a", "b"]
            assert status.troubles == []

    asyncio.run(scenario())


def test_E2_a_joiner_that_reconnects_gets_its_order_again(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            j = await coordinator.node("j", channels=JOINS_J)
            await j.handle(InstallView)
            await j.close()
            j = await coordinator.node("j", channels=JOINS_J, instance=f"j-{id(j)}")
            await drained(a, b, j)
            await committed(coordinator, a, b, j)
            assert coordinator.logged("rollback") == []

    asyncio.run(scenario())


@pytest.mark.parametrize("rolled_back", [False, True])
def test_E2_a_departed_process_that_missed_its_dismissal_gets_it_again(tmp_path: Path, rolled_back: bool) -> None:
    """It returns with state of this epoch or an earlier one; nobody waits for it, and it does not join."""

    async def scenario() -> None:
        async with running(tmp_path / "store", system_of(*NAMES)) as coordinator:
            a, b, c = await all_alive(coordinator)
            coordinator.coordinator.handle(LeaveWanted("c"))
            await drained(a, b, c)
            await c.handle(Dismiss)
            await c.close()
            await committed(coordinator, a, b)
            if rolled_back:
                coordinator.coordinator.handle(RestoreWanted(None, "someone asked"))
                await asyncio.gather(a.start_as_ordered(), b.start_as_ordered())
            c = await coordinator.node("c", epoch=1, instance=f"c-{id(c)}")
            await c.handle(Dismiss)
            await c.close()
            await coordinator.until(lambda: coordinator.coordinator.members.get("c") is None)
            assert coordinator.service.status().troubles == []
            assert coordinator.logged("failed") == []

    asyncio.run(scenario())


def test_R2_a_leaver_lost_with_undurable_output_is_shown_as_missing(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", with_sink(tmp_path)) as coordinator:
            a, b, c = await all_alive(coordinator)
            coordinator.coordinator.handle(LeaveWanted("c"))
            await drained(a, b)
            assert coordinator.service.status().processes[-1].state == "leaving"
            await c.close()
            await coordinator.until(lambda: coordinator.logged("failed"))
            status = coordinator.service.status()
            assert [(one.name, one.state) for one in status.processes][-1] == ("c", "missing")
            assert [one.kind for one in status.troubles] == ["missing"]
            assert "process c is not running" in status.troubles[0].problem
            with pytest.raises(NoAnswer, match="it waits for c, which is leaving with output, to run"):
                await coordinator.service.operations.take(TakeRequest(wait=True, timeout_s=0.1))

    asyncio.run(scenario())


def test_a_request_naming_a_leaver_gets_the_snapshot_without_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", system_of(*NAMES)) as coordinator:
            a, b, c = await all_alive(coordinator)
            coordinator.coordinator.handle(LeaveWanted("c"))  # not in the log yet
            request = TakeRequest(wait=True, initiators=("c",), timeout_s=5.0)
            taking = asyncio.create_task(coordinator.service.operations.take(request))
            await drained(a, b, c)
            (begun, _), _ = await asyncio.gather(a.take_part(), b.take_part())
            assert await taking == TakeResult(str(begun.snapshot), "committed")

    asyncio.run(scenario())


def test_R1_a_joiner_that_keeps_crashing_is_refused(tmp_path: Path) -> None:
    """R1: a process that is in no snapshot yet is not needed; it is no reason to stop everything."""

    async def scenario() -> None:
        async with running(tmp_path / "store", rollbacks_max=2) as coordinator:
            a, b = await both_alive(coordinator)
            await committed(coordinator, a, b)
            for _ in range(2):
                j = await coordinator.node("j", channels=JOINS_J)
                await j.handle(InstallView)
                await j.close()
                j = await coordinator.node("j", channels=JOINS_J)
                await asyncio.gather(a.start_as_ordered(), b.start_as_ordered())
                await j.handle(Reset)
                await j.close()
            for _ in range(3):
                refused = await (await coordinator.node("j", channels=JOINS_J)).refused()
                assert refused.final
                assert "it has caused 2 rollbacks within 60 s" in refused.reason
            await committed(coordinator, a, b)
            assert coordinator.coordinator.halted is None

    asyncio.run(scenario())


async def take_snapshot(coordinator: Running, *nodes: FakeNode, **sinks: dict[str, int]) -> str:
    """Have these nodes take a snapshot, with the given sink positions; return its id."""
    coordinator.coordinator.handle(SnapshotWanted())
    parts = [node.take_part(sinks=sinks.get(node.process, {})) for node in nodes]
    outcomes = await asyncio.gather(*parts)
    assert all(report.committed for _, report in outcomes), outcomes
    return str(outcomes[0][0].snapshot)


def test_R2_a_commit_logged_after_a_rejoin_blocks_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", with_sink(tmp_path)) as coordinator:
            a, b = await left_with_output(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = [await node.handle(SnapshotBegun) for node in (a, b)]
            disk_works = threading.Event()

            def slow_disk() -> list[Any]:
                assert disk_works.wait(20)
                return []

            coordinator.coordinator.store.work(slow_disk)
            c = await coordinator.node("c", released={"out": 0})
            lifecycle = coordinator.coordinator.lifecycle
            await coordinator.until(lambda: lifecycle.membership.changing is not None)
            a.store_part(begun[0])
            b.store_part(begun[1])
            await coordinator.until(lambda: any(attempt.committing for attempt in lifecycle.open.values()))
            disk_works.set()
            await drained(a, b, c)
            await coordinator.until(lambda: lifecycle.settled)
            for position in (3, 4):
                newest = await take_snapshot(coordinator, a, b, c, c={"out": position})
            await b.close()
            await coordinator.until(lambda: not coordinator.coordinator.members.get("b").connected)
            b = await coordinator.node("b")
            assert (await b.handle(RestoreState)).restored == newest

    asyncio.run(scenario())


@pytest.mark.parametrize("again", [False, True], ids=["has left", "has joined again"])
def test_R2_no_restore_goes_below_released_output_of_a_departed_process(tmp_path: Path, again: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", with_sink(tmp_path)) as coordinator:
            a, b, c = await all_alive(coordinator)
            earlier = await take_snapshot(coordinator, a, b, c, c={"out": 10})
            await leave_with_output(coordinator, a, b, c)
            if again:
                c = await coordinator.node("c", released={"out": 0})
                await drained(a, b, c)
                await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
                await take_snapshot(coordinator, a, b, c, c={"out": 3})
            with pytest.raises(RestoreFailed, match="sink out of process c has released 60 more since"):
                await coordinator.service.operations.restore(RestoreRequest(earlier, False, 20.0))

    asyncio.run(scenario())


def test_E2_a_joiner_may_name_channels_of_a_process_about_to_leave(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", system_of("a", "b", "c")) as coordinator:
            a, b, c = await all_alive(coordinator)
            membership = coordinator.coordinator.lifecycle.membership
            membership.drained.discard("a")  # the view is not settled, so the leave waits
            coordinator.coordinator.handle(LeaveWanted("c"))
            channels = (ChannelSpec("j->a", "j", "a"), ChannelSpec("c->j", "c", "j"))
            j = await coordinator.node("j", channels=channels)
            await coordinator.until(lambda: len(membership.changes) == 2)
            a.send(Drained("a", 1))
            await drained(a, b, c)
            await drained(a, b, j)
            await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
            assert membership.view.processes == ("a", "b", "j")

    asyncio.run(scenario())


def test_E2_a_joiner_that_replaces_its_silent_former_instance_joins(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            membership = coordinator.coordinator.lifecycle.membership
            membership.drained.discard("a")  # the view is not settled, so the join waits
            await coordinator.node("j", channels=JOINS_J, instance="former")
            await coordinator.until(lambda: coordinator.coordinator.members.get("j"))
            coordinator.coordinator.members.get("j").last_message_s = -1e9
            j = await coordinator.node("j", channels=JOINS_J)
            await coordinator.until(lambda: coordinator.coordinator.members.get("j").instance != "former")
            a.send(Drained("a", 1))
            await drained(a, b, j)
            await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
            assert "j" in membership.view.processes

    asyncio.run(scenario())
