"""The coordinator that started last leads the store. The former one ends, and nodes do not return to it (S1)."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.coordinator.sockets.test_coordinator_faults import mutant
from tests.runtime.fake_coordinator import coordinating
from tests.runtime.fake_nodes import PATIENCE_S, both_alive, committed, running
from tests.runtime.link_ends import run
from tests.runtime.scripted import pair

from strobe.errors import StrobeError, TakenOver, TransportError
from strobe.protocol.coordinator.messages import Drained, Reset, SnapshotWanted
from strobe.protocol.values.log_entries import Begin, Commit, EpochStart, Remove, Term
from strobe.runtime.api import discovery
from strobe.runtime.api.discovery import Discovered
from strobe.runtime.coordinator import health_monitor
from strobe.runtime.coordinator.log_writer import CoordinatorLog
from strobe.runtime.messages.control import SnapshotBegun, Stop, Welcome
from strobe.runtime.node.node_registration import NodeRegistration
from strobe.runtime.settings import RetentionSettings
from strobe.storage import Store
from strobe.storage.store.optimistic_append import begin_term


def kinds(store: Path) -> list[type]:
    return [type(entry) for _, entry in Store.open(store).read_log()]


def taken_over() -> Any:
    return pytest.raises(TakenOver, match=r"\(beta pid 2, term 2\); this one, of term 1,")


def test_S1_a_coordinator_begins_a_term_and_sends_it_to_its_nodes(tmp_path: Path) -> None:
    async def scenario() -> None:
        for term in (1, 2):
            async with running(tmp_path / "store") as coordinator:
                a = await coordinator.node("a")
                assert (await a.handle(Welcome)).term == term
                assert coordinator.service.status().term == term
                assert coordinator.logged("started")[0]["term"] == term
                assert discovery.discover(str(tmp_path / "store")).term == term
        assert kinds(tmp_path / "store")[:3] == [Term, EpochStart, Term]

    asyncio.run(scenario())


def test_S1_a_coordinator_that_reads_a_higher_term_ends(tmp_path: Path) -> None:
    """S1: also during a snapshot; its nodes are not ordered to stop."""

    async def scenario() -> None:
        with taken_over():
            async with running(tmp_path / "store") as coordinator:
                a, b = await both_alive(coordinator)
                await committed(coordinator, a, b)
                coordinator.coordinator.handle(SnapshotWanted())
                waiting = coordinator.coordinator.requests.take((), 0).ended
                begin_term(Store.open(tmp_path / "store"), "beta pid 2", 7)
                async with asyncio.timeout(PATIENCE_S):
                    await a.ended.wait()
                    with pytest.raises(StrobeError, match="another coordinator has taken over"):
                        await waiting
                assert not [one for one in (*a.received, *b.received) if isinstance(one, Stop)]
                assert coordinator.logged("taken over")[0]["coordinator"] == "beta pid 2"
        assert kinds(tmp_path / "store")[-1] is Term
        assert kinds(tmp_path / "store").count(Commit) == 1

    asyncio.run(scenario())


def test_S1_a_ready_commit_is_not_written_after_a_takeover(tmp_path: Path) -> None:
    async def scenario() -> None:
        with taken_over():
            async with running(tmp_path / "store") as coordinator:
                a, b = await both_alive(coordinator)
                coordinator.coordinator.handle(SnapshotWanted())
                a.store_part(await a.handle(SnapshotBegun))
                begun = await b.handle(SnapshotBegun)
                begin_term(Store.open(tmp_path / "store"), "beta pid 2", 7)
                b.store_part(begun)
                async with asyncio.timeout(PATIENCE_S):
                    await b.ended.wait()
        assert kinds(tmp_path / "store") == [Term, EpochStart, Begin, Term]

    asyncio.run(scenario())


def test_S1_retention_of_a_replaced_coordinator_removes_nothing(tmp_path: Path) -> None:
    """S1, E8: it reads the log before it logs a removal, and before it deletes blobs."""

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            for data in (b"one", b"two", b"three"):
                await committed(coordinator, a, b, data=data)

    asyncio.run(scenario())
    log_writer = CoordinatorLog(str(tmp_path / "store"), lambda: 0, lambda problem: None)
    log_writer.open()
    log_writer.lead("alpha")
    blobs = sorted((tmp_path / "store" / "blobs").rglob("*"))
    begin_term(Store.open(tmp_path / "store"), "gamma", 7)
    with pytest.raises(TakenOver):
        log_writer.retain(RetentionSettings(keep_last=1))
    assert Remove not in kinds(tmp_path / "store")
    assert sorted((tmp_path / "store" / "blobs").rglob("*")) == blobs


def test_a_coordinator_whose_port_is_taken_does_not_take_over(tmp_path: Path) -> None:
    """An unreachable coordinator must not end a running one."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            place = f"127.0.0.1:{taken.getsockname()[1]}"
            for address in ({"listen": place}, {"api": place, "http": True}):
                with pytest.raises(TransportError, match="cannot listen"):
                    async with running(tmp_path / "store", **address):  # type: ignore[arg-type]
                        pass
        assert kinds(tmp_path / "store") == []

    asyncio.run(scenario())


