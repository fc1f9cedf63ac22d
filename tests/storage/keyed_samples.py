"""Snapshots of a keyed state, written as a live node writes them: a base, then deltas next to their parent's blobs."""

from typing import Any

import msgspec
from tests.storage.samples import begin, sample

from strobe import KeyedState
from strobe.keyed_state import Frozen
from strobe.protocol.values.fragment import KEYED
from strobe.protocol.values.log_entries import BlobRef, ProcessRecord
from strobe.storage import Store
from strobe.storage.content.keyed_state_blobs import takes_delta


class KeyedWriter:
    """Commits snapshots of the sample with a keyed state of process a, each with the one before as its parent."""

    def __init__(self, store: Store, state: KeyedState[Any], chain_max: int = 8) -> None:
        self.store = store
        self.state = state
        self.chain_max = chain_max
        self.parent: str | None = None
        self.record: ProcessRecord | None = None
        self._number = 0

    def commit(self, counter: int) -> str:
        """Commit the current state, and return the id of the snapshot."""
        name = begin(self.store, counter, self.parent)
        position = self.store.state().opened(name).position
        frozen = self.state.freeze()
        base, deltas = self._write(frozen, position)
        manifest = self.store.write_snapshot(sample(counter))
        record = msgspec.structs.replace(manifest.processes["a"], encoding=KEYED, state=base, deltas=deltas)
        manifest.processes["a"] = record
        self.store.commit(name, manifest, self.store.state().next_position, at_us=30)
        self.parent, self.record, self._number = name, record, frozen.number
        self.state.forget_changes(frozen.number)
        return name

    def _write(self, frozen: Frozen, position: int) -> tuple[BlobRef, tuple[BlobRef, ...]]:
        before = self.record
        if before is None or not takes_delta(before, self.chain_max) or not frozen.can_delta(self._number):
            return self._write_blob(frozen, position, None), ()
        return before.state, (*before.deltas, self._write_blob(frozen, position, self._number))

    def _write_blob(self, frozen: Frozen, position: int, since: int | None) -> BlobRef:
        writer = self.store.blobs.open(position)
        for piece in frozen.slices(since):
            writer.write(piece)
        ref = writer.finish()
        self.store.blobs.sync(position)
        return ref


def accounts(count: int = 100) -> KeyedState[bytes]:
    state: KeyedState[bytes] = KeyedState(bytes)
    state.update({f"account {number}": bytes([number % 256]) * 50 for number in range(count)})
    return state
