"""Which connections the coordinator admits, and which it refuses: strangers, garbage, nodes of other systems."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.runtime.fake_coordinator import application_of
from tests.runtime.fake_nodes import Quiet, both_alive, running
from tests.runtime.link_ends import run

from strobe import Channel, System
from strobe.protocol.coordinator.messages import (
    Drained,
    InstallView,
)
from strobe.runtime.addresses import parse_address
from strobe.runtime.coordinator import control_server
from strobe.runtime.coordinator.node_sessions import REJECTS_LOGGED_MAX
from strobe.runtime.messages.control import (
    LENGTH,
    Refused,
)
from strobe.runtime.node.host import Host
from strobe.storage import Store


def test_strangers_are_refused_and_the_coordinator_continues(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            old = await coordinator.node("a", version=99)
            assert "version 99" in (await old.refused()).reason
            other = await coordinator.node("a", protocol="lai-yang")
            assert "lai-yang" in (await other.refused()).reason
            unknown = await coordinator.node("z", channels=())
            refusal = await unknown.refused()
            assert refusal.final
            assert "'z'" in refusal.reason
            ahead = await coordinator.node("a", epoch=9)
            assert not (await ahead.refused()).final
            await both_alive(coordinator)

    asyncio.run(scenario())


def test_E7_a_node_of_another_system_may_always_retry(tmp_path: Path) -> None:
    """E7: the node has its state and must not end: its own coordinator had this port before, and will return."""

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, _ = await both_alive(coordinator)
            variants = (
                {"epoch": 1},
                {"epoch": 9},
                {"version": 99},
                {"protocol": "lai-yang"},
                {"instance": "newer"},
            )
            for how in variants:
                other = await coordinator.node("a", system="another", **how)
                refusal = await other.refused()
                assert not refusal.final
                assert f"of another system, of the store {tmp_path / 'store'}" in refusal.reason
            assert not a.ended.is_set()
            own = await coordinator.node("b", epoch=1, system=coordinator.coordinator.identity)
            assert "running already" in (await own.refused()).reason

    asyncio.run(scenario())


def test_E7_nodes_continue_while_another_system_has_their_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """E7: they keep their state, and reconnect to their own coordinator when it is back."""

    async def scenario() -> None:
        system = System({"a": Quiet()}, [])
        async with running(tmp_path / "mine", system) as mine:
            place = mine.service.listen
            node = Host("a", system, application_of(system, "a"), parse_address(place, "listen"))
            ending = asyncio.create_task(node.run())
            await mine.until(lambda: mine.coordinator.lifecycle.settled)
        timeline = node.timeline
        async with running(tmp_path / "others", system, listen=place) as other:
            await other.until(lambda: len(other.logged("registration refused")) > 1)
            assert other.service.status().processes[0].state == "missing"
        async with running(tmp_path / "mine", system, listen=place) as mine:
            await mine.until(lambda: mine.coordinator.lifecycle.settled)
            assert (mine.coordinator.lifecycle.epoch, node.timeline) == (1, timeline)
            node.end(0)
            assert await ending == 0

    run(scenario())
    assert len([line for line in caplog.messages if "of another system" in line]) == 1


def test_a_node_without_state_is_admitted_by_the_next_coordinator(tmp_path: Path) -> None:
    """E7: it belongs to no system yet, whichever coordinator it found first, and however high that one's term is."""

    async def scenario() -> None:
        mine, other = System({"a": Quiet()}, []), System({"a": Quiet(), "b": Quiet()}, [Channel("a", "b")])
        for _ in range(2):  # each start is a term
            async with running(tmp_path / "others", other):
                pass
        async with running(tmp_path / "others", other) as first:
            place = first.service.listen
            node = Host("a", mine, application_of(mine, "a"), parse_address(place, "listen"))
            node._restore = lambda order: None  # type: ignore[method-assign] -- this coordinator ends before it starts
            ending = asyncio.create_task(node.run())
            await first.until(lambda: node.system == first.coordinator.identity)
        del node._restore  # type: ignore[method-assign]
        async with running(tmp_path / "mine", mine, listen=place) as second:
            await second.until(lambda: second.coordinator.lifecycle.settled)
            assert node.system == second.coordinator.identity
            node.end(0)
            assert await ending == 0

    run(scenario())


