"""How much memory a coordinator needs per snapshot in its log: it must be able to run for months."""

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.fake_nodes import system_of

from strobe.protocol import SnapshotId
from strobe.protocol.coordinator.outcomes import IDS_REMEMBERED
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.log_entries import (
    Begin,
    BlobRef,
    Commit,
    Entry,
    EpochStart,
    FrontierRecord,
    Manifest,
    ProcessRecord,
    Remove,
    Section,
)
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.settings import CoordinatorSettings
from strobe.storage import Store
from strobe.storage.checkpoints import checkpoint_writer
from strobe.storage.entries.log_file import encode_entry, entry_name

SYSTEM = system_of("a", "b")
VIEW = first_view(SYSTEM)
KEPT = 10
"""Number of retained snapshots, as with `keep_last = 10`."""
PERIOD = 3 * IDS_REMEMBERED + 1
"""The lifecycle forgets old ids every so many snapshots; the compared stores differ by a multiple of this."""


def record(process: str) -> ProcessRecord:
    """One process of an idle system: its record never changes."""
    sent, received = f"{process}->{'ba'['ab'.index(process)]}", f"{'ba'['ab'.index(process)]}->{process}"
    end = FrontierRecord(1_000_000, "ab" * 16)
    return ProcessRecord(
        1_000_000, "bytes", BlobRef("cd" * 32, 1000, 1), {sent: end}, {received: end}, {received: Section(0, 0, 0, 0)}
    )


def entries(snapshots: int, retained: bool) -> Iterator[Entry]:
    yield EpochStart(1, 0, None, VIEW)
    for counter in range(1, snapshots + 1):
        name, parent = (str(SnapshotId(1, number, "coordinator")) for number in (counter, counter - 1))
        parts = {process: record(process) for process in VIEW.processes}
        yield Begin(name, VIEW.number, SYSTEM.protocol, ("a",), counter, parent)
        yield Commit(name, Manifest(SYSTEM.protocol, ("a",), VIEW, 1, counter, counter, parts, parent=parent), counter)
        if retained and counter > KEPT:
            yield Remove(str(SnapshotId(1, counter - KEPT, "coordinator")), "retention", counter)


def store_of(place: Path, snapshots: int, retained: bool) -> Path:
    """Write a log, without a sync at each entry."""
    previous = Store.create(place).header.blake3
    (place / "log").mkdir(exist_ok=True)
    for position, entry in enumerate(entries(snapshots, retained)):
        raw, previous = encode_entry(entry, position, previous)
        (place / entry_name(position)).write_bytes(raw)
    return place


def memory_bytes(place: Path) -> int:
    """Return how much more memory is in use after a coordinator has taken over the log."""

    async def scenario() -> int:
        before = tracemalloc.get_traced_memory()[0]
        coordinator = Coordinator(SYSTEM, str(place), CoordinatorSettings(interval_s=0.0))
        await coordinator.start()
        await coordinator.catch_up(60)  # by then the checkpoint is written, and its memory is free
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
        await coordinator.close()
        return used

    tracemalloc.start()
    try:
        return asyncio.run(scenario())
    finally:
        tracemalloc.stop()


def bytes_per_snapshot(tmp_path: Path, retained: bool) -> float:
    few, many = 270, 270 + 2 * PERIOD
    memory_bytes(store_of(tmp_path / "warm", few, retained))
    less = memory_bytes(store_of(tmp_path / "few", few, retained))
    more = memory_bytes(store_of(tmp_path / "many", many, retained))
    return (more - less) / (many - few)


@pytest.fixture(autouse=True)
def checkpoints_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for entries since the last checkpoint is bounded, and not measured here."""
    monkeypatch.setattr(checkpoint_writer, "EVERY", PERIOD)


def test_a_snapshot_of_an_idle_system_costs_less_than_a_kilobyte(tmp_path: Path) -> None:
    assert bytes_per_snapshot(tmp_path, retained=False) < 1024


def test_a_removed_snapshot_costs_almost_no_memory(tmp_path: Path) -> None:
    # The rest is the checksums of three entries, 32 bytes each, and the last few ids in the lifecycle.
    assert bytes_per_snapshot(tmp_path, retained=True) < 256
