"""Signed snapshots, for tests of signature checks."""

from pathlib import Path

import msgspec
from tests.storage.samples import begin

from strobe.causality.signatures import sign_record
from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.log_entries import Manifest
from strobe.storage import Store
from strobe.storage.inspection.keys import private_path, read_private_key


def sign(name: str, manifest: Manifest, keys: Path) -> Manifest:
    """Sign the part of every process with its key from the directory `keys`."""
    records = {
        process: sign_record(name, manifest.view, process, record, read_private_key(private_path(keys, process)))
        for process, record in manifest.processes.items()
    }
    return msgspec.structs.replace(manifest, processes=records)


def commit_signed(store: Store, snapshot: Snapshot, keys: Path) -> str:
    """Store a snapshot that its processes have signed, and return its id."""
    name = begin(store, snapshot.id.counter, epoch=snapshot.id.epoch)
    manifest = sign(name, store.write_snapshot(snapshot), keys)
    store.commit(name, manifest, store.state().next_position, at_us=30)
    return name
