"""Snapshots made by hand, for every test of the store: two fifo channels and an unordered one, with frames in flight.

a ──a->b (fifo)──► b      a ◄──b->a (fifo)── b      b ──b~>c (unordered)──► c
"""

from pathlib import Path

import msgspec
import pytest

from strobe.declarations import Declared
from strobe.protocol.values.fragment import MSGPACK, OPAQUE, Fragment, LocalState, Snapshot
from strobe.protocol.values.frames import BLAKE3, FIFO, UNORDERED, Frame, Frontier, InFlight, extend_all, seed_hash
from strobe.protocol.values.ids import COORDINATOR, SnapshotId
from strobe.protocol.values.log_entries import Begin, BlobRef, Commit, Manifest
from strobe.protocol.values.view import ChannelSpec, View
from strobe.storage import Store
from strobe.storage.content.blobs import blob_name
from strobe.storage.files.backend import MAPPED_BYTES_MIN
from strobe.storage.store.retention import HOUR_US

replace = msgspec.structs.replace

VIEW = View(
    number=1,
    processes=("a", "b", "c"),
    channels=(
        ChannelSpec("a->b", "a", "b"),
        ChannelSpec("b->a", "b", "a"),
        ChannelSpec("b~>c", "b", "c", UNORDERED, incarnation=7),
    ),
)

# The same with the hash that protects against liars, on the channels that allow it.
BLAKE3_VIEW = View(1, VIEW.processes, tuple(replace(one, hash=BLAKE3) for one in VIEW.channels[:2]) + VIEW.channels[2:])


def sample_id(counter: int, epoch: int = 1) -> SnapshotId:
    return SnapshotId(epoch, counter, COORDINATOR)


def frame(first_ordinal: int, *messages: object) -> Frame:
    return Frame(first_ordinal, len(messages), msgspec.msgpack.encode(messages))


def frontier(channel: ChannelSpec, frames: list[Frame], count: int | None = None) -> Frontier:
    """The frontier after `frames`; `count` if a breakpoint has cut inside the next frame."""
    seed = seed_hash(channel.id, channel.incarnation, channel.hash)
    counted = sum(frame.count for frame in frames) if count is None else count
    bodies = [(frame.first_ordinal, frame.count, frame.body) for frame in frames]
    return Frontier(counted, extend_all(channel.kind, seed, seed, bodies, channel.hash))


def sample(counter: int, epoch: int = 1, balance: int = 100, view: View = VIEW) -> Snapshot:
    """One fifo channel cut inside a frame, one with nothing in flight, and an unordered one received out of order."""
    forth, back, loose = view.channels
    amounts = [{"amount": amount} for amount in (1, 2, 3, balance)]
    sent_forth = [frame(1, *amounts[:2]), frame(3, *amounts[2:]), frame(5, "last")]
    sent_back = [frame(1, "ack")]
    sent_loose = [frame(1, "x"), frame(2, "y", "z"), frame(4, "w")]
    return snapshot_of(
        sample_id(counter, epoch),
        view,
        sent={
            "a": {forth.id: frontier(forth, sent_forth)},
            "b": {back.id: frontier(back, sent_back), loose.id: frontier(loose, sent_loose)},
            "c": {},
        },
        received={
            "a": {back.id: frontier(back, sent_back)},
            "b": {forth.id: frontier(forth, sent_forth[:1], count=3)},
            "c": {loose.id: frontier(loose, [sent_loose[2]])},
        },
        in_flight={
            "a": {back.id: ()},
            "b": {forth.id: (InFlight(sent_forth[1], consumed=1), InFlight(sent_forth[2]))},
            "c": {loose.id: (InFlight(sent_loose[1]), InFlight(sent_loose[0]))},
        },
        states={
            "a": LocalState(4, MSGPACK, msgspec.msgpack.encode({"balance": balance}), (("tick", 0.25),), 2**64 - 1),
            "b": LocalState(2, MSGPACK, msgspec.msgpack.encode({"balance": 50})),
            "c": LocalState(1, OPAQUE, b"\x00\xff opaque"),
        },
    )


