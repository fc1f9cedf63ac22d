"""A real host under a coordinator made by hand: epochs that begin and end, joining and leaving, and how it ends."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.fake_coordinator import Link, application_of, coordinating
from tests.runtime.link_ends import run, until
from tests.runtime.scripted import Memory, Scripted, pair, scripted

from strobe.errors import StoreError, TransportError
from strobe.outside import Source
from strobe.process import Channel, System
from strobe.protocol import ChannelSpec, View
from strobe.protocol.coordinator.messages import (
    AskToRecord,
    CannotRestore,
    Dismiss,
    Drained,
    Reset,
    TellOutcome,
    TellSettled,
    TellView,
)
from strobe.protocol.process.first_view import first_view
from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.connectors.file_source import FileSource
from strobe.runtime.connectors.sink_staging import Staging
from strobe.runtime.links.codec import Hello
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.messages.control import Failed, FragmentStored, Heartbeat, Refused, Stop
from strobe.runtime.node import external_io
from strobe.runtime.node.link_gate import LinkGate
from strobe.storage import Store
from strobe.storage.entries.log_file import encode_entry, entry_name


def test_R1_what_was_in_flight_at_the_cut_is_received_first_and_once_after_a_rollback(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            a, b = await coordinator.started("a", "b")
            send = a.application.context.send  # type: ignore[attr-defined]
            send("a->b", 1)
            await until(lambda: scripted(system, "b").messages == [1])
            taken = await coordinator.photograph("a")
            send("a->b", 2)
            await until(lambda: scripted(system, "b").messages == [1, 2])
            await coordinator.begin(("a", "b"), taken, epoch=2)
            assert scripted(system, "b").messages == [1]
            assert (a.epoch, b.epoch) == (2, 2)
            a.application.context.send("a->b", 3)  # type: ignore[attr-defined]
            await until(lambda: scripted(system, "b").messages == [1, 3])

    run(scenario())


def test_R1_who_starts_from_the_beginning_again_has_the_state_of_the_beginning(tmp_path: Path) -> None:
    """Where nothing was committed yet, a crash of one takes everybody back to the start: also those who live on."""

    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            a, _ = await coordinator.started("a", "b")
            a.application.context.send("a->b", 1)  # type: ignore[attr-defined]
            await until(lambda: scripted(system, "b").messages == [1])
            await coordinator.begin(("a", "b"), epoch=2)
            assert scripted(system, "b").memory == Memory(started=1)
            assert scripted(system, "a").memory == Memory(started=1)
            a.application.context.send("a->b", 2)  # type: ignore[attr-defined]
            await until(lambda: scripted(system, "b").messages == [2])

    run(scenario())


class SlowSource(Source):
    """Its `open` waits for a test's word."""

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


def test_an_epoch_that_is_overtaken_while_it_is_being_restored_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        source = SlowSource()
        async with coordinating(tmp_path, pair(sources={"slow": source})) as coordinator:
            a = coordinator.run("a")
            link = await coordinator.registered("a")
            coordinator.restore(link, 1)
            await until(source.opening.is_set)
            outgoing_links = [task for task in asyncio.all_tasks() if task.get_name() == "link a->b"]
            coordinator.restore(link, 2)
            coordinator.restore(link, 1)  # comes late, and is over
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
def test_it_can_be_stopped_while_it_restores(tmp_path: Path, code: int) -> None:
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
    """Duty 9: in their order; those of the epoch before are not among them."""

    async def scenario() -> None:
        source = SlowSource()
        system = pair(sources={"slow": source})
        async with coordinating(tmp_path, system) as coordinator:
            coordinator.run("a")
            link = await coordinator.registered("a")
            coordinator.restore(link, 1)
            link.send(TellView("a", View(7, ("a", "b"), coordinator.view.channels)))
            coordinator.restore(link, 2)
            link.send(TellView("a", View(3, ("a", "b"), coordinator.view.channels)))
            source.may_open.set()
            assert (await link.handle(Drained)).view == 1
            assert (await link.handle(Drained)).view == 3

    run(scenario())


def test_R2_a_commit_and_a_rollback_that_are_heard_together_release_what_was_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair(sinks={"out": FileSink(tmp_path / "out.jsonl", process="a")})
        async with coordinating(tmp_path, system) as coordinator:
            a, _ = await coordinator.started("a", "b")
            a.application.context.emit("said")  # type: ignore[attr-defined]
            begun = coordinator.ask("a")
            taken = await coordinator.commit(begun, tell=False)
            a.application.context.emit("said later")  # type: ignore[attr-defined]
            link = coordinator.links["a"]
            link.send(TellOutcome("a", begun.snapshot, True), coordinator.order("a", 2, taken))
            await link.handle(Drained)
            assert (tmp_path / "out.jsonl").read_bytes() == b'"said"\n'
            assert a.problem is None

    run(scenario())


def test_a_heartbeat_claims_no_position_while_there_is_no_timeline(tmp_path: Path) -> None:
    """Else the jump to the restored position would look like a million events a second."""

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


# Joining and leaving


