"""Troubles that the coordinator reports: waiting processes, stuck channels, failing snapshots."""

import asyncio
from pathlib import Path

import msgspec
from tests.runtime.fake_nodes import Running, both_alive, committed, running

from strobe.protocol.coordinator.messages import (
    SnapshotWanted,
)
from strobe.protocol.values.log_entries import FrontierRecord
from strobe.runtime.messages.control import Blocked, ChannelReport, Heartbeat, Welcome


def test_repeated_aborts_are_a_trouble_until_a_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            wrong = {"b->a": FrontierRecord(1, "00" * 16)}
            for _ in range(3):
                assert coordinator.service.status().troubles == []
                coordinator.coordinator.handle(SnapshotWanted())
                await asyncio.gather(a.take_part(received=wrong), b.take_part())
            [trouble] = coordinator.service.status().troubles
            assert trouble.kind == "snapshots"
            assert "the last 3 snapshots were aborted" in trouble.problem
            assert "the cut is inconsistent" in trouble.problem
            await committed(coordinator, a, b)
            assert coordinator.service.status().troubles == []

    asyncio.run(scenario())


def test_a_refused_channel_is_a_trouble(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, _ = await both_alive(coordinator)
            a.send(Heartbeat("a", 1, 0, 0.0, 0, {"a->b": ChannelReport(0, refused="stranger")}, {}, {}))
            await coordinator.until(lambda: coordinator.service.status().troubles)
            [trouble] = coordinator.service.status().troubles
            assert trouble.kind == "refused"
            assert "channel a->b of process a is refused by the other end: stranger" in trouble.problem

    asyncio.run(scenario())


def test_a_process_that_waits_to_begin_is_a_trouble_and_not_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            _, b = await both_alive(coordinator)
            b.send(Heartbeat("b", 0, 0, 0.0, 0, {}, {}, {}, waiting="store s3://bucket/shop: is unreachable"))
            await coordinator.until(lambda: coordinator.service.status().troubles)
            [trouble] = coordinator.service.status().troubles
            assert trouble.kind == "waiting"
            assert trouble.problem == "process b cannot begin yet: store s3://bucket/shop: is unreachable"
            assert coordinator.coordinator.started_us < trouble.since_us <= coordinator.service.status().now_us
            assert coordinator.service.status().troubles == [trouble]
            b.beat()
            await coordinator.until(lambda: not coordinator.service.status().troubles)

    asyncio.run(scenario())


def test_a_channel_that_cannot_be_read_is_a_trouble(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            _, b = await both_alive(coordinator)
            b.send(Heartbeat("b", 1, 0, 0.0, 0, {}, {}, {}, unreadable={"a->b": "a->b: the frame of message 2"}))
            await coordinator.until(lambda: coordinator.service.status().troubles)
            [trouble] = coordinator.service.status().troubles
            assert trouble.kind == "unreadable"
            assert "process b cannot read messages on a->b: the frame of message 2" in trouble.problem

    asyncio.run(scenario())


def test_a_process_that_is_held_back_by_its_output_is_a_trouble(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            _, b = await both_alive(coordinator)
            b.send(Heartbeat("b", 1, 0, 0.0, 0, {}, {}, {}, held_back="sink out.jsonl: no space left on device"))
            await coordinator.until(lambda: coordinator.service.status().troubles)
            [trouble] = coordinator.service.status().troubles
            assert trouble.kind == "output"
            expected = "process b receives no more messages: sink out.jsonl: no space left on device"
            assert trouble.problem == expected
            b.beat()
            await coordinator.until(lambda: not coordinator.service.status().troubles)

    asyncio.run(scenario())


def test_E13_a_blocked_process_is_named_until_it_sends_something_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            _, b = await both_alive(coordinator)
            members = coordinator.coordinator.members
            instance, identity = members.by_process["b"].instance, coordinator.coordinator.identity
            call = "Branch.receive() of b at bank.py:26"
            report = Blocked("b", instance, identity, call, 5.0)
            for strange in ({"process": "z"}, {"instance": "another"}, {"system": "another"}):
                (await coordinator.node("b", silent=True)).send(msgspec.structs.replace(report, **strange))
            sender = await coordinator.node("b", silent=True)
            sender.send(report)
            await sender.ended.wait()
            await coordinator.until(lambda: coordinator.service.status().troubles)
            [trouble] = coordinator.service.status().troubles
            assert (trouble.kind, trouble.problem.partition(" has been running for ")[0]) == ("blocked", call)
            assert trouble.problem.endswith("; until it returns, no snapshot completes")
            shown = {one.name: one.blocked for one in coordinator.service.status().processes}
            assert shown["a"] == ""
            assert shown["b"].startswith(f"{call} has been running for ")
            assert [line["call"] for line in coordinator.logged("blocked")] == [call]
            await b.close()  # a silent node is disconnected; its own report then says more than "missing"
            await coordinator.until(lambda: not members.by_process["b"].connected)
            assert [one.kind for one in coordinator.service.status().troubles] == ["blocked"]
            again = await coordinator.node("b", instance=instance, epoch=1)
            await again.handle(Welcome)
            assert coordinator.service.status().troubles == []
            again.send(Heartbeat("b", 1, 0, 0.0, 0, {}, {}, {}, blocked="Sink.prepare() of b has been running"))
            await coordinator.until(lambda: coordinator.service.status().troubles)
            again.beat()
            await coordinator.until(lambda: not coordinator.service.status().troubles)

    asyncio.run(scenario())


async def next_heartbeats(coordinator: Running, *processes: str) -> None:
    """Wait until the coordinator has received one more heartbeat of each process."""
    members = [coordinator.coordinator.members.get(process) for process in processes]
    seen = [member and member.heartbeat for member in members]
    await coordinator.until(
        lambda: all(member and member.heartbeat is not before for member, before in zip(members, seen, strict=True))
    )


def test_a_credit_deadlock_is_reported_once_with_a_solution(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            for _ in range(2):  # it takes two heartbeats to see that there is no progress
                a.beat(b=5.0)
                b.beat(a=6.0)
                assert coordinator.logged("credit deadlock") == []
                await next_heartbeats(coordinator, "a", "b")
            await coordinator.until(lambda: coordinator.logged("credit deadlock"))
            troubles = coordinator.service.status().troubles
            assert [trouble.kind for trouble in troubles] == ["credit"]
            assert "a -> b -> a" in troubles[0].problem
            assert "window_bytes" in troubles[0].problem
            a.beat()
            await coordinator.until(lambda: coordinator.service.watch.cycles == [])
            assert [trouble.kind for trouble in coordinator.service.status().troubles] == ["slow"]
            assert len(coordinator.logged("credit deadlock")) == 1

    asyncio.run(scenario())


def test_a_waiting_cycle_with_progress_is_no_deadlock(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            a.beat(position=1, b=5.0)
            a.beat(position=9, b=5.5)
            await coordinator.until(lambda: coordinator.coordinator.members.get("a").reached == 9)
            for _ in range(2):
                b.beat(a=6.0)
                await next_heartbeats(coordinator, "b")
            await coordinator.until(lambda: len(coordinator.logged("slow channel")) == 2)
            assert [trouble.kind for trouble in coordinator.service.status().troubles] == ["slow", "slow"]
            assert coordinator.logged("credit deadlock") == []

    asyncio.run(scenario())
