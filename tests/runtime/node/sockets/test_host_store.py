"""The host of a process: its store, its coordinator and its peers."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.fake_coordinator import Link, application_of, coordinating
from tests.runtime.link_ends import run, until
from tests.runtime.node.sockets.host_views import (
    trio,
    without,
)
from tests.runtime.scripted import acting, pair, scripted

from strobe.errors import StoreError, TransportError
from strobe.protocol import ChannelSpec
from strobe.protocol.coordinator.messages import (
    CannotRestore,
    Drained,
    InstallView,
    ReportOutcome,
    RequestRecording,
    Reset,
)
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.log_entries import EntryRef
from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.connectors.sink_staging import Staging
from strobe.runtime.links.codec import Hello
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.messages.control import Failed, FragmentStored, Heartbeat, Refused, Stop
from strobe.runtime.node.link_gate import LinkGate
from strobe.storage import Store
from strobe.storage.entries.log_file import encode_entry, entry_name


@contextmanager
def outage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the store unreachable for all nodes."""

    def unreachable(url: str, **_: object) -> Store:
        raise StoreError(url, "is unreachable (503, after 5 tries)")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "open", unreachable)
        yield


async def waiting(link: Link) -> str:
    """Wait until the node reports that it is waiting, and return what for."""
    while not (heartbeat := await link.handle(Heartbeat)).waiting:
        pass
    assert heartbeat.epoch == 0  # without a timeline it has no position
    return str(heartbeat.waiting)


