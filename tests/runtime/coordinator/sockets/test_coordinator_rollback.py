"""Rollback by the live coordinator: which orders the nodes get, in which sequence, and what is refused."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.fake_nodes import FakeNode, Running, both_alive, committed, running

from strobe.errors import SnapshotError, StoreError
from strobe.protocol.coordinator.messages import (
    Drained,
    InstallView,
    ReportOutcome,
    RequestRecording,
    Reset,
    RestoreState,
    RestoreWanted,
    SnapshotWanted,
)
from strobe.protocol.values.ids import short_name
from strobe.protocol.values.log_entries import EpochStart
from strobe.protocol.values.view import ChannelSpec
from strobe.runtime.coordinator.pending_requests import RestoreFailed, Superseded
from strobe.runtime.messages.api_documents import RestoreRequest, RestoreStarted
from strobe.runtime.messages.control import SnapshotBegun, Stop
from strobe.storage import CommitStep, Store
from strobe.storage.store import retention


def blob_file(store: Path, snapshot: str, process: str) -> Path:
    record = Store.open(store).state().committed[snapshot].manifest.processes[process]
    return store / "blobs" / f"{record.state.begin:020d}" / record.state.blake3


async def restart(coordinator: Running, node: FakeNode) -> FakeNode:
    """Crash a node, and restart its process without its state."""
    await node.close()
    await coordinator.until(lambda: not coordinator.coordinator.members.get(node.process).connected)
    return await coordinator.node(node.process)


async def restored(*nodes: FakeNode) -> list[RestoreState]:
    """Have these nodes start as ordered; return their orders."""
    return await asyncio.gather(*(node.start_as_ordered() for node in nodes))


def test_R1_a_process_without_state_rolls_all_back_to_the_newest_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            snapshot = await committed(coordinator, a, b)
            a.beat(position=107)
            await coordinator.until(lambda: coordinator.coordinator.members.get("a").reached == 107)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await a.handle(SnapshotBegun)
            b = await restart(coordinator, b)
            orders = await restored(a, b)
            assert {(one.epoch, one.restored) for one in orders} == {(2, snapshot)}
            assert orders[0].view.number == 2
            other = Store.open(tmp_path / "store")
            committed_at = other.state().committed[snapshot].position
            assert {one.commit for one in orders} == {other.entry_ref(committed_at)}, "each names the entry to read"
            # The new epoch comes after the requests of the aborted snapshot, and before any new message.
            kinds = [type(message) for message in a.received]
            assert kinds.index(RestoreState, 3) > kinds.index(RequestRecording)
            assert begun.snapshot.epoch == 1
            (again, outcome), _ = await asyncio.gather(a.take_part(), b.take_part())
            assert again.snapshot.epoch == 2
            assert outcome.committed
            event = coordinator.logged("rollback")[0]
            assert event["restored"] == snapshot
            assert event["undone"]["a"] == 100
            assert event["blamed"] == "b"
            assert coordinator.service.status().rollbacks[0].undone["a"] == 100
        start = [entry for _, entry in Store.open(tmp_path / "store").read_log() if isinstance(entry, EpochStart)][-1]
        assert (start.epoch, start.restored, start.blamed) == (2, snapshot, "b")

    asyncio.run(scenario())


def test_R1_without_a_snapshot_all_processes_start_from_the_beginning(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            b = await restart(coordinator, b)
            assert [one.restored for one in await restored(a, b)] == [None, None]

    asyncio.run(scenario())


def test_R1_a_node_absent_during_a_rollback_is_restored_on_return(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            snapshot = await committed(coordinator, a, b)
            await a.close()
            await coordinator.until(lambda: not coordinator.coordinator.members.get("a").connected)
            b = await restart(coordinator, b)
            await restored(b)
            a = await coordinator.node("a", epoch=1)
            assert (await restored(a))[0].restored == snapshot
            assert a.received[0].epoch == 2
            await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
            assert coordinator.coordinator.lifecycle.epoch == 2

    asyncio.run(scenario())


def test_R1_a_joiner_unknown_to_the_restored_snapshot_must_join_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            await committed(coordinator, a, b)
            c = await coordinator.node("c", channels=(ChannelSpec("a->c", "a", "c"),))
            view = (await c.handle(InstallView)).view
            for node in (a, b, c):
                node.send(Drained(node.process, view.number))
            await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
            b = await restart(coordinator, b)
            await c.handle(Reset)
            assert {one.view.processes for one in await restored(a, b)} == {("a", "b")}

    asyncio.run(scenario())


def test_R1_a_process_that_keeps_crashing_stops_the_system_with_a_report(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", rollbacks_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            b = await restart(coordinator, b)
            await restored(a, b)
            b = await restart(coordinator, b)
            for node in (a, b):
                stop = await node.handle(Stop)
                assert stop.code == 1
                assert "process b has crashed again" in stop.reason
                await node.close()
            assert await coordinator.coordinator.ended == 1
            assert coordinator.logged("halted")[0]["report"] == coordinator.service.status().halted

    asyncio.run(scenario())


def test_E9_a_corrupt_newest_snapshot_is_skipped_for_an_older_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            good = await committed(coordinator, a, b, data=b"first")
            bad = await committed(coordinator, a, b, data=b"second")
            blob_file(tmp_path / "store", bad, "a").write_bytes(b"SECOND")
            b = await restart(coordinator, b)
            assert [one.restored for one in await restored(a, b)] == [good, good]
            assert "is corrupt" in coordinator.logged("snapshot skipped")[0]["reason"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "is corrupt: .* is missing"),
        (lambda path: path.write_bytes(b"STATE"), "is corrupt: .* do not match its name"),
    ],
)
def test_E9_restoring_a_corrupt_snapshot_is_refused_without_harm(tmp_path: Path, damage: Any, reason: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            snapshot = await committed(coordinator, a, b)
            damage(blob_file(tmp_path / "store", snapshot, "b"))
            with pytest.raises(RestoreFailed, match=reason):
                await coordinator.service.operations.restore(RestoreRequest(snapshot))
            assert coordinator.coordinator.lifecycle.epoch == 1
            await committed(coordinator, a, b, data=b"goes on")
            assert coordinator.service.status().troubles[0].kind == "restore"

    asyncio.run(scenario())


def test_R1_a_snapshot_abandoned_by_a_restore_is_never_restored_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            first = await committed(coordinator, a, b, data=b"first")
            await committed(coordinator, a, b, data=b"second")
            started, *_ = await asyncio.gather(
                coordinator.service.operations.restore(RestoreRequest(short_name(first))), restored(a, b)
            )
            assert (started.epoch, started.restored) == (2, first)
            b = await restart(coordinator, b)
            assert {one.restored for one in await restored(a, b)} == {first}

    asyncio.run(scenario())


def test_R2_restoring_below_released_output_is_refused_except_as_a_fork(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            first = await committed(coordinator, a, b, data=b"first", sinks={"audit": 10})
            await committed(coordinator, a, b, data=b"second", sinks={"audit": 15})
            with pytest.raises(RestoreFailed, match="sink audit of process a has released 5 more since"):
                await coordinator.service.operations.restore(RestoreRequest(first))
            started, *_ = await asyncio.gather(
                coordinator.service.operations.restore(RestoreRequest(first, fork=True)), restored(a, b)
            )
            assert started.restored == first

    asyncio.run(scenario())


class HeldCommit:
    """Blocks the store's thread while a log entry is being written, until `gate` is set."""

    def __init__(self, coordinator: Running) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        coordinator.coordinator.store.log.store.on_step = self

    def __call__(self, step: CommitStep, name: str) -> None:
        if step is CommitStep.ENTRY_WRITTEN:
            self.begun.set()
            self.gate.wait(30)


