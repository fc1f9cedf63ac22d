"""Which stores a coordinator accepts: those of its own system that no running coordinator uses."""

import asyncio
from pathlib import Path

import pytest
from tests.runtime.fake_nodes import FakeNode, Running, both_alive, committed, running, system_of

from strobe import Channel, System
from strobe.errors import UsageError
from strobe.protocol import ChannelSpec
from strobe.protocol.coordinator.messages import Drained, InstallView, LeaveWanted
from strobe.protocol.values.log_entries import Begin
from strobe.storage import Store


def test_a_second_coordinator_is_refused_while_the_first_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", http=True):
            with pytest.raises(UsageError, match="stop it first"):
                async with running(tmp_path / "store"):
                    pass

    asyncio.run(scenario())


def test_the_store_of_another_system_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        with pytest.raises(UsageError, match="belongs to another system, of the processes a, b"):
            async with running(tmp_path / "store", system_of("x", "y")):
                pass
        simulated = Store.create(tmp_path / "simulated")
        simulated.append(Begin("000001-00000001-a", 1, "chandy-lamport", ("a",), 0), 0)
        with pytest.raises(UsageError, match="not written by a live system"):
            async with running(tmp_path / "simulated"):
                pass

    asyncio.run(scenario())


def test_E9_a_system_with_a_channel_unknown_to_its_store_is_refused(tmp_path: Path) -> None:
    """E9: otherwise it would go unnoticed that the channel carries no messages."""
    more = system_of("a", "b")
    more.channels = (*more.channels, Channel("a", "b", id="second"))

    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        with pytest.raises(UsageError, match="the system has the channel 'second', which the store"):
            async with running(tmp_path / "store", more):
                pass

    asyncio.run(scenario())


def test_E9_a_store_with_a_channel_unknown_to_the_system_is_refused(tmp_path: Path) -> None:
    """E9: otherwise it would go unnoticed that messages still flow on a channel that the system does not have."""
    fewer = system_of("a", "b")
    dropped = fewer.channels[-1]
    fewer.channels = fewer.channels[:-1]

    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        with pytest.raises(UsageError, match=f"has the channel {dropped.id!r}, which the system does not have"):
            async with running(tmp_path / "store", fewer):
                pass

    asyncio.run(scenario())


async def install_next_view(*nodes: FakeNode) -> None:
    for node in nodes:
        node.send(Drained(node.process, (await node.handle(InstallView)).view.number))


@pytest.mark.parametrize("now", [("a",), ("a", "x")], ids=["taken away", "renamed"])
def test_E9_a_store_with_a_process_unknown_to_the_system_is_refused(tmp_path: Path, now: tuple[str, ...]) -> None:
    """E9: nobody would start it, and the others would be restored without it and never complete a snapshot."""
    changed = system_of(*now) if len(now) > 1 else System(system_of("a", "b").processes, [])
    changed.processes = {name: process for name, process in changed.processes.items() if name in now}

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            await committed(coordinator, *await both_alive(coordinator))
        entries = len(list(Store.open(tmp_path / "store").read_log()))
        refusal = "has the process 'b', which the system does not have; give the system as it was.*strobe leave b"
        with pytest.raises(UsageError, match=refusal):
            async with running(tmp_path / "store", changed):
                pass
        assert len(list(Store.open(tmp_path / "store").read_log())) == entries

    asyncio.run(scenario())


def test_E2_E9_a_departed_process_may_be_removed_from_the_system(tmp_path: Path) -> None:
    """E2, E9: that is how a process is removed from a system."""

    async def scenario() -> None:
        async with running(tmp_path / "store", system_of("a", "b", "c")) as coordinator:
            a, b = await both_alive_of_three(coordinator)
            await committed(coordinator, a, b)
        without = system_of("a", "b", "c")
        without.processes = {name: without.processes[name] for name in ("a", "b")}
        without.channels = tuple(one for one in without.channels if "c" not in (one.source, one.target))
        async with running(tmp_path / "store", without) as coordinator:
            assert coordinator.coordinator.lifecycle.view.processes == ("a", "b")

    async def both_alive_of_three(coordinator: Running) -> tuple[FakeNode, FakeNode]:
        a, b, c = [await coordinator.start_node(name) for name in ("a", "b", "c")]
        await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
        coordinator.coordinator.handle(LeaveWanted("c"))
        await install_next_view(a, b, c)
        await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
        return a, b

    asyncio.run(scenario())


def test_E2_E9_a_joined_process_outside_the_system_is_shown_as_missing(
    tmp_path: Path,
) -> None:
    """E2, E9: the coordinator's system does not describe it."""
    channels = (ChannelSpec("a->j", "a", "j"), ChannelSpec("j->a", "j", "a"))

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            j = await coordinator.node("j", channels=channels)
            await install_next_view(a, b, j)
            await committed(coordinator, a, b, j)
        async with running(tmp_path / "store") as coordinator:
            status = coordinator.service.status()
            missing = {one.problem.split()[1]: one.problem for one in status.troubles if one.kind == "missing"}
            assert set(missing) == {"a", "b", "j"}
            elsewhere = "the coordinator's system does not have it: start its node with the one that it joined by"
            assert [name for name, problem in missing.items() if elsewhere in problem] == ["j"]

    asyncio.run(scenario())


def test_P1_a_store_with_another_channel_hash_is_refused(tmp_path: Path) -> None:
    strong = system_of("a", "b")
    strong.hash = "blake3"

    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        refusal = "is hashed by xxh3 in the store .*, and cannot change to blake3; give it hash='xxh3', or give another"
        with pytest.raises(UsageError, match=refusal):
            async with running(tmp_path / "store", strong):
                pass
        async with running(tmp_path / "new", strong):
            pass
        async with running(tmp_path / "new", strong):
            pass

    asyncio.run(scenario())
