"""A store of a long-running system: many complete snapshots, all kept, written in seconds.

The entries are as a coordinator writes them, but nothing is synced. There are no blobs, because a start, a list and a
plan do not read them.
"""

from pathlib import Path

from strobe.protocol import FIFO, ChannelSpec, SnapshotId, View
from strobe.protocol.values.log_entries import (
    Begin,
    BlobRef,
    Commit,
    Entry,
    EpochStart,
    FrontierRecord,
    Manifest,
    ProcessRecord,
    Section,
)
from strobe.storage import Store
from strobe.storage.entries.log_file import encode_entry, entry_name

PROTOCOL = "chandy-lamport"
PROCESSES = ("a", "b", "c")
VIEW = View(
    1,
    PROCESSES,
    tuple(
        ChannelSpec(f"{source}->{target}", source, target, FIFO)
        for source, target in (("a", "b"), ("b", "c"), ("c", "a"))
    ),
)
_HASH = "0123456789abcdef" * 2


def make_store(path: Path, commits: int, first_us: int = 1_700_000_000_000_000) -> None:
    """Write a store of `commits` complete snapshots."""
    store = Store.create(path, identity=f"aged-{commits}")
    entries: list[Entry] = [EpochStart(1, first_us, None, VIEW, "the system starts")]
    position, previous = 0, store.header.blake3
    for counter in range(commits + 1):
        for entry in entries:
            raw, previous = encode_entry(entry, position, previous)
            (path / entry_name(position)).write_bytes(raw)
            position += 1
        entries = _snapshot(counter + 1, position, first_us + counter * 1_000_000)


def _snapshot(counter: int, begin: int, at_us: int) -> list[Entry]:
    snapshot = str(SnapshotId(1, counter, "coordinator"))
    processes = {process: _record(place, process, counter, begin, at_us) for place, process in enumerate(PROCESSES)}
    manifest = Manifest(PROTOCOL, ("a",), VIEW, 1, at_us, at_us + 20_000, processes)
    return [Begin(snapshot, 1, PROTOCOL, ("a",), at_us), Commit(snapshot, manifest, at_us + 20_000)]


def _record(place: int, process: str, counter: int, begin: int, at_us: int) -> ProcessRecord:
    outgoing, incoming = VIEW.outgoing(process)[0].id, VIEW.incoming(process)[0].id
    return ProcessRecord(
        counter * 100,
        "msgpack",
        BlobRef(f"{counter * 10 + place:064x}", 1000, begin),
        {outgoing: FrontierRecord(counter * 50, _HASH)},
        {incoming: FrontierRecord(counter * 50, _HASH)},
        {incoming: Section(0, 0, 0, 0)},
        recorded_us=at_us,
        pause_us=150,
        duration_us=15_000,
    )
