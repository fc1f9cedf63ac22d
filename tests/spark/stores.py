"""Helpers that commit snapshots to a real store in the order of a real writer."""

from collections.abc import Iterable
from pathlib import Path

from strobe.errors import SnapshotError
from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.log_entries import Begin
from strobe.storage import Store


def begin(store: Store, snapshot: Snapshot) -> None:
    entry = Begin(str(snapshot.id), snapshot.view.number, snapshot.protocol, snapshot.initiators, at_us=10)
    store.append(entry, store.state().next_position)


def commit(store: Store, snapshot: Snapshot) -> None:
    begin(store, snapshot)
    manifest = store.write_snapshot(snapshot)
    store.commit(str(snapshot.id), manifest, store.state().next_position, at_us=30)


def store_with(root: Path, snapshots: Iterable[Snapshot]) -> Store:
    store = Store.create(root)
    for snapshot in snapshots:
        commit(store, snapshot)
    return store


def commit_if_possible(store: Store, snapshot: Snapshot) -> bool:
    """Commit, unless the store refuses it before writing anything, for example because a process has no state."""
    begin(store, snapshot)
    try:
        manifest = store.write_snapshot(snapshot)
    except SnapshotError:
        return False
    store.commit(str(snapshot.id), manifest, store.state().next_position, at_us=30)
    return True


def damage(path: Path) -> None:
    """Change one byte of a file."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x01
    path.write_bytes(bytes(raw))