def snapshot_of(
    snapshot: SnapshotId,
    view: View,
    sent: dict[str, dict[str, Frontier]],
    received: dict[str, dict[str, Frontier]],
    in_flight: dict[str, dict[str, tuple[InFlight, ...]]],
    states: dict[str, LocalState],
) -> Snapshot:
    fragments = {
        process: Fragment(
            snapshot, process, view.number, sent[process], received[process], in_flight[process], states[process]
        )
        for process in view.processes
    }
    return Snapshot(snapshot, "chandy-lamport", ("a",), view, fragments, started_us=10, completed_us=20)


def declaring(snapshot: Snapshot, **declared: Declared) -> Snapshot:
    """Return a snapshot in which exactly these processes declare something."""
    fragments = {
        process: replace(fragment, state=replace(fragment.state, declared=declared.get(process)))
        for process, fragment in snapshot.fragments.items()
        if fragment.state is not None
    }
    return replace(snapshot, fragments=fragments)


def versioned(snapshot: Snapshot, **versions: int) -> Snapshot:
    """Return a snapshot in which the states of these processes have these versions."""
    fragments = {
        process: replace(fragment, state=replace(fragment.state, version=versions.get(process, 1)))
        for process, fragment in snapshot.fragments.items()
        if fragment.state is not None
    }
    return replace(snapshot, fragments=fragments)


def begin(store: Store, counter: int, parent: str | None = None, epoch: int = 1) -> str:
    """Log the begin of a sample, and return its id."""
    snapshot = str(sample_id(counter, epoch))
    entry = Begin(snapshot, VIEW.number, "chandy-lamport", ("a",), at_us=10, parent=parent)
    store.append(entry, store.state().next_position)
    return snapshot


def large_blob_removed_after_its_size_was_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> BlobRef:
    """Write a blob that is removed in the middle of its next read."""
    ref = store.write_blob(begin(store, 1), bytes(MAPPED_BYTES_MIN))
    monkeypatch.setattr(store.blobs, "check_size", lambda ref: store.backend.remove([blob_name(ref)]))
    return ref


def commit(store: Store, snapshot: Snapshot, parent: str | None = None) -> str:
    """Store a snapshot in all three steps, and return its id."""
    name = begin(store, snapshot.id.counter, parent, snapshot.id.epoch)
    manifest = store.write_snapshot(snapshot)
    store.commit(name, manifest, store.state().next_position, at_us=30)
    return name


def files_of(root: Path) -> dict[str, bytes]:
    """Return every file of a store except those in tmp/, by name."""
    names = (path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file())
    return {name: (root / name).read_bytes() for name in names if not name.startswith("tmp/")}


def unchecked_commit(store: Store, snapshot: str, manifest_from: str) -> Commit:
    """A commit entry as a coordinator would append it that does not read the log first."""
    return Commit(snapshot, store.state().committed[manifest_from].manifest, at_us=99)


__all__ = [
    "FIFO",
    "VIEW",
    "begin",
    "commit",
    "declaring",
    "files_of",
    "frame",
    "frontier",
    "sample",
    "sample_id",
    "snapshot_of",
    "unchecked_commit",
]


def store_of_two_days(directory: Path) -> dict[str, str]:
    """Make a store of five snapshots, in two hours of a day and three hours of the next; return their ids."""
    store, names = Store.create(directory), {}
    for counter, hour in enumerate((1, 2, 25, 26, 27), 1):
        snapshot, at_us = str(sample_id(counter)), hour * HOUR_US
        manifest = Manifest("chandy-lamport", ("a",), VIEW, 1, at_us, at_us + 5, {})
        store.append(Begin(snapshot, 1, "chandy-lamport", ("a",), at_us), 2 * counter - 2)
        store.append(Commit(snapshot, manifest, at_us + 6), 2 * counter - 1)
        names[f"day {hour // 24}, hour {hour % 24}"] = snapshot
    return names
