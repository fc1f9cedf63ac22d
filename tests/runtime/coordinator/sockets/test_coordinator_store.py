"""The live coordinator and its store: other writers, full disks, retention."""

import asyncio
import errno
import io
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.fake_nodes import PATIENCE_S, Running, both_alive, committed, running, system_of
from tests.storage.samples import store_of_two_days

from strobe.errors import StoreCorrupt, StoreError, TransportError
from strobe.protocol.coordinator.messages import SnapshotWanted
from strobe.protocol.values.log_entries import Abort, Begin, EpochStart, Pin
from strobe.runtime.api import discovery, service
from strobe.runtime.api.discovery import Discovered
from strobe.runtime.connectors.system_file import parse_system_file
from strobe.runtime.coordinator import coordinator as leading
from strobe.runtime.coordinator import health_monitor
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.coordinator.log_writer import CoordinatorLog, LogResult, Removed
from strobe.runtime.event_log import EventLog
from strobe.runtime.messages.control import SnapshotBegun
from strobe.runtime.settings import CoordinatorSettings, RetentionSettings
from strobe.storage import CommitStep, Store
from strobe.storage.entries.log_file import entry_name


class FullDisk:
    """Makes all writes to the log fail while `full` is set."""

    def __init__(self, coordinator: Running) -> None:
        self.full = False
        self.refused = 0
        self.step = CommitStep.ENTRY_OPENED
        coordinator.coordinator.store.log.store.on_step = self

    def __call__(self, step: CommitStep, name: str) -> None:
        if self.full and step is self.step:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")