def test_E7_a_node_of_a_store_waits_for_the_coordinator_of_that_store(tmp_path: Path) -> None:
    """E7: also without state; the status of the coordinator that refuses it gives the reason."""

    async def scenario() -> None:
        system = System({"a": Quiet()}, [])
        mine = Store.create(tmp_path / "mine").header.store
        async with running(tmp_path / "others", system) as other:
            place = other.service.listen
            address = parse_address(place, "listen")
            node = Host("a", system, application_of(system, "a"), address, store_id=mine)
            ending = asyncio.create_task(node.run())
            await other.until(lambda: other.logged("registration refused"))
            (status,) = other.service.status().processes
            assert status.trouble.startswith("its node was refused: here is the coordinator of another system")
            assert mine in status.trouble
        async with running(tmp_path / "mine", system, listen=place) as own:
            await own.until(lambda: own.coordinator.lifecycle.settled)
            assert own.service.status().processes[0].trouble == ""
            node.end(0)
            assert await ending == 0

    run(scenario())


def test_repeated_refusals_do_not_fill_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            for _ in range(REJECTS_LOGGED_MAX + 5):
                await (await coordinator.node("a", system="another")).refused()
            assert len(coordinator.logged("registration refused")) == REJECTS_LOGGED_MAX

    asyncio.run(scenario())


def test_many_unregistered_connections_do_not_block_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "STRANGERS_MAX", 3)

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            host, port = parse_address(coordinator.service.listen, "listen")
            crowd = [await asyncio.open_connection(host, port) for _ in range(5)]
            await coordinator.until(lambda: coordinator.service.sessions.rejects == 2)
            await both_alive(coordinator)
            await coordinator.until(lambda: coordinator.service.sessions.rejects == 3)
            reason = coordinator.logged("rejected")[-1]["reason"]
            assert reason == "3 others connected after it, and it had not registered"
            for reader, writer in crowd[:3]:
                assert await reader.read() == b""
                writer.close()
            for _, writer in crowd[3:]:
                writer.close()

    asyncio.run(scenario())


def test_a_new_connection_of_the_same_instance_replaces_the_old_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            first = await coordinator.start_node("a")
            again = await coordinator.node("a", instance=f"a-{id(first)}", epoch=1)
            await again.handle(InstallView)
            async with asyncio.timeout(20):
                await first.ended.wait()
            assert not any(isinstance(message, Refused) for message in first.received)
            assert coordinator.logged("failed") == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        LENGTH.pack(2**31) + b"x",
        LENGTH.pack(4) + b"\xc1\xc1\xc1\xc1",
        LENGTH.pack(len(b := msgspec.msgpack.encode(("Stop", {"reason": "no"})))) + b,
        LENGTH.pack(len(b := msgspec.msgpack.encode(("Drained", {"process": "a", "view": 1})))) + b,
        b"\x1b\xeee",
    ],
)
def test_garbage_on_the_control_port_is_refused_and_counted(tmp_path: Path, garbage: bytes) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            stranger = await coordinator.node("a", silent=True)
            stranger.writer.write(garbage)
            stranger.writer.write_eof()
            async with asyncio.timeout(20):
                await stranger.ended.wait()
            assert coordinator.service.status().rejected == 1
            assert len(coordinator.logged("rejected")) == 1
            await coordinator.start_node("a")

    asyncio.run(scenario())


def test_a_node_that_sends_messages_of_another_is_disconnected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a = await coordinator.start_node("a")
            a.send(Drained("b", 1))
            async with asyncio.timeout(20):
                await a.ended.wait()
            assert "that a may not send" in coordinator.logged("rejected")[0]["reason"]

    asyncio.run(scenario())