async def committing(coordinator: Running, *nodes: FakeNode, sinks: dict[str, int]) -> tuple[str, HeldCommit]:
    coordinator.coordinator.handle(SnapshotWanted())
    begun = await nodes[0].handle(SnapshotBegun)
    held = HeldCommit(coordinator)
    for node in nodes:
        node.store_part(begun, b"held", sinks=sinks)
    await coordinator.until(held.begun.is_set)
    return str(begun.snapshot), held


def test_R2_the_latest_is_determined_after_commits_under_way(tmp_path: Path) -> None:
    """R2: the one that was the latest at the request would lie below the output that is released meanwhile."""

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            await committed(coordinator, a, b, data=b"first", sinks={"audit": 10})
            second, held = await committing(coordinator, a, b, sinks={"audit": 15})
            restoring = asyncio.create_task(coordinator.service.operations.restore(RestoreRequest("latest")))
            await coordinator.until(lambda: coordinator.coordinator.lifecycle.rollback.pending)
            held.gate.set()
            started, _ = await asyncio.gather(restoring, restored(a, b))
            assert started.restored == second

    asyncio.run(scenario())


def asking(coordinator: Running, snapshot: str | None, fork: bool = False) -> asyncio.Task[RestoreStarted]:
    return asyncio.create_task(coordinator.service.operations.restore(RestoreRequest(snapshot, fork)))