def test_an_overwritten_address_file_is_corrected(tmp_path: Path) -> None:
    """A suspended coordinator may write its own address when it resumes, before it reads that it no longer leads."""

    async def scenario() -> None:
        store = str(tmp_path / "store")
        async with running(tmp_path / "store") as coordinator:
            own = discovery.discover(store)
            discovery.announce(store, Discovered("127.0.0.1:1", "127.0.0.1:2", os.getpid(), 0, own.system, 0))
            await coordinator.until(lambda: discovery.is_announced(store, own))

    asyncio.run(scenario())


def test_S1_a_replaced_coordinator_leaves_the_new_address_file_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = str(tmp_path / "store")
        with taken_over():
            async with running(tmp_path / "store") as coordinator:
                begin_term(Store.open(store), "beta pid 2", 7)
                other = Discovered("127.0.0.1:1", "127.0.0.1:2", os.getpid(), 0, "", 2)
                discovery.announce(store, other)
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.wait([coordinator.coordinator.ended])
        assert discovery.discover(store) == other

    asyncio.run(scenario())


def test_S1_a_node_with_a_higher_term_makes_the_coordinator_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_monitor, "POLL_S", 3600.0)  # it does not poll by itself

    async def scenario() -> None:
        with taken_over():
            async with running(tmp_path / "store") as coordinator:
                begin_term(Store.open(tmp_path / "store"), "beta pid 2", 7)
                a = await coordinator.node("a", term=2)
                refused = await a.refused()
                assert "term 2 leads the system" in refused.reason
                assert not refused.final
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.wait([coordinator.coordinator.ended])

    asyncio.run(scenario())


async def meet_lower_term(directory: Path) -> None:
    """A node admitted by a coordinator of term 3 finds one of term 2 at the address, and then one of term 4."""
    async with coordinating(directory, pair()) as coordinator:
        coordinator.term = 3
        host = coordinator.run("a")
        await coordinator.begin(["a"])
        timeline, link = host.timeline, coordinator.links["a"]
        coordinator.term = 2
        link.writer.close()
        for _ in range(3):
            link = await coordinator.registered("a", after=link)
            link.send(Reset("a"))
            assert (link.register.term, link.register.epoch) == (3, 1)
        coordinator.term = 4
        back = await coordinator.registered("a", after=link)
        coordinator.restore(back, 1)
        await back.handle(Drained)
        assert host.timeline is timeline


def test_S1_a_node_refuses_orders_of_a_coordinator_of_a_lower_term(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S1: it continues with its state, and looks for the leading coordinator."""
    run(meet_lower_term(tmp_path))
    assert caplog.text.count("one of term 3 has taken over from it") == 1


def test_the_check_detects_a_node_that_follows_a_lower_term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        NodeRegistration, "accept", mutant(NodeRegistration.accept, "welcome.term < self._term", "False")
    )
    with pytest.raises(AssertionError):
        run(meet_lower_term(tmp_path))
