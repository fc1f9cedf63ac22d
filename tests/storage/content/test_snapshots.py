"""Snapshots are read back from the store unchanged, whatever they contain."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.samples import commit, frame, sample

from strobe.declarations import Declared, MessageRule, Waits
from strobe.errors import SnapshotCorrupt
from strobe.names import is_name
from strobe.protocol.values.fragment import Fragment, LocalState, Snapshot
from strobe.protocol.values.frames import FIFO, UNORDERED, Frame, Frontier, InFlight
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Begin, BlobRef, Commit, Section
from strobe.protocol.values.view import ChannelSpec, View
from strobe.storage import Store
from strobe.storage.content.blobs import digest_of
from strobe.storage.content.frames_blob import RECORD, pack_frames, unpack_frames
from strobe.storage.content.manifests import to_manifest, to_snapshot
from strobe.storage.entries.log_file import decode_entry, encode_entry
from strobe.storage.files.backend import Piece
from strobe.storage.files.checksummed_json import UNSEALED

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
names = texts.filter(is_name)
counts = st.integers(0, 2**63 - 1)
frontiers = st.builds(Frontier, counts, st.binary(min_size=16, max_size=16))


@st.composite
def in_flight(draw: st.DrawFn) -> InFlight:
    count = draw(st.integers(1, 2**32 - 1))
    frame = Frame(draw(st.integers(0, 2**64 - 1)), count, draw(st.binary(max_size=40)))
    return InFlight(frame, draw(st.integers(0, count)))


several = st.lists(names, max_size=2).map(tuple)
places = st.booleans() | st.lists(names | st.integers(0, 99), max_size=2).map(tuple)
waits = st.recursive(names, lambda inner: st.builds(Waits, st.lists(inner, max_size=3).map(tuple), st.booleans()))
declared = st.builds(
    Declared,
    st.none() | st.builds(Waits, st.lists(waits, max_size=3).map(tuple), st.booleans(), st.booleans()),
    st.dictionaries(names, several, max_size=2),
    st.booleans(),
    st.lists(st.builds(MessageRule, names, names | st.integers(), places, places, several), max_size=2).map(tuple),
)
states = st.builds(
    LocalState,
    counts,
    st.sampled_from(["msgpack", "bytes", "keyed"]),
    st.binary(max_size=40),
    st.lists(st.tuples(texts, st.floats(0, 1e9)), max_size=2).map(tuple),
    st.none() | st.integers(0, 2**64 - 1),
    st.lists(st.binary(max_size=20), max_size=2).map(tuple),
    st.dictionaries(names, counts, max_size=2),
    st.dictionaries(names, counts, max_size=2),
    st.none() | declared,
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    processes = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    ends = st.tuples(st.sampled_from(processes), st.sampled_from(processes), st.sampled_from([FIFO, UNORDERED]))
    channels = draw(st.dictionaries(names, ends, max_size=4))
    view = View(
        draw(st.integers(0, 2**32 - 1)),
        tuple(processes),
        tuple(ChannelSpec(name, *channel) for name, channel in channels.items()),
    )
    initiator = draw(names)
    snapshot = SnapshotId(draw(st.integers(0, 10**7)), draw(st.integers(0, 10**9)), initiator)
    fragments = {}
    for process in processes:
        incoming = [channel.id for channel in view.incoming(process)]
        fragments[process] = Fragment(
            snapshot,
            process,
            view.number,
            {channel.id: draw(frontiers) for channel in view.outgoing(process)},
            {channel: draw(frontiers) for channel in incoming},
            {channel: tuple(draw(st.lists(in_flight(), max_size=3))) for channel in incoming},
            draw(states),
        )
    retried = draw(st.none() | st.builds(SnapshotId, st.integers(0, 9), st.integers(0, 9), st.just("a")))
    return Snapshot(snapshot, draw(names), (processes[0],), view, fragments, draw(counts), draw(counts), retried)


@given(snapshots())
def test_any_snapshot_is_read_back_from_its_entry_and_blobs(snapshot: Snapshot) -> None:
    blobs: dict[BlobRef, bytes] = {}

    def write(pieces: Sequence[Piece]) -> BlobRef:
        data = b"".join(pieces)
        ref = BlobRef(digest_of(pieces), len(data), begin=0)
        blobs[ref] = data
        return ref

    entry = Commit(str(snapshot.id), to_manifest(snapshot, None, write), at_us=0)
    raw, _ = encode_entry(entry, 1, UNSEALED)
    decoded, *_ = decode_entry(raw, "store", 1, UNSEALED)
    assert decoded == entry
    loaded = to_snapshot(str(snapshot.id), decoded.manifest, lambda ref: memoryview(blobs[ref]))
    assert loaded == snapshot
    assert loaded.in_flight_messages == snapshot.in_flight_messages


@settings(max_examples=10)
@given(snapshots())
def test_any_snapshot_is_read_back_from_disk(snapshot: Snapshot) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = Store.create(Path(directory) / "store")
        name = str(snapshot.id)
        store.append(Begin(name, snapshot.view.number, snapshot.protocol, snapshot.initiators, at_us=0), 0)
        store.commit(name, store.write_snapshot(snapshot), 1, at_us=0)
        assert Store.open(store.url).load(name) == snapshot
        assert store.verify_bytes() == []


def test_bodies_are_views_into_the_blob_and_states_are_bytes(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    commit(store, sample(1))
    loaded = store.load("latest").fragments["b"]
    first, second = (item.frame.body for item in loaded.in_flight["a->b"])
    assert isinstance(first, memoryview)
    assert isinstance(second, memoryview)
    assert first.obj is second.obj
    assert loaded.state is not None
    assert type(loaded.state.data) is bytes
    assert msgspec.msgpack.decode(second) == ["last"]


def packed() -> tuple[bytes, dict[str, Section]]:
    pieces, sections = pack_frames({"a": (InFlight(frame(1, "x", "y"), 1),), "b": (), "c": (InFlight(frame(4, "z")),)})
    return b"".join(pieces), sections


def test_sections_lie_one_after_the_other_and_give_frames_and_messages() -> None:
    blob, sections = packed()
    size = RECORD.size
    assert sections["a"] == Section(0, size + 5, 1, 1)
    assert sections["b"] == Section(size + 5, 0, 0, 0)
    assert sections["c"] == Section(size + 5, size + 3, 1, 1)
    assert unpack_frames(memoryview(blob), sections)["b"] == ()


@pytest.mark.parametrize(
    ("channel", "changes"),
    [
        ("a", {"offset": 1}),
        ("a", {"bytes": 28}),
        ("a", {"bytes": 30}),
        ("a", {"frames": 2}),
        ("a", {"messages": 2}),
        ("c", {"offset": 0}),
        ("c", {"bytes": 0}),
        ("c", {"bytes": 10**9}),
    ],
)
def test_sections_that_do_not_fit_the_blob_are_refused(channel: str, changes: dict[str, int]) -> None:
    blob, sections = packed()
    sections[channel] = msgspec.structs.replace(sections[channel], **changes)
    with pytest.raises(ValueError, match=r"channel|cover"):
        unpack_frames(memoryview(blob), sections)


def test_excess_bytes_and_excess_consumed_messages_are_refused() -> None:
    blob, sections = packed()
    with pytest.raises(ValueError, match="cover"):
        unpack_frames(memoryview(blob + b"\0"), sections)
    impossible = RECORD.pack(1, 2, 3, 0)
    with pytest.raises(ValueError, match="does not fit"):
        unpack_frames(memoryview(impossible), {"a": Section(0, RECORD.size, 1, 0)})


def test_a_manifest_that_does_not_fit_its_blob_is_a_corrupt_snapshot(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    name = str(sample(1).id)
    store.append(Begin(name, 1, "chandy-lamport", ("a",), at_us=0), 0)
    manifest = store.write_snapshot(sample(1))
    section = manifest.processes["b"].in_flight["a->b"]
    manifest.processes["b"].in_flight["a->b"] = msgspec.structs.replace(section, messages=99)
    store.commit(name, manifest, 1, at_us=0)
    with pytest.raises(SnapshotCorrupt, match="of process b: channel a->b"):
        store.load(name)