@pytest.mark.parametrize(
    ("earlier", "was_fork", "fork"),
    [("latest", False, False), ("second", False, False), ("first", False, True), ("first", True, False)],
)
def test_R1_a_superseded_rollback_request_fails_at_once(
    tmp_path: Path, earlier: str, was_fork: bool, fork: bool
) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            first, second = [await committed(coordinator, a, b, data=data) for data in (b"first", b"second")]
            _, held = await committing(coordinator, a, b, sinks={})
            superseded = asking(coordinator, {"first": first, "second": second}.get(earlier, earlier), was_fork)
            unnamed = asking(coordinator, None)
            await coordinator.until(lambda: len(coordinator.coordinator.requests.restores) == 2)
            later = [asking(coordinator, first, fork) for _ in range(2)]
            with pytest.raises(Superseded, match=f"request names {first}{' as a fork' if fork else ''}, and"):
                await superseded
            assert not unnamed.done()
            held.gate.set()
            answers = await asyncio.gather(unnamed, *later)
            assert {(one.epoch, one.restored) for one in answers} == {(2, first)}
            assert coordinator.coordinator.lifecycle.rollback.forked == fork

    asyncio.run(scenario())


def test_R1_if_the_last_request_is_refused_all_requests_fail(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            first, _ = [await committed(coordinator, a, b, data=data) for data in (b"first", b"second")]
            blob_file(tmp_path / "store", first, "a").write_bytes(b"other")
            _, held = await committing(coordinator, a, b, sinks={})
            unnamed = asking(coordinator, None)
            await coordinator.until(lambda: len(coordinator.coordinator.requests.restores) == 1)
            damaged = asking(coordinator, first)
            await coordinator.until(lambda: len(coordinator.coordinator.requests.restores) == 2)
            held.gate.set()
            for waiting in (damaged, unnamed):
                with pytest.raises(RestoreFailed, match="corrupt"):
                    await waiting
            assert coordinator.coordinator.lifecycle.epoch == 1

    asyncio.run(scenario())


def test_R1_a_superseded_epoch_answers_no_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            first, second = [await committed(coordinator, a, b, data=data) for data in (b"first", b"second")]
            unnamed, held = asking(coordinator, None), HeldCommit(coordinator)
            await coordinator.until(held.begun.is_set)  # epoch 2 is written
            later = asking(coordinator, first)
            await coordinator.until(lambda: len(coordinator.coordinator.requests.restores) == 2)
            held.gate.set()
            assert [(one.epoch, one.restored) for one in await asyncio.gather(unnamed, later)] == [(3, first)] * 2
            assert [one.restored for one in coordinator.coordinator.observer.rollbacks] == [second, first]
            assert {one.epoch for one in await restored(a, b)} == {3}

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["latest", "000001-00000001"])
def test_E9_a_restore_finds_a_commit_that_the_coordinator_has_not_read(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            first, held = await committing(coordinator, a, b, sinks={})
            restoring = asyncio.create_task(coordinator.service.operations.restore(RestoreRequest(name)))
            await asyncio.sleep(0)
            assert not restoring.done()
            held.gate.set()
            started, _ = await asyncio.gather(restoring, restored(a, b))
            assert started.restored == first

    asyncio.run(scenario())


def test_a_restore_from_an_unreachable_store_is_refused_in_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            first, held = await committing(coordinator, a, b, sinks={})
            with pytest.raises(SnapshotError, match="no complete snapshot yet"):
                await coordinator.service.operations.restore(RestoreRequest("latest", timeout_s=0.05))
            held.gate.set()
            await coordinator.until(lambda: first in coordinator.coordinator.state.committed)

    asyncio.run(scenario())


def test_E7_a_restarted_coordinator_rolls_back_for_a_stateless_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            snapshot = await committed(coordinator, *await both_alive(coordinator))
        async with running(tmp_path / "store") as coordinator:
            a, b = await coordinator.node("a", epoch=1), await coordinator.node("b")
            assert {(one.epoch, one.restored) for one in await restored(a, b)} == {(2, snapshot)}

    asyncio.run(scenario())


def test_a_requested_rollback_aborts_open_snapshots_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            await committed(coordinator, a, b)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await a.handle(SnapshotBegun)
            coordinator.coordinator.handle(RestoreWanted(None, "a test"))
            await restored(a, b)
            assert not any(
                isinstance(one, ReportOutcome) and one.snapshot == begun.snapshot and one.committed
                for one in a.received
            )
            with suppress(StoreError):  # garbage collection may remove the directory of its blobs meanwhile
                a.store_part(begun)  # too late: its epoch is over
            await committed(coordinator, a, b, data=b"later")
            aborted = coordinator.service.status().finished
            assert [one.outcome for one in aborted] == ["committed", "aborted", "committed"]
            assert aborted[1].reason == "epoch 2 began"

    asyncio.run(scenario())


def test_E9_a_snapshot_removed_after_it_was_chosen_is_not_restored(tmp_path: Path) -> None:
    """E8, E9: a writer that removes a snapshot does not know that it is about to be restored; the log order decides."""

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            old = await committed(coordinator, a, b)
            newest = await committed(coordinator, a, b, data=b"later")
            log_writer, other = coordinator.coordinator.store.log, Store.open(tmp_path / "store")
            choose = log_writer.choose

            def choose_then_remove(wanted: str | None, *how: Any) -> Any:
                results = choose(wanted, *how)
                if wanted == old:
                    retention.remove(other, old, "at a bad moment", 0)
                return results

            log_writer.choose = choose_then_remove  # type: ignore[method-assign]
            with pytest.raises(RestoreFailed, match="at a bad moment"):
                await coordinator.service.operations.restore(RestoreRequest(old))
            assert coordinator.coordinator.lifecycle.epoch == 1
            # The system continues, and can be rolled back.
            b = await restart(coordinator, b)
            assert {one.restored for one in await restored(a, b)} == {newest}

    asyncio.run(scenario())


@pytest.mark.parametrize("late", [{}, {"out": 20}, {"out": 10}], ids=["no output", "as much output", "less output"])
def test_R2_no_overlapping_snapshot_is_committed_below_released_output(tmp_path: Path, late: dict[str, int]) -> None:
    """Otherwise it would be the newest snapshot, and no sink could be restored to it."""

    async def scenario() -> None:
        async with running(tmp_path / "store", overlapping_max=2, attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            begun = []
            for _ in range(2):
                coordinator.coordinator.handle(SnapshotWanted())
                begun.append([await node.handle(SnapshotBegun) for node in (a, b)])
            outcomes = []
            for parts, sinks in ((begun[1], {"out": 20} if late else {}), (begun[0], late)):
                for node, part in zip((a, b), parts, strict=True):
                    node.store_part(part, sinks=sinks)
                outcomes.append(await a.outcome(parts[0].snapshot))
            assert [report.committed for report in outcomes] == [True, late != {"out": 10}]
            newest = begun[1 if late == {"out": 10} else 0][0].snapshot
            b = await restart(coordinator, b)
            assert {one.restored for one in await restored(a, b)} == {str(newest)}

    asyncio.run(scenario())


def test_R1_a_lost_rollback_order_is_repeated_without_another_rollback(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            await committed(coordinator, a, b)
            b = await restart(coordinator, b)
            await restored(b)
            for _ in range(3):  # each time its connection breaks before it has read the order
                await a.close()
                await coordinator.until(lambda: not coordinator.coordinator.members.get("a").connected)
                again = await coordinator.node("a", instance=coordinator.coordinator.members.get("a").instance, epoch=1)
                await again.handle(RestoreState)
                a = again
            assert coordinator.coordinator.lifecycle.epoch == 2
            assert len(coordinator.logged("rollback")) == 1

    asyncio.run(scenario())
