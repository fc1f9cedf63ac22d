"""Loads and checks one process's part of a complete snapshot (R1, E9)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from strobe.errors import (
    ProtocolViolation,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotIncomplete,
    StoreCorrupt,
    UsageError,
    UserCodeFailed,
)
from strobe.keyed_state import KeyedState
from strobe.protocol import PROTOCOLS, Endpoint, Fragment, LocalState, View
from strobe.protocol.values.log_entries import EntryRef, Manifest, ProcessRecord
from strobe.runtime.links.message_decoding import Decode, decode_frame
from strobe.storage import Store
from strobe.storage.content.manifests import to_snapshot
from strobe.storage.content.state_codec import decode_captured, encoding_of, require_state, version_of
from strobe.user_code import RAISED, explain, is_failure

WAY_OUT = "restore a snapshot of the same program, or run the program that took this one"


class Unrestorable(SnapshotError):
    """The current process cannot continue from its recorded state; retrying cannot help (E9)."""


class Restored(msgspec.Struct):
    """One process's part of `snapshot`: its decoded state, and what it needs to continue.

    `sent_counts` are those of the senders of its incoming channels, at the cut. `frozen_number` is that of a keyed
    state as it was read: later changes can be written as a delta on the stored state (E5). `version` is that of the
    state's type in this program (R3).
    """

    snapshot: str
    fragment: Fragment
    local: LocalState
    record: ProcessRecord
    sent_counts: dict[str, int]
    state: Any = None
    frozen_number: int | None = None
    version: int = 1
    fork: bool = False

    @property
    def name(self) -> str:
        return self.snapshot

    @property
    def origin(self) -> str:
        """The snapshot, and both versions of a migrated state, as text."""
        if self.version == self.record.state_version:
            return self.snapshot
        return f"{self.snapshot}, with its state migrated from version {self.record.state_version} to {self.version}"


Find = Callable[[Store, str, EntryRef | None], tuple[str, Manifest]]


def load_part(
    store: Store,
    snapshot: str,
    commit: EntryRef | None,
    newest: EntryRef | None,
    process: str,
    example: Any,
    decode: Decode,
    find: Find,
) -> Restored:
    """Read the part of `process` from the store, with every byte verified. Its `commit` is searched for if not given.

    `newest` is the newest log entry that is known: a store without it is an older copy, and lacks what it lacks.
    `example` is a state as the process captures it now; `decode` decodes its messages. Both must fit before anything is
    changed. `find` reads the manifest.
    """
    try:
        return _load(store, *find(store, snapshot, commit), process, example, decode)
    except StoreCorrupt:
        if newest is None:
            raise
    # An older copy of the store may be in its place, or may have been for a moment.
    store.require_present(newest)
    return _load(store, *find(store, snapshot, commit), process, example, decode)


def find(store: Store, snapshot: str, commit: EntryRef | None) -> tuple[str, Manifest]:
    """Return the id and manifest of a complete snapshot from its `commit`; without that, the whole log is read."""
    if commit is None:
        identity = store.resolve(snapshot)
        return identity, store.known.committed[identity].manifest
    entry = store.read_commit(commit)
    if entry.snapshot != snapshot:
        raise SnapshotCorrupt(snapshot, f"log entry {commit.position} has committed {entry.snapshot} instead")
    return snapshot, entry.manifest


def _load(store: Store, identity: str, manifest: Manifest, process: str, example: Any, decode: Decode) -> Restored:
    record = manifest.processes.get(process)
    if record is None:
        raise SnapshotIncomplete(identity, f"it has no part of process {process!r}; restore another one")
    part = msgspec.structs.replace(manifest, processes={process: record})
    fragment = to_snapshot(identity, part, store.read_blob).fragments[process]
    assert fragment.state is not None, "a committed part has a state"
    sent = {
        channel.id: manifest.processes[channel.source].sent[channel.id].count
        for channel in manifest.view.incoming(process)
    }
    state = fit_state(identity, process, fragment.state, example)
    fit_in_flight(identity, process, fragment, decode)
    # A migrated state differs from the stored one in every value, so no delta can be based on that.
    version = version_of(example)
    number = _freeze_number(state) if version == record.state_version else None
    return Restored(identity, fragment, fragment.state, record, sent, state, number, version)


def _freeze_number(state: Any) -> int | None:
    if not isinstance(state, KeyedState):
        return None
    with state.freeze() as frozen:
        return frozen.number


def fit_state(snapshot: str, process: str, local: LocalState, example: Any) -> Any:
    """Return the decoded state; raise Unrestorable if its type is not the one the process has now (E9)."""
    try:
        require_state(process, example)
        encoding = encoding_of(example)
        if encoding != local.encoding:
            raise ValueError(f"it was captured as {local.encoding}, and capture() now gives {encoding}")
        return decode_captured(example, local)
    except (ValueError, UsageError, UserCodeFailed) as error:  # msgspec's errors are ValueErrors
        raise Unrestorable(snapshot, f"the state of process {process!r} does not fit: {error}; {WAY_OUT}") from error


def fit_in_flight(snapshot: str, process: str, fragment: Fragment, decode: Decode) -> None:
    """Raise Unrestorable if a message in flight to the process is no longer one of its types (E9)."""
    for channel, items in fragment.in_flight.items():
        for item in items:
            try:
                decode_frame(decode, process, channel, item.frame)
            except ProtocolViolation as error:
                raise Unrestorable(snapshot, f"what was in flight does not fit: {error}; {WAY_OUT}") from error


@contextmanager
def becoming(snapshot: str, process: str) -> Iterator[None]:
    """Turn any error of the user's `restore` into Unrestorable."""
    try:
        yield
    except RAISED as error:
        if not is_failure(error):
            raise
        raise Unrestorable(snapshot, f"restore() of process {process!r} fails: {explain(error)}; {WAY_OUT}") from error


def new_endpoint(protocol: str, process: str, view: View, epoch: int, restored: Restored | None) -> Endpoint:
    """Return the endpoint of `process` at the start of `epoch`."""
    kind = PROTOCOLS[protocol]
    if restored is None:
        return kind(process, view, epoch)
    return kind.restored(process, view, epoch, restored.fragment, restored.sent_counts)
