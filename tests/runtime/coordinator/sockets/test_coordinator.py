"""The live coordinator with fake nodes: registration, and which snapshots are committed or aborted."""

import asyncio
import os
import socket
from pathlib import Path

from tests.runtime.fake_nodes import both_alive, committed, record_of, running

from strobe.causality.proof import verify
from strobe.protocol import ChannelSpec
from strobe.protocol.coordinator.messages import (
    Dismiss,
    Drained,
    InstallView,
    LeaveWanted,
    RecordingFailed,
    ReportSettled,
    RequestRecording,
    RestoreState,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Abort, Begin, EpochStart, FrontierRecord, Term
from strobe.runtime.messages.control import (
    AddressBook,
    Failed,
    FragmentStored,
    HeartbeatHeard,
    ProcessRecorded,
    SnapshotBegun,
    Stop,
    Welcome,
)
from strobe.storage import Store


def entries(store: Path) -> list[object]:
    return [entry for _, entry in Store.open(store).read_log()]


def test_S1_an_empty_log_begins_with_a_term_an_epoch_and_a_view(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            term, first = entries(tmp_path / "store")[:2]
            assert isinstance(term, Term)
            assert (term.term, term.coordinator) == (1, f"{socket.gethostname()} pid {os.getpid()}")
            assert isinstance(first, EpochStart)
            assert (first.epoch, first.view) == (1, coordinator.coordinator.first_view)

    asyncio.run(scenario())


def test_a_node_gets_its_welcome_then_addresses_then_its_start_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a = await coordinator.node("a", address=("127.0.0.1", 4711))
            order = await a.start_as_ordered()
            assert [type(message) for message in a.received] == [Welcome, AddressBook, RestoreState]
            assert a.received[0].system == Store.open(tmp_path / "store").header.store
            assert (a.received[1].addresses, a.received[1].members) == ({}, ("b",))
            assert (order.epoch, order.restored) == (1, None)
            await coordinator.node("b")
            assert set((await a.handle(AddressBook)).addresses) == {"b"}

    asyncio.run(scenario())


def test_a_snapshot_is_begun_recorded_proved_and_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await a.handle(SnapshotBegun)
            asked = await a.handle(RequestRecording)
            assert asked.snapshot == begun.snapshot
            a.send(ProcessRecorded(begun.snapshot, "a", 5))
            a.store_part(begun, b"a's state")
            await coordinator.until(lambda: coordinator.service.status().open[0].waiting_for == ["b"])
            b.store_part(await b.handle(SnapshotBegun), b"b's state")
            for node in (a, b):
                assert (await node.outcome(begun.snapshot)).committed
            finished = coordinator.service.status().finished[-1]
            assert (finished.outcome, finished.state_bytes) == ("committed", 18)
            assert coordinator.logged("committed")[0]["bytes"] == 18
        store = Store.open(tmp_path / "store")
        snapshot = store.load("latest")
        assert verify(snapshot).holds
        assert snapshot.fragments["a"].state.data == b"a's state"
        assert store.verify_bytes() == []

    asyncio.run(scenario())


def test_S2_the_next_snapshot_names_the_last_one_as_its_parent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            nodes = await both_alive(coordinator)
            first = await committed(coordinator, *nodes)
            coordinator.coordinator.handle(SnapshotWanted())
            assert (await nodes[0].handle(SnapshotBegun)).parent == first

    asyncio.run(scenario())


def test_P1_an_inconsistent_cut_is_aborted_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            wrong = {"b->a": FrontierRecord(1, "00" * 16)}
            (_, report), _ = await asyncio.gather(a.take_part(received=wrong), b.take_part())
            assert not report.committed
            assert "b->a" in report.reason
            assert "the cut is inconsistent" in report.reason
        assert isinstance(entries(tmp_path / "store")[-1], Abort)

    asyncio.run(scenario())


def test_a_part_with_a_missing_blob_is_never_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await a.handle(SnapshotBegun)
            view = coordinator.coordinator.lifecycle.view
            record = record_of(Store.open(tmp_path / "store"), view, "a", begun.position, b"soon gone")
            (tmp_path / "store" / "blobs" / f"{begun.position:020d}" / record.state.blake3).unlink()
            a.send(FragmentStored(begun.snapshot, "a", view.number, record))
            _, report = await b.take_part()
            assert not report.committed
            assert "is missing" in report.reason

    asyncio.run(scenario())


def test_E6_a_crash_aborts_unstored_snapshots_and_retries_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await a.handle(SnapshotBegun)
            b.send(Failed("b", "its disk burnt"))
            await b.close()
            report = await a.outcome(begun.snapshot)
            assert (report.committed, report.reason) == (False, "process b failed")
            assert coordinator.logged("failed")[0]["reason"] == "its disk burnt"
            # It only lost its connection: it returns with its state, and the retry completes.
            again = await coordinator.node("b", epoch=1)
            again.send(Drained("b", (await again.handle(InstallView)).view.number))
            (retried, report), _ = await asyncio.gather(a.take_part(), again.take_part())
            assert report.committed
            assert retried.snapshot.counter == begun.snapshot.counter + 1
            begins = [entry for entry in entries(tmp_path / "store") if isinstance(entry, Begin)]
            assert begins[-1].retries == str(begun.snapshot)

    asyncio.run(scenario())


def test_E10_no_snapshot_begins_while_a_process_is_missing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            await b.close()
            await coordinator.until(lambda: coordinator.logged("failed"))
            coordinator.coordinator.handle(SnapshotWanted())
            assert coordinator.coordinator.lifecycle.beginnings.own is None
            b = await coordinator.node("b", epoch=1)
            b.send(Drained("b", (await b.handle(InstallView)).view.number))
            (_, report), _ = await asyncio.gather(a.take_part(), b.take_part())
            assert report.committed

    asyncio.run(scenario())


def test_each_heartbeat_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", silence_s=7.0) as coordinator:
            a = await coordinator.start_node("a")
            assert a.received[0].silence_s == 7.0
            for _ in range(3):
                a.beat()
                await a.handle(HeartbeatHeard)

    asyncio.run(scenario())


def test_a_node_that_is_silent_for_too_long_has_failed_and_may_return(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a = await coordinator.start_node("a")
            members = coordinator.coordinator.members
            usual_s, members.silence_s = members.silence_s, 0.05
            async with asyncio.timeout(20):
                await a.ended.wait()
            assert "sent nothing" in coordinator.logged("failed")[0]["reason"]
            assert coordinator.service.status().processes[0].state == "missing"
            members.silence_s = usual_s
            returned = await coordinator.node("a", epoch=1)
            await returned.handle(InstallView)

    asyncio.run(scenario())


def test_E3_an_exceeded_limit_aborts_the_snapshot_with_that_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await b.handle(SnapshotBegun)
            b.send(RecordingFailed(begun.snapshot, "b", "more than 4 MiB in flight"))
            report = await a.outcome(begun.snapshot)
            assert (report.committed, report.reason) == (False, "b: more than 4 MiB in flight")

    asyncio.run(scenario())


def test_C1_a_snapshot_that_a_process_initiates_is_adopted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            own = SnapshotId(1, 1, "b")
            b.send(SnapshotStarted(own, "b", 1))
            (begun, report), _ = await asyncio.gather(a.take_part(), b.take_part())
            assert (begun.snapshot, report.committed) == (own, True)

    asyncio.run(scenario())


def test_C1_a_snapshot_initiated_while_disconnected_is_adopted_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            await b.close()
            await coordinator.until(lambda: coordinator.logged("failed"))
            b = await coordinator.node("b", epoch=1)
            own = SnapshotId(1, 1, "b")
            b.send(Drained("b", (await b.handle(InstallView)).view.number))
            b.send(SnapshotStarted(own, "b", 1))
            (begun, report), _ = await asyncio.gather(a.take_part(), b.take_part())
            assert (begun.snapshot, report.committed) == (own, True)
            b.send(SnapshotStarted(own, "b", 1))  # a repetition: the snapshot has its outcome already
            assert await committed(coordinator, a, b) != str(own)

    asyncio.run(scenario())


def test_E7_a_restarted_coordinator_finishes_what_was_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await a.handle(SnapshotBegun)
        async with running(tmp_path / "store") as coordinator:
            a, b = await coordinator.node("a", epoch=1), await coordinator.node("b", epoch=1)
            for node in (a, b):
                assert await node.handle(SnapshotBegun) == begun
                assert (await node.handle(RequestRecording)).snapshot == begun.snapshot
                node.store_part(begun)
            assert (await a.outcome(begun.snapshot)).committed
        assert len(Store.open(tmp_path / "store").list()) == 1

    asyncio.run(scenario())


def test_E2_a_process_joins_and_leaves_while_all_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            channels = (ChannelSpec("a->c", "a", "c"), ChannelSpec("c->z", "c", "z"))
            c = await coordinator.node("c", channels=channels)
            await c.handle(ReportSettled)
            view = (await c.handle(InstallView)).view
            # z has not joined: the channel to it will come with z.
            assert [channel.id for channel in view.channels if "c" in channel.id] == ["a->c"]
            for node in (a, b, c):
                node.send(Drained(node.process, view.number))
            await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
            await committed(coordinator, a, b, c)
            coordinator.coordinator.handle(LeaveWanted("c"))
            without = (await a.handle(InstallView)).view
            while "c" in without.processes:
                without = (await a.handle(InstallView)).view
            for node in (a, b, c):
                node.send(Drained(node.process, without.number))
            await c.handle(Dismiss)
            await c.close()
            await coordinator.until(lambda: "c" not in coordinator.coordinator.members.by_process)
            assert coordinator.logged("failed") == []
            # The others are informed that it has left.
            while "c" in (await a.handle(AddressBook)).members:
                pass
            # A departed process that missed its dismissal is dismissed again.
            late = await coordinator.node("c", epoch=1)
            await late.handle(Dismiss)

    asyncio.run(scenario())


def test_a_stop_reaches_every_node_and_then_the_coordinator_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.service.stop("enough")
            for node in (a, b):
                assert await node.handle(Stop) == Stop("enough", 0)
                await node.close()
            assert await coordinator.coordinator.ended == 0
            assert coordinator.logged("failed") == []
        assert not (tmp_path / "store" / "run" / "coordinator.json").exists()

    asyncio.run(scenario())


def test_E1_a_restarted_coordinator_reports_the_same_earlier_snapshots(tmp_path: Path) -> None:
    """E1, E7: their sizes and durations are in the log."""

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            for fails in (False, True):
                coordinator.coordinator.handle(SnapshotWanted())
                begun = await a.handle(SnapshotBegun)
                if fails:
                    await b.close()
                else:
                    for node in (a, b):
                        node.store_part(begun)
                await a.outcome(begun.snapshot)
            before = list(coordinator.coordinator.tracker.finished)
        async with running(tmp_path / "store") as coordinator:
            after = list(coordinator.coordinator.tracker.finished)
        assert [one.outcome for one in before] == ["committed", "aborted"]
        assert after[0] == before[0]
        assert after[0].state_bytes > 0
        assert after[1].duration_us == before[1].duration_us

    asyncio.run(scenario())
