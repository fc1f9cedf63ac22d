"""A control message with an invalid value ends its own connection, and has no other effect (E14)."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.command_line import refused, run
from tests.runtime.fake_nodes import FakeNode, Running, both_alive, committed, record_of, running

from strobe.protocol import SnapshotId
from strobe.protocol.coordinator.messages import (
    Drained,
    InstallView,
    RecordingFailed,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.values.bounds import COUNT_MAX, TEXT_MAX
from strobe.protocol.values.log_entries import Begin, BlobRef
from strobe.runtime.messages.control import LENGTH, Failed, FragmentStored, Heartbeat, SnapshotBegun
from strobe.storage import Store

ENDLESS = "../" * 12 + "dev/zero"


def encoded(message: msgspec.Struct) -> bytes:
    """Encode a message without checking its values."""
    body = msgspec.msgpack.encode((type(message).__name__, message))
    return LENGTH.pack(len(body)) + body


async def survives(coordinator: Running, node: FakeNode, message: msgspec.Struct) -> str:
    """Send `message`; return why the connection ended, after the system has committed another snapshot."""
    node.writer.write(encoded(message))
    async with asyncio.timeout(20):
        await node.ended.wait()
    again = await returned(coordinator)
    b = next(other for other in coordinator.nodes if other.process == "b")
    await committed(coordinator, again, b)
    return str(coordinator.logged("rejected")[-1]["reason"])


async def returned(coordinator: Running) -> FakeNode:
    """Reconnect process a with its state, and install the view."""
    again = await coordinator.node("a", instance="a", epoch=1)
    again.send(Drained("a", (await again.handle(InstallView)).view.number))
    await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
    return again


async def start_both(coordinator: Running) -> tuple[FakeNode, FakeNode]:
    a, b = await coordinator.start_node("a", instance="a"), await coordinator.start_node("b")
    await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
    return a, b


def started(epoch: int = 1, counter: int = 1, initiator: str = "a", view: int = 1) -> SnapshotStarted:
    return SnapshotStarted(SnapshotId(epoch, counter, initiator), "a", view)


def heartbeat(**changes: Any) -> Heartbeat:
    return msgspec.structs.replace(Heartbeat("a", 1, 7, 0.1, 1000, {}, {}, {}), **changes)


HOSTILE = {
    "an initiator without a name": started(initiator=""),
    "an initiator with a line break": started(initiator="a\nb"),
    "an initiator that is somebody else": started(initiator="b"),
    "an initiator with an escape code": started(initiator="a\x1b[31m"),
    "a counter beyond 64 bits": started(counter=2**64 - 1),
    "the highest counter": started(counter=COUNT_MAX),
    "a counter far ahead": started(counter=2**40),
    "a counter below zero": started(counter=-1),
    "an epoch below zero": started(epoch=-1),
    "a view beyond 32 bits": started(view=2**32),
    "a position below zero": heartbeat(position=-1),
    "no number of seconds": heartbeat(cpu_s=float("nan")),
    "endless seconds": heartbeat(cpu_s=float("inf")),
    "a channel without a name": heartbeat(received={"": 1}),
    "thousands of reasons": heartbeat(rejected={f"reason {number}": 1 for number in range(1000)}),
    "a megabyte of text": heartbeat(waiting="x" * (1 << 20)),
    "a count below zero": SentCountsArrived(SnapshotId(1, 1, "a"), "a", {"a->b": -1}),
    "sinks without names": Drained("a", 1, {"../../x": 1}),
    "an initiator that is a path": SnapshotWanted(("../../etc/passwd",)),
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_message_with_a_value_out_of_bounds_ends_its_connection(tmp_path: Path, message: msgspec.Struct) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, _ = await start_both(coordinator)
            reason = await survives(coordinator, a, message)
            assert type(message).__name__ in reason or "cannot be read" in reason
        async with running(tmp_path / "store") as coordinator:
            assert coordinator.coordinator.state.committed, "another coordinator can read the log"

    asyncio.run(scenario())


@pytest.mark.parametrize("blake3", [ENDLESS, "/etc/passwd", "", "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n"])
def test_a_blob_reference_with_an_invalid_digest_is_never_opened(tmp_path: Path, blake3: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await start_both(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await a.handle(SnapshotBegun)
            await b.handle(SnapshotBegun)
            b.store_part(begun)
            store, view = Store.open(tmp_path / "store"), coordinator.coordinator.lifecycle.view
            record = record_of(store, view, "a", begun.position, b"state")
            hostile = msgspec.structs.replace(record, state=BlobRef(blake3, 5, begun.position))
            reason = await survives(coordinator, a, FragmentStored(begun.snapshot, "a", 1, hostile))
            assert "cannot be read" in reason
            assert "blake3" in reason

    asyncio.run(scenario())


def test_an_unrequested_part_is_not_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            store, view = Store.open(tmp_path / "store"), coordinator.coordinator.lifecycle.view
            record = record_of(store, view, "a", 3, b"state")
            for counter in range(5, 500):
                a.send(FragmentStored(SnapshotId(1, counter, "b"), "a", 1, record))
            await committed(coordinator, a, b)
            assert len(coordinator.coordinator.lifecycle.outcomes.unclaimed) == 0
            assert coordinator.coordinator.tracker.recording == {}

    asyncio.run(scenario())


def test_thousands_of_refused_snapshots_take_bounded_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            for counter in range(2, 3000):
                a.send(started(counter=counter, view=7))
            await committed(coordinator, a, b)
            assert len(coordinator.coordinator.lifecycle.outcomes.refused) < 1000

    asyncio.run(scenario())


def test_only_the_beginning_of_a_long_reason_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await a.handle(SnapshotBegun)
            await b.handle(SnapshotBegun)
            long = RecordingFailed(begun.snapshot, "a", "")
            msgspec.structs.force_setattr(long, "reason", "x" * (1 << 20))
            a.writer.write(encoded(long))
            report = await a.outcome(begun.snapshot)
            assert TEXT_MAX < len(report.reason) < 2 * TEXT_MAX
            assert len(Failed("a", "x" * (1 << 20)).reason) < 2 * TEXT_MAX

    asyncio.run(scenario())


@pytest.mark.parametrize("counter", [2**40, COUNT_MAX])
def test_a_begin_with_a_huge_counter_is_aborted_and_not_continued_from(tmp_path: Path, counter: int) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            await committed(coordinator, *await both_alive(coordinator))
        store = Store.open(tmp_path / "store")
        far = SnapshotId(store.state().epoch, counter, "a")
        store.append(Begin(str(far), 1, "chandy-lamport", ("a",), 1), store.state().next_position)
        async with running(tmp_path / "store") as coordinator:
            await coordinator.until(lambda: str(far) in coordinator.coordinator.state.aborted)
            a, b = await both_alive(coordinator)
            a.forget()
            b.forget()
            name = await committed(coordinator, a, b)
            assert SnapshotId.parse(name).counter < 10

    asyncio.run(scenario())


def test_a_log_is_not_fenced_while_its_coordinator_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", http=True) as coordinator:
            await both_alive(coordinator)
            result = await asyncio.to_thread(run, "store", "repair", tmp_path / "store", "--fence", "0", "--yes")
            refused(result, "a coordinator is running on the store")

    asyncio.run(scenario())