def test_R1_a_node_waits_for_an_unreachable_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a rollback every node reads the store. An outage only delays the rollback."""

    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system, heartbeat_s=0.01) as coordinator:
            await coordinator.started("a", "b")
            taken = await coordinator.photograph("a")
            a, b = coordinator.links["a"], coordinator.links["b"]
            with outage(monkeypatch):
                coordinator.restore(a, 2, taken)
                coordinator.restore(b, 2, taken)
                assert "is unreachable (503" in await waiting(a)
                assert "is unreachable (503" in await waiting(b)
            for link in (a, b):
                await link.handle(Drained)
                assert (await link.handle(Heartbeat)).waiting == ""
                assert not link.said(Failed)

    run(scenario())


@pytest.mark.parametrize("missing", ["the commit", "its blobs too", "its blobs and a later entry"])
def test_S1_a_node_waits_while_an_older_copy_of_the_store_is_in_its_place(tmp_path: Path, missing: str) -> None:
    """The copy lacks the snapshot to restore. Before, each node ended, and `strobe up` halted the system."""

    async def scenario() -> None:
        async with coordinating(tmp_path, pair(), heartbeat_s=0.01) as coordinator:
            await coordinator.started("a", "b")
            taken = await coordinator.photograph("a")
            commit = newest = coordinator.store.entry_ref(coordinator.store.state().committed[taken].position)
            if missing == "its blobs and a later entry":
                coordinator.log_begin("a", "b")
                newest = coordinator.store.entry_ref(coordinator.store.state().next_position - 1)
                assert newest.position > commit.position
            lost = [Path(coordinator.store.url, entry_name(newest.position))]
            if missing != "the commit":
                lost.append(Path(coordinator.store.url, "blobs"))
            for path in lost:
                path.rename(tmp_path / path.name)
            a, b = coordinator.links["a"], coordinator.links["b"]
            coordinator.restore(a, 2, taken, commit=commit, newest=newest)
            coordinator.restore(b, 2, taken, commit=commit, newest=newest)
            for link in (a, b):
                assert f"{entry_name(newest.position)} was there before" in await waiting(link)
            for path in lost:
                (tmp_path / path.name).rename(path)
            for link in (a, b):
                await link.handle(Drained)
                assert not link.said(Failed)

    run(scenario())


def test_S1_a_node_registers_again_with_the_entry_that_its_order_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            await coordinator.started("a", "b")
            first, newest = coordinator.links["a"], EntryRef(7, "7" * 64)
            first.send(coordinator.order("a", 2, None, newest=newest))
            await first.handle(Drained)
            first.writer.close()
            assert (await coordinator.registered("a", after=first)).register.newest == newest

    run(scenario())


def test_another_order_ends_the_wait_for_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair(), heartbeat_s=0.01) as coordinator:
            a, _ = await coordinator.started("a", "b")
            taken = await coordinator.photograph("a")
            link = coordinator.links["a"]
            with outage(monkeypatch):
                coordinator.restore(link, 2, taken)
                await waiting(link)
                coordinator.restore(link, 3)  # to the beginning, which needs no read
                await link.handle(Drained)
                assert a.timeline is not None
                assert a.timeline.epoch == 3
                coordinator.restore(link, 4, taken)
                await waiting(link)
                link.send(Stop("enough"))
                assert await coordinator.ended("a") == 0

    run(scenario())


@pytest.mark.parametrize("restored", [False, True])
def test_R2_a_node_waits_for_output_that_another_process_holds(tmp_path: Path, restored: bool) -> None:
    """The previous instance may be paused or run elsewhere. That is temporary: the snapshot is still restorable."""

    async def scenario() -> None:
        system = pair(sinks={"out": FileSink(tmp_path / "out.jsonl", process="a")})
        async with coordinating(tmp_path, system, heartbeat_s=0.01) as coordinator:
            taken = None
            if restored:
                await coordinator.started("a", "b")
                taken = await coordinator.photograph("a")
                await coordinator.end("a")
            holder = Staging(tmp_path / "out.jsonl")
            coordinator.run("a", application_of(system, "a"))
            link = await coordinator.registered("a", after=coordinator.links.get("a"))
            coordinator.restore(link, 2, taken)
            assert f"is in use by pid {os.getpid()} on host" in await waiting(link)
            holder.close()
            await link.handle(Drained)
            assert not link.said(CannotRestore)
            assert not link.said(Failed)

    run(scenario())


def test_a_node_reads_only_the_log_entry_of_the_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            await coordinator.started("a", "b")
            taken = await coordinator.photograph("a")
            commit = coordinator.store.entry_ref(coordinator.store.state().committed[taken].position)
            for file in Path(coordinator.store.url, "log").iterdir():
                if file.name != f"{commit.position:020d}.json":
                    file.unlink()  # a read of the log from its beginning would find nothing
            await coordinator.begin("ab", taken, epoch=2, commit=commit)

    run(scenario())


def test_E9_a_node_restores_only_the_entry_the_coordinator_read(tmp_path: Path) -> None:
    """The node reads only this entry, and detects a replaced one by the checksum that the coordinator sends (S2)."""

    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            await coordinator.started("a", "b")
            taken = await coordinator.photograph("a")
            position = coordinator.store.state().committed[taken].position
            commit = coordinator.store.entry_ref(position)
            entry = msgspec.structs.replace(coordinator.store.read_commit(commit), at_us=99)
            raw, _ = encode_entry(entry, position, "0" * 64)
            Path(coordinator.store.url, entry_name(position)).write_bytes(raw)
            coordinator.restore(coordinator.links["a"], 2, taken, commit=commit)
            failed = await coordinator.links["a"].handle(Failed)
            assert await coordinator.ended("a") == 1
            assert f"{entry_name(position)}: differs from the entry that the coordinator read" in failed.reason

    run(scenario())


def test_a_final_refusal_ends_a_node_and_a_temporary_one_is_retried(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            host = coordinator.run("a")
            first = await coordinator.registered("a")
            first.send(Refused("not yet", False))
            first.writer.close()
            second = await coordinator.registered("a", after=first)
            second.send(Refused("never", True))
            assert await coordinator.ended("a") == 1
            assert host.problem == "the coordinator refuses process a: never"

    run(scenario())


def test_E7_a_node_ignores_the_coordinator_of_another_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """E7: even if that coordinator accepts it."""

    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            host = coordinator.run("a")
            await coordinator.begin(["a"])
            timeline, header = host.timeline, coordinator.store.header
            assert coordinator.links["a"].register.system == ""
            coordinator.store.header = msgspec.structs.replace(header, store="another")
            link = coordinator.links["a"]
            link.writer.close()
            for _ in range(3):
                link = await coordinator.registered("a", after=link)
                link.send(Reset("a"))
                assert (link.register.system, link.register.epoch) == (header.store, 1)
            coordinator.store.header = header
            reconnected = await coordinator.registered("a", after=link)
            coordinator.restore(reconnected, 1)
            await reconnected.handle(Drained)
            assert host.timeline is timeline

    run(scenario())
    assert caplog.text.count("another system") == 1


def test_a_port_in_use_is_named_in_the_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            async with coordinating(tmp_path, pair()) as coordinator:
                coordinator.run("a", listen=("127.0.0.1", port))
                with pytest.raises(TransportError, match=f"process a cannot listen at 127.0.0.1:{port}.*--listen"):
                    await coordinator.ended("a")

    run(scenario())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "127.0.0.1"),
        ({"listen": ("0.0.0.0", 0)}, socket.gethostname()),
        ({"listen": ("0.0.0.0", 0), "advertise": "branch-a.example"}, "branch-a.example"),
    ],
)
def test_peers_get_the_advertised_address(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            coordinator.run("a", **options)
            link = await coordinator.registered("a")
            assert link.register.address[0] == expected
            assert link.register.address[1] > 0

    run(scenario())


def test_the_store_can_be_a_url_and_another_path_on_another_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            (tmp_path / "elsewhere").symlink_to(coordinator.store.url)
            host = coordinator.run("a", store=(tmp_path / "elsewhere").as_uri())
            await coordinator.begin(["a"])
            assert host.make_run_directory("spill") == tmp_path / "elsewhere" / "run" / "spill"

    run(scenario())


def test_a_node_keeps_its_state_when_it_reconnects(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            a, _ = await coordinator.started("a", "b")
            first = coordinator.links["a"]
            first.writer.close()
            second = await coordinator.registered("a", after=first)
            assert second.register.epoch == 1
            assert second.register.instance == first.register.instance
            acting(a).send("a->b", 1)
            await until(lambda: scripted(system, "b").messages == [1])
            # On a repeated order it reports again.
            second.send(InstallView("a", coordinator.view))
            assert (await second.handle(Drained)).view == 1

    run(scenario())


def test_E7_a_stored_fragment_is_reported_again_on_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            await coordinator.started("a", "b")
            begun = coordinator.log_begin("a")
            request = RequestRecording("a", begun.snapshot, 1)
            coordinator.links["b"].send(begun)
            coordinator.links["a"].send(begun, request)
            first = await coordinator.stored("a", begun.snapshot)
            coordinator.links["a"].send(request)
            assert await coordinator.stored("a", begun.snapshot) == first
            coordinator.links["a"].send(
                ReportOutcome("a", begun.snapshot, False), request, InstallView("a", coordinator.view)
            )
            await coordinator.links["a"].handle(Drained)
            assert len(coordinator.links["a"].said(FragmentStored)) == 2

    run(scenario())


def test_a_peer_may_reconnect_for_a_lost_last_acknowledgement(tmp_path: Path) -> None:
    """E2: an ended channel stays known until the end of the epoch."""

    async def scenario() -> None:
        system = trio()
        async with coordinating(tmp_path, system) as coordinator:
            hosts = await coordinator.started("a", "b", "c")
            view = without(coordinator.view, 2, "c")
            for name in ("c", "a", "b"):
                coordinator.links[name].send(InstallView(name, view))
            while (await coordinator.links["a"].handle(Drained)).view != 2:
                pass
            spec = ChannelSpec("c->a", "c", "a")
            assert spec in first_view(system).channels
            hello = Hello(system=hosts[0].system, epoch=1, source="c", channel=spec.id, incarnation=spec.incarnation)
            assert isinstance(LinkGate(hosts[0]).admit(hello), IncomingLink)

    run(scenario())
