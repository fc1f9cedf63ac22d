"""Compares two snapshots: each process by position and state, each channel by its message counts.

States are read only if their blobs differ. Two snapshots of different epochs may be on different timelines. The numbers
then show how the second differs from the first, and may decrease.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import xxhash

from strobe.errors import UNREADABLE, SnapshotCorrupt, StoreCorrupt
from strobe.keyed_state import Key, merged_entries
from strobe.protocol.values.fragment import KEYED, MSGPACK
from strobe.protocol.values.log_entries import Manifest, ProcessRecord
from strobe.protocol.values.view import ChannelSpec
from strobe.storage.content.manifest_check import require_whole
from strobe.storage.inspection.value_diff import ADDED, CHANGED, REMOVED, FieldChange, changed_fields
from strobe.storage.store.snapshot_names import resolve
from strobe.storage.store.store import Store

Segments = Sequence[bytes | memoryview]
Form = Callable[[msgspec.Raw], bytes | memoryview]
"""Returns the form of a value used for the comparison."""

EXAMPLES_MAX = 3
"""Maximum number of keys of each kind shown with their values."""


class Change(msgspec.Struct, frozen=True):
    """A number, before and after."""

    before: int
    after: int

    @property
    def by(self) -> int:
        return self.after - self.before


class KeyedChange(msgspec.Struct, frozen=True):
    """The number of keys of a keyed state that were added, changed and deleted, with examples of each."""

    added: int
    changed: int
    deleted: int
    examples: list[FieldChange] = []


class ProcessDifference(msgspec.Struct, frozen=True):
    """A process in both snapshots. `fields` are those of a decoded state; opaque states are only equal or not."""

    process: str
    position: Change
    state_bytes: Change
    same_state: bool
    fields: list[FieldChange] = []
    keyed: KeyedChange | None = None
    sources: list[FieldChange] = []
    sinks: list[FieldChange] = []


class ChannelDifference(msgspec.Struct, frozen=True):
    """A channel in both snapshots, in the same incarnation; `in_flight` counts messages."""

    channel: str
    sent: Change
    received: Change
    in_flight: Change


class Difference(msgspec.Struct, frozen=True):
    """All differences between two snapshots, and when they were taken."""

    before: str
    after: str
    epoch: Change
    view: Change
    started_us: Change
    duration_us: Change
    processes_added: list[str]
    processes_removed: list[str]
    channels_added: list[str]
    channels_removed: list[str]
    processes: list[ProcessDifference]
    channels: list[ChannelDifference]


def compare(store: Store, before: str, after: str) -> Difference:
    """Compare two complete snapshots of `store`, named as users name them.

    SnapshotNotFound: there is no snapshot of that name, or it was removed during the comparison.
    """
    state = store.state()
    names = resolve(state, before), resolve(state, after)
    try:
        return _compare(store, names, [state.committed[name].manifest for name in names])
    except StoreCorrupt:
        for name in names:
            store.resolve(name)  # a snapshot that was removed meanwhile is not damaged
        raise


def _compare(store: Store, names: tuple[str, str], manifests: Sequence[Manifest]) -> Difference:
    for name, manifest in zip(names, manifests, strict=True):
        require_whole(name, manifest)
    first, second = manifests
    return Difference(
        *names,
        Change(first.epoch, second.epoch),
        Change(first.view.number, second.view.number),
        Change(first.started_us, second.started_us),
        Change(first.completed_us - first.started_us, second.completed_us - second.started_us),
        [name for name in second.view.processes if name not in first.view.processes],
        [name for name in first.view.processes if name not in second.view.processes],
        [channel.id for channel in second.view.channels if not _has(first, channel)],
        [channel.id for channel in first.view.channels if not _has(second, channel)],
        [
            _readable_process(store, names, name, first.processes[name], second.processes[name])
            for name in first.processes
            if name in second.processes
        ],
        list(_channels(first, second)),
    )


def compare_keyed(first: Segments, second: Segments, form: Form = memoryview) -> KeyedChange:
    """Compare two keyed states, each a base with deltas. Keys and hashes of the first are held in memory.

    Values are equal if `form` returns the same for both; by default their bytes are compared.
    """
    hashes = {key: xxhash.xxh3_128_digest(form(value)) for key, value in merged_entries(first)}
    found: dict[str, list[Key]] = {ADDED: [], CHANGED: []}
    values: dict[Key, Any] = {}
    for key, value in merged_entries(second):
        known = hashes.pop(key, None)
        if known == xxhash.xxh3_128_digest(form(value)):
            continue
        kind = found[ADDED if known is None else CHANGED]
        kind.append(key)
        if len(kind) <= EXAMPLES_MAX:
            values[key] = msgspec.msgpack.decode(value)
    found[REMOVED] = list(hashes)
    examples = list(_examples(first, found, values))
    return KeyedChange(len(found[ADDED]), len(found[CHANGED]), len(found[REMOVED]), examples)


def _has(manifest: Manifest, channel: ChannelSpec) -> bool:
    """Return whether the channel exists with the same ordinals: a later incarnation counts from 1 again."""
    return any((one.id, one.incarnation) == (channel.id, channel.incarnation) for one in manifest.view.channels)


def _channels(first: Manifest, second: Manifest) -> Iterator[ChannelDifference]:
    for channel in second.view.channels:
        if _has(first, channel):
            ends = [_ends(manifest, channel) for manifest in (first, second)]
            yield ChannelDifference(channel.id, *(Change(*pair) for pair in zip(*ends, strict=True)))


def _ends(manifest: Manifest, channel: ChannelSpec) -> tuple[int, int, int]:
    source, target = manifest.processes[channel.source], manifest.processes[channel.target]
    return source.sent[channel.id].count, target.received[channel.id].count, target.in_flight[channel.id].messages


def _readable_process(
    store: Store, names: tuple[str, str], name: str, first: ProcessRecord, second: ProcessRecord
) -> ProcessDifference:
    try:
        return _process(store, name, first, second)
    except (*UNREADABLE, ValueError, TypeError) as error:  # the latter two: invalid segments and keys
        problem = f"the state of process {name}, or that in snapshot {names[0]}, cannot be read: {error}"
        raise SnapshotCorrupt(names[1], f"{problem}; see `strobe snapshot show`") from error


def _process(store: Store, name: str, first: ProcessRecord, second: ProcessRecord) -> ProcessDifference:
    same = _digests(first) == _digests(second)
    plain = not same and first.encoding == second.encoding == MSGPACK
    keyed = not same and first.encoding == second.encoding == KEYED
    return ProcessDifference(
        name,
        Change(first.position, second.position),
        Change(_size(first), _size(second)),
        same,
        list(changed_fields(_decode(store, first), _decode(store, second))) if plain else [],
        compare_keyed(_segments(store, first), _segments(store, second)) if keyed else None,
        list(changed_fields(first.sources, second.sources)),
        list(changed_fields(first.sinks, second.sinks)),
    )


def _digests(record: ProcessRecord) -> tuple[str, ...]:
    return (record.encoding, record.state.blake3, *(delta.blake3 for delta in record.deltas))


def _size(record: ProcessRecord) -> int:
    return record.state.bytes + sum(delta.bytes for delta in record.deltas)


def _decode(store: Store, record: ProcessRecord) -> object:
    return msgspec.msgpack.decode(store.read_blob(record.state))


def _segments(store: Store, record: ProcessRecord) -> list[memoryview]:
    return [store.read_blob(ref) for ref in (record.state, *record.deltas)]


def _examples(first: Segments, found: dict[str, list[Key]], after: dict[Key, Any]) -> Iterator[FieldChange]:
    """Yield some keys of each kind with their values. The first state is read again for its values."""
    shown = {kind: keys[:EXAMPLES_MAX] for kind, keys in found.items()}
    wanted = {*shown[CHANGED], *shown[REMOVED]}
    before = {key: msgspec.msgpack.decode(value) for key, value in merged_entries(first) if key in wanted}
    for kind, keys in shown.items():
        for key in keys:
            yield FieldChange(f"[{key!r}]", kind, before.get(key), after.get(key))