def test_an_unwritable_log_is_reported_and_retried(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            disk = FullDisk(coordinator)
            disk.full = True
            coordinator.coordinator.handle(SnapshotWanted())
            await coordinator.until(lambda: coordinator.service.status().troubles)
            await coordinator.until(lambda: disk.refused >= 4)
            trouble = coordinator.service.status().troubles[0]
            assert trouble.kind == "store"
            assert len(coordinator.logged("store trouble")) == 1
            assert "No space left on device; make room" in trouble.problem
            disk.full = False
            (_, report), _ = await asyncio.gather(a.take_part(), b.take_part())
            assert report.committed
            assert coordinator.service.status().troubles == []
            assert coordinator.logged("store available again")

    asyncio.run(scenario())


def test_a_commit_on_a_full_disk_aborts_the_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            disk = FullDisk(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await a.handle(SnapshotBegun)
            disk.full = True
            a.store_part(begun)
            b.store_part(await b.handle(SnapshotBegun))
            await coordinator.until(lambda: coordinator.coordinator.store.problem)
            disk.full = False
            report = await a.outcome(begun.snapshot)
            assert not report.committed
            assert "No space left on device" in report.reason
            await committed(coordinator, a, b, data=b"later")

    asyncio.run(scenario())


def test_polls_do_not_queue_up_while_the_store_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all queued polls would run before the next snapshot begins."""

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            monkeypatch.setattr(health_monitor, "POLL_S", math.inf)  # it polls only when the test calls it
            await coordinator.coordinator.catch_up(PATIENCE_S)
            log_writer, answer, polls = coordinator.coordinator.store.log, threading.Event(), []

            def poll() -> list[LogResult]:
                polls.append(answer.wait(PATIENCE_S))
                return CoordinatorLog.poll(log_writer)

            monkeypatch.setattr(log_writer, "poll", poll)
            for _ in range(10):
                coordinator.coordinator.poll()
            answer.set()
            await committed(coordinator, a, b)
            assert polls == [True]
            coordinator.coordinator.poll()
            await coordinator.until(lambda: len(polls) == 2)

    asyncio.run(scenario())


def test_S1_an_entry_written_despite_a_late_disk_failure_counts_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            disk = FullDisk(coordinator)
            disk.full, disk.step = True, CommitStep.ENTRY_LINKED
            coordinator.coordinator.handle(SnapshotWanted())
            (_, report), _ = await asyncio.gather(a.take_part(), b.take_part())
            assert report.committed
        entries = [entry for _, entry in Store.open(tmp_path / "store").read_log()]
        assert len([entry for entry in entries if isinstance(entry, Begin)]) == 1
        assert [entry for entry in entries if isinstance(entry, Abort)] == []

    asyncio.run(scenario())


def test_S1_pins_of_other_writers_are_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            first = await committed(coordinator, a, b)
            other = Store.open(tmp_path / "store")
            other.append(Pin(first, True, 0), other.state().next_position)
            await committed(coordinator, a, b, data=b"next")
            assert coordinator.coordinator.state.pinned == {first}

    asyncio.run(scenario())


def test_S1_an_epoch_of_another_coordinator_prevents_older_commits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await a.handle(SnapshotBegun)
            other = Store.open(tmp_path / "store")
            view = coordinator.coordinator.lifecycle.view
            other.append(EpochStart(2, 0, None, view, "another coordinator"), other.state().next_position)
            a.store_part(begun)
            b.store_part(begun)
            order = await a.start_as_ordered()
            assert order.epoch == 2
            assert Store.open(tmp_path / "store").list() == []

    asyncio.run(scenario())


def test_E8_retention_keeps_the_newest_and_frees_the_blobs_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "RETAIN_EVERY_S", math.inf)  # after the first time, only if `_retained_s` is reset

    async def scenario() -> None:
        async with running(tmp_path / "store", retention=RetentionSettings(keep_last=1)) as coordinator:
            a, b = await both_alive(coordinator)
            await committed(coordinator, a, b, data=b"first")
            coordinator.coordinator._retained_s = None  # as if some time had passed
            newest = await committed(coordinator, a, b, data=b"second")
            await coordinator.until(lambda: coordinator.logged("removed"))
            assert list(coordinator.coordinator.state.committed) == [newest]
            await committed(coordinator, a, b, data=b"third")
        store = Store.open(tmp_path / "store")
        assert store.verify_bytes() == []
        assert len(list((tmp_path / "store" / "blobs").glob("*/*"))) == 2

    asyncio.run(scenario())


RETENTION = """
[process.a]
[retention]
keep_hourly = 1
keep_daily = 2
"""


def test_E8_the_coordinator_keeps_hours_and_days_as_configured(tmp_path: Path) -> None:
    """E8: the two settings are not swapped, neither when read nor when applied."""
    taken = store_of_two_days(tmp_path / "store")
    (tmp_path / "system.toml").write_text(RETENTION)
    settings = parse_system_file(tmp_path / "system.toml").retention
    log_writer = CoordinatorLog(str(tmp_path / "store"), lambda: 0, lambda problem: pytest.fail(str(problem)))
    log_writer.open()
    *_, removed = log_writer.retain(settings)
    assert removed == Removed((taken["day 0, hour 1"], taken["day 1, hour 1"], taken["day 1, hour 2"]), 0)
    assert list(Store.open(tmp_path / "store").state().committed) == [taken["day 0, hour 2"], taken["day 1, hour 3"]]


def blobs(store: Path) -> list[str]:
    """Return the names of all blobs; directories that are removed meanwhile are skipped."""
    return [name for _, _, names in os.walk(store / "blobs") for name in names]


def test_E6_blobs_of_aborted_snapshots_are_collected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.handle(SnapshotWanted())
            begun = await a.handle(SnapshotBegun)
            a.store_part(begun)
            await coordinator.until(lambda: coordinator.service.status().open[0].waiting_for == ["b"])
            assert blobs(tmp_path / "store") != []
            await b.close()
            await a.outcome(begun.snapshot)
            await coordinator.until(lambda: blobs(tmp_path / "store") == [])

    asyncio.run(scenario())


def service_of(store: Path) -> service.CoordinatorService:
    settings = CoordinatorSettings(listen="127.0.0.1:0", api="127.0.0.1:0")
    return service.CoordinatorService(
        Coordinator(system_of("a", "b"), str(store), settings, log=EventLog(io.StringIO()), create=True)
    )


def test_a_coordinator_can_be_ended_before_it_starts(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = service_of(tmp_path / "store")
        coordinator.end(7)
        async with asyncio.timeout(PATIENCE_S):
            assert await coordinator.run() == 7

    asyncio.run(scenario())
    assert not (tmp_path / "store").exists()


def test_a_coordinator_can_be_ended_while_its_store_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, answer = threading.Event(), threading.Event()

    def open_slowly(*_: object, **__: object) -> Store:
        opening.set()
        answer.wait(PATIENCE_S)
        raise StoreError("s3://bucket/shop", "is unreachable")

    async def scenario() -> None:
        monkeypatch.setattr(Store, "open", open_slowly)
        coordinator = service_of(tmp_path / "store")
        running = asyncio.create_task(coordinator.run())
        assert await asyncio.to_thread(opening.wait, PATIENCE_S)
        coordinator.end(130)
        async with asyncio.timeout(PATIENCE_S):
            assert await running == 130
        assert not answer.is_set()

    try:
        asyncio.run(scenario())
    finally:
        answer.set()


def test_a_coordinator_can_be_ended_while_it_retries_to_read_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def read_log(*_: object) -> Iterator[object]:
        nonlocal tries
        tries += 1
        raise StoreError("s3://bucket/shop", "is unreachable")

    async def scenario() -> None:
        monkeypatch.setattr(Store, "read_log", read_log)
        coordinator = service_of(tmp_path / "store")
        running = asyncio.create_task(coordinator.run())
        async with asyncio.timeout(PATIENCE_S):
            while tries < 3:  # the error may be transient, so it retries
                await asyncio.sleep(0.005)
            coordinator.end(0)
            assert await running == 0

    asyncio.run(scenario())


def test_S1_a_damaged_log_is_reported_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            await committed(coordinator, *await both_alive(coordinator))
        entry = tmp_path / "store" / entry_name(2)
        entry.write_bytes(entry.read_bytes().replace(b"begin", b"beg1n"))
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(StoreCorrupt, match=entry_name(2)):
                await service_of(tmp_path / "store").run()

    asyncio.run(scenario())


def test_E7_a_coordinator_started_on_a_full_disk_is_announced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: nodes know its address already; others find it in the store as soon as it can be written there."""
    room = False

    def announce(store: str, discovered: Discovered) -> None:
        if not room:
            raise StoreError(store, "cannot write run/coordinator.json: No space left on device")
        discovery.announce(store, discovered)

    async def scenario() -> None:
        nonlocal room
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            await committed(coordinator, a, b, data=b"all the same")
            with pytest.raises(TransportError):
                discovery.discover(str(tmp_path / "store"))
            assert len(coordinator.logged("cannot write the coordinator's address file")) == 1
            room = True
            await coordinator.until(lambda: (tmp_path / "store" / "run" / "coordinator.json").exists())
            assert discovery.discover(str(tmp_path / "store")).listen == coordinator.service.listen

    monkeypatch.setattr(service, "announce", announce)
    asyncio.run(scenario())