def trio(**outside: Any) -> System:
    names = ("a", "b", "c")
    channels = [Channel(p, q) for p in names for q in names if p != q]
    return System({name: Scripted() for name in names}, channels, **outside)


def without(view: View, number: int, process: str) -> View:
    channels = tuple(spec for spec in view.channels if process not in (spec.source, spec.target))
    return View(number, tuple(name for name in view.processes if name != process), channels)


def joined(view: View, number: int, process: str) -> View:
    """`view`, in which `process` has joined with new channels."""
    channels = tuple(
        msgspec.structs.replace(spec, incarnation=number) if process in (spec.source, spec.target) else spec
        for spec in view.channels
    )
    return View(number, view.processes, channels)


def test_E2_a_process_that_leaves_hands_over_what_it_holds_and_everything_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_io, "IDLE_S", 0)

    async def scenario() -> None:
        source = FileSource(tmp_path / "in.jsonl", process="c")
        system = trio(sources={"in": source})
        scripted(system, "c").on_leave = lambda ctx: ctx.send("c->a", "all I have")
        async with coordinating(tmp_path, system) as coordinator:
            hosts = await coordinator.started("a", "b", "c")
            view = without(coordinator.view, 2, "c")
            hosts[0].application.context.send("a->c", "for you")  # type: ignore[attr-defined]
            for name in ("c", "a", "b"):
                coordinator.links[name].send(TellView(name, view))
            for name in ("a", "b", "c"):
                while (await coordinator.links[name].handle(Drained)).view != 2:
                    pass
            assert scripted(system, "c").messages == ["for you"]
            assert scripted(system, "a").messages == ["all I have"]
            assert hosts[0].application.context.outputs == ("a->b",)  # type: ignore[attr-defined]
            # Nothing more is read from outside for a process whose last event is over.
            (tmp_path / "in.jsonl").write_text("1\n2\n")
            for _ in range(20):
                await asyncio.sleep(0)
            coordinator.links["c"].send(Dismiss("c"))
            assert await coordinator.ended("c") == 0
            assert scripted(system, "c").messages == ["for you"]
            assert not hosts[0].problem

    run(scenario())


def test_E2_a_process_that_joins_begins_with_its_first_view_and_its_sources_and_sinks(tmp_path: Path) -> None:
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
            link.send(TellSettled("c", 1), TellView("c", coordinator.view))
            for name in ("a", "b"):
                coordinator.links[name].send(TellView(name, coordinator.view))
            for name in ("a", "b", "c"):
                while (await coordinator.links[name].handle(Drained)).view != 2:
                    pass
            await until(lambda: scripted(system, "c").messages == [1, 2])
            taken = await coordinator.photograph("a")
            await until(lambda: (tmp_path / "out.jsonl").read_bytes() == b"1\n2\n")
            assert coordinator.record_of(taken, "c").sinks == {"out": 4}

    run(scenario())


def test_R1_one_that_joined_later_forgets_everything_and_joins_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "in.jsonl").write_text("1\n")
        system = trio(sources={"in": FileSource(tmp_path / "in.jsonl", process="c")})
        async with coordinating(tmp_path, system) as coordinator:
            host = coordinator.run("c")
            first = await coordinator.registered("c")
            first.send(TellSettled("c", 1), TellView("c", coordinator.view))
            await until(lambda: scripted(system, "c").messages == [1])
            coordinator.epoch = 2
            first.send(Reset("c"), TellView("c", View(9, ("c",), ())))
            second = await coordinator.registered("c", after=first)
            assert second.register.epoch == 0
            assert second.register.instance != first.register.instance
            assert host.timeline is None
            view = joined(coordinator.view, 5, "c")
            second.send(TellSettled("c", 1), TellView("c", view))
            assert (await second.handle(Drained)).view == 5
            await until(lambda: scripted(system, "c").messages == [1])
            assert scripted(system, "c").memory == Memory(received=[("in", 1)], started=1)
            assert host.epoch == 2

    run(scenario())


# What it waits for


@contextmanager
def outage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No node can reach the store."""

    def unreachable(url: str, **_: object) -> Store:
        raise StoreError(url, "is unreachable (503, after 5 tries)")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "open", unreachable)
        yield


async def waiting(link: Link) -> str:
    """Return what it says that it waits for."""
    while not (heartbeat := await link.handle(Heartbeat)).waiting:
        pass
    assert heartbeat.epoch == 0  # it has no position meanwhile
    return str(heartbeat.waiting)


def test_R1_a_store_that_cannot_be_reached_is_waited_for_and_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback in which everybody must read the store: one that is away for a while costs that while."""

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


def test_another_order_ends_the_waiting_for_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair(), heartbeat_s=0.01) as coordinator:
            a, _ = await coordinator.started("a", "b")
            taken = await coordinator.photograph("a")
            link = coordinator.links["a"]
            with outage(monkeypatch):
                coordinator.restore(link, 2, taken)
                await waiting(link)
                coordinator.restore(link, 3)  # to the beginning: nothing is read for that
                await link.handle(Drained)
                assert a.timeline is not None
                assert a.timeline.epoch == 3
                coordinator.restore(link, 4, taken)
                await waiting(link)
                link.send(Stop("enough"))
                assert await coordinator.ended("a") == 0

    run(scenario())


@pytest.mark.parametrize("restored", [False, True])
def test_R2_output_that_another_process_still_holds_is_waited_for(tmp_path: Path, restored: bool) -> None:
    """The one before it may still live on another host, or be stopped: that passes, and is no snapshot that misfits."""

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


def test_a_node_that_is_told_where_the_commit_is_reads_that_one_entry_however_long_the_log_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            await coordinator.started("a", "b")
            taken = await coordinator.photograph("a")
            commit = coordinator.store.entry_ref(coordinator.store.state().committed[taken].position)
            for file in Path(coordinator.store.url, "log").iterdir():
                if file.name != f"{commit.position:020d}.json":
                    file.unlink()  # who reads the log from its beginning finds none
            await coordinator.begin("ab", taken, epoch=2, commit=commit)

    run(scenario())


def test_E9_a_node_restores_no_other_entry_than_the_one_that_the_coordinator_has_read(tmp_path: Path) -> None:
    """The chain is not read, but the checksum of its end is told: a replaced entry is found all the same (S2)."""

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
            assert f"{entry_name(position)}: is another entry than the coordinator has read" in failed.reason

    run(scenario())


def test_who_is_refused_for_good_ends_and_who_is_refused_for_now_comes_again(tmp_path: Path) -> None:
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


def test_E7_a_coordinator_of_another_store_is_not_obeyed_and_the_own_one_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """E7: also where that one lets it in."""

    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            host = coordinator.run("a")
            await coordinator.begin(["a"])
            life, own = host.timeline, coordinator.store.header
            assert coordinator.links["a"].register.system == ""
            coordinator.store.header = msgspec.structs.replace(own, store="another")
            link = coordinator.links["a"]
            link.writer.close()
            for _ in range(3):
                link = await coordinator.registered("a", after=link)
                link.send(Reset("a"))
                assert (link.register.system, link.register.epoch) == (own.store, 1)
            coordinator.store.header = own
            back = await coordinator.registered("a", after=link)
            coordinator.restore(back, 1)
            await back.handle(Drained)
            assert host.timeline is life

    run(scenario())
    assert caplog.text.count("another system") == 1


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            async with coordinating(tmp_path, pair()) as coordinator:
                coordinator.run("a", listen=("127.0.0.1", port))
                with pytest.raises(TransportError, match=f"process a cannot listen at 127.0.0.1:{port}.*--listen"):
                    await coordinator.ended("a")

    run(scenario())


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, "127.0.0.1"),
        ({"listen": ("0.0.0.0", 0)}, socket.gethostname()),
        ({"listen": ("0.0.0.0", 0), "advertise": "branch-a.example"}, "branch-a.example"),
    ],
)
def test_peers_are_told_where_they_can_reach_it(tmp_path: Path, how: dict[str, Any], expected: str) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            coordinator.run("a", **how)
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


def test_it_returns_with_its_state_when_the_connection_was_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            a, _ = await coordinator.started("a", "b")
            first = coordinator.links["a"]
            first.writer.close()
            second = await coordinator.registered("a", after=first)
            assert second.register.epoch == 1
            assert second.register.instance == first.register.instance
            a.application.context.send("a->b", 1)  # type: ignore[attr-defined]
            await until(lambda: scripted(system, "b").messages == [1])
            # Asked once more for what it has stored, it says so again (duty 5).
            second.send(TellView("a", coordinator.view))
            assert (await second.handle(Drained)).view == 1

    run(scenario())


def test_E7_a_part_is_handed_over_again_when_it_is_asked_for_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            await coordinator.started("a", "b")
            begun = coordinator.log_begin("a")
            ask = AskToRecord("a", begun.snapshot, 1)
            coordinator.links["b"].send(begun)
            coordinator.links["a"].send(begun, ask)
            first = await coordinator.stored("a", begun.snapshot)
            coordinator.links["a"].send(ask)
            assert await coordinator.stored("a", begun.snapshot) == first
            coordinator.links["a"].send(TellOutcome("a", begun.snapshot, False), ask, TellView("a", coordinator.view))
            await coordinator.links["a"].handle(Drained)
            assert len(coordinator.links["a"].said(FragmentStored)) == 2

    run(scenario())


def test_a_peer_that_lost_the_last_word_is_let_in_again_to_hear_that_all_has_come(tmp_path: Path) -> None:
    """E2: a channel that has ended here is known for as long as the epoch lasts."""

    async def scenario() -> None:
        system = trio()
        async with coordinating(tmp_path, system) as coordinator:
            hosts = await coordinator.started("a", "b", "c")
            view = without(coordinator.view, 2, "c")
            for name in ("c", "a", "b"):
                coordinator.links[name].send(TellView(name, view))
            while (await coordinator.links["a"].handle(Drained)).view != 2:
                pass
            spec = ChannelSpec("c->a", "c", "a")
            assert spec in first_view(system).channels
            hello = Hello(system=hosts[0].system, epoch=1, source="c", channel=spec.id, incarnation=spec.incarnation)
            assert isinstance(LinkGate(hosts[0]).admit(hello), IncomingLink)

    run(scenario())
