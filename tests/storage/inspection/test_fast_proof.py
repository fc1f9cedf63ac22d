"""The fast proof of stored snapshots (P1): it accepts a snapshot only if the definition does.

If in doubt it does not accept, and the definition decides. So its only possible mistake is to accept a snapshot that
does not hold. Each mutant here is compared with the definition for that.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from tests.causality.proof_samples import Ends, assemble, sample, snapshots
from tests.causality.test_proof_frontiers import ring
from tests.protocol.playbook import body, examples, snapshot_id
from tests.spark.mutations import HARMLESS, MUTATIONS, mutants

from strobe.causality.proof import verify
from strobe.errors import StrobeError
from strobe.protocol.values.fragment import MSGPACK, LocalState, Snapshot
from strobe.protocol.values.frames import (
    BLAKE3,
    FIFO,
    UNORDERED,
    XXH3,
    Frame,
    Frontier,
    InFlight,
    extend_all,
    seed_hash,
)
from strobe.protocol.values.log_entries import BlobRef, Manifest
from strobe.protocol.values.view import ChannelSpec, View
from strobe.storage.content.blobs import digest_of
from strobe.storage.content.manifests import to_manifest, to_snapshot
from strobe.storage.files.backend import MAPPED_BYTES_MIN, Piece
from strobe.storage.inspection import fast_proof
from strobe.storage.inspection.fast_proof import fast_accepts, prove

NAME = str(snapshot_id(1))
replace = msgspec.structs.replace


class Stored:
    """A snapshot as a store contains it: its manifest, and its blobs by their references."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.blobs: dict[BlobRef, bytes] = {}
        state = LocalState(1, MSGPACK, b"\xc0")
        fragments = {process: replace(one, state=state) for process, one in snapshot.fragments.items()}
        # A writer refuses to leave out a process of its view.
        any_view = replace(snapshot, fragments=fragments, view=View(snapshot.view.number, (), ()))
        self.manifest = replace(to_manifest(any_view, None, self._write), view=snapshot.view)

    def _write(self, pieces: Sequence[Piece]) -> BlobRef:
        data = b"".join(pieces)
        ref = BlobRef(digest_of(pieces), len(data), begin=0)
        self.blobs[ref] = data
        return ref

    def read(self, ref: BlobRef) -> memoryview:
        return memoryview(self.blobs.get(ref, b""))


def defined(manifest: Manifest, read: Callable[[BlobRef], memoryview]) -> bool:
    """Return whether the proof holds by its definition; a snapshot that cannot be assembled does not hold."""
    try:
        return verify(to_snapshot(NAME, manifest, read)).holds
    except (StrobeError, ValueError, OverflowError):
        return False


def is_common(snapshot: Snapshot) -> bool:
    """Return whether the fast proof is made for snapshots like this one."""
    consumed = any(
        item.consumed for part in snapshot.fragments.values() for items in part.in_flight.values() for item in items
    )
    return not consumed and all(channel.kind == FIFO for channel in snapshot.view.channels)


# Snapshots that hold


@examples(0.5)
@given(snapshots())
def test_the_fast_proof_accepts_exactly_the_common_snapshots(snapshot: Snapshot) -> None:
    stored = Stored(snapshot)
    assert fast_accepts(stored.manifest, stored.read) == is_common(snapshot)
    assert prove(NAME, stored.manifest, stored.read) == verify(snapshot)


@pytest.mark.parametrize("hashed_by", [XXH3, BLAKE3])
@pytest.mark.parametrize("count", [1, 15, 16, 65_535, 65_536])
def test_the_fast_proof_accepts_frames_of_every_size(hashed_by: str, count: int) -> None:
    channel = ChannelSpec("pq", "p", "q", hash=hashed_by)
    whole = assemble(View(1, ("p", "q"), (channel,)), {"pq": Ends(channel, [1, count, 2], 1, [0, 1, 2], 0)})
    stored = Stored(whole)
    assert fast_accepts(stored.manifest, stored.read)


def test_a_mapped_blob_is_proved_and_a_wrong_byte_is_detected() -> None:
    stored = Stored(ring(2, 30_000))
    ref = stored.manifest.processes["001"].frames
    assert ref is not None
    assert ref.bytes >= MAPPED_BYTES_MIN
    assert fast_accepts(stored.manifest, stored.read)
    stored.blobs[ref] = stored.blobs[ref][:-1] + b"?"
    assert not fast_accepts(stored.manifest, stored.read)


@pytest.mark.parametrize(("kind", "consumed"), [(UNORDERED, 0), (FIFO, 1)])
def test_the_definition_decides_on_unordered_channels_and_consumed_frames(kind: str, consumed: int) -> None:
    stored = Stored(sample(kind, consumed))
    assert not fast_accepts(stored.manifest, stored.read)
    assert prove(NAME, stored.manifest, stored.read).holds


def test_a_retry_of_a_snapshot_is_left_to_the_definition() -> None:
    stored = Stored(replace(sample(), retries=snapshot_id(9)))
    assert not fast_accepts(stored.manifest, stored.read)
    assert prove(NAME, stored.manifest, stored.read).holds


def test_frames_are_hashed_once_and_the_definition_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(ring(20, 3))
    monkeypatch.setattr(fast_proof, "verify", None)
    verdict = prove(NAME, stored.manifest, stored.read)
    assert (verdict.holds, verdict.channels, verdict.in_flight_frames) == (True, 20, 60)


# Snapshots that do not hold


@pytest.mark.parametrize("name", [*MUTATIONS, *HARMLESS])
def test_every_mutant_gets_the_findings_of_the_definition(name: str) -> None:
    for mutant in mutants((MUTATIONS | HARMLESS)[name], f"quick {name}", 12, 1):
        stored = Stored(mutant)
        whole = to_snapshot(str(mutant.id), stored.manifest, stored.read)
        assert prove(str(mutant.id), stored.manifest, stored.read) == verify(whole)


@pytest.mark.parametrize("hashed_by", [XXH3, BLAKE3])
def test_any_wrong_byte_of_a_frames_blob_is_not_accepted(hashed_by: str) -> None:
    """P1: first ordinals, counts, consumed, sizes and bodies; and a blob that ends early or late."""
    stored = Stored(sample(hashed_by=hashed_by))
    ref = stored.manifest.processes["q"].frames
    assert ref is not None
    right = stored.blobs[ref]
    wrong = [right[:place] + bytes((right[place] ^ 1 << bit,)) + right[place + 1 :] for place, bit in bits(right)]
    for data in (*wrong, *(right[:end] for end in range(len(right))), right + b"\0", right + right):
        stored.blobs[ref] = data
        assert not fast_accepts(stored.manifest, stored.read)
    stored.blobs[ref] = right
    assert fast_accepts(stored.manifest, stored.read)


def bits(data: bytes) -> Iterator[tuple[int, int]]:
    return ((place, bit) for place in range(len(data)) for bit in range(8))


ODD = [0, 1, 2, -1, 2**31, 2**63, 2**64, "", "p", "q", "pq", "idle", "00" * 16, "zz", XXH3, BLAKE3, FIFO, UNORDERED]
IRRELEVANT = {
    "position",
    "encoding",
    "state",
    "timers",
    "random",
    "deltas",
    "sources",
    "sinks",
    "protocol",
    "initiators",
}


@pytest.mark.parametrize("hashed_by", [XXH3, BLAKE3])
def test_the_fast_proof_accepts_only_what_the_definition_accepts(hashed_by: str) -> None:
    """Any value is replaced by an odd one or by another of the same manifest, renamed, or changed a little."""
    draw = random.Random(f"manifests {hashed_by}")
    stored = Stored(sample(hashed_by=hashed_by))
    accepted = 0
    for _ in range(3000):
        changed = msgspec.to_builtins(stored.manifest)
        change(changed, draw)
        try:
            manifest = msgspec.convert(changed, Manifest)
        except msgspec.ValidationError:
            continue
        if fast_accepts(manifest, stored.read):
            accepted += 1
            assert defined(manifest, stored.read), changed
    assert accepted, "some of it is about other things than the proof"


def change(document: Any, draw: random.Random) -> None:
    places = [(whole, key) for whole, key in members(document) if key not in IRRELEVANT]
    whole, key = draw.choice(places)
    other_whole, other_key = draw.choice(places)
    match draw.randrange(5):
        case 0:
            whole[key] = draw.choice(ODD)
        case 1:
            whole[key] = other_whole[other_key]
        case 2 if isinstance(whole, dict):
            whole[str(other_key)] = whole.pop(key)
        case 3 if isinstance(whole[key], int):
            whole[key] += draw.choice((-1, 1))
        case 4 if isinstance(whole[key], str):
            whole[key] = draw.choice((whole[key].upper(), whole[key] + " ", whole[key][:-2], whole[key] * 2))


def members(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a document, as its container and its key there."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(one, dict | list):
            yield from members(one)


# Liars with correct hashes


def forged(*frames: Frame, received: Frontier | None = None) -> Stored:
    """A channel whose sender claims to have sent exactly these frames."""
    channel = ChannelSpec("pq", "p", "q")
    received = received or Frontier(0, seed_hash("pq", 1))
    bodies = [(frame.first_ordinal, frame.count, frame.body) for frame in frames]
    sent = Frontier(received.count + sum(frame.count for frame in frames), extend_all(FIFO, b"", received.hash, bodies))
    ends = SimpleNamespace(sent=sent, received=received, in_flight=tuple(map(InFlight, frames)))
    return Stored(assemble(View(1, ("p", "q"), (channel,)), {"pq": ends}))


@pytest.mark.parametrize("hidden", [1, 15, 16, 70_000])
def test_a_forgery_that_is_correct_in_every_detail_is_accepted(hidden: int) -> None:
    stored = forged(Frame(1, 1, body("x")), Frame(2, hidden, body(*range(hidden))))
    assert fast_accepts(stored.manifest, stored.read)
    assert defined(stored.manifest, stored.read)


@pytest.mark.parametrize(
    "frames",
    [
        [Frame(0, 1, body("x"))],
        [Frame(2, 1, body("x"))],
        [Frame(1, 1, body("x")), Frame(3, 1, body("y"))],
        [Frame(1, 2, body("x", "y")), Frame(2, 1, body("y"))],
        [Frame(1, 0, body())],
        [Frame(1, 1, body("x")), Frame(2, 0, body())],
        [Frame(1, 1, b"")],
        [Frame(1, 1, b""), Frame(2, 1, body("x"))],
        [Frame(1, 2, body("x"))],
        [Frame(1, 1, body("x", "y"))],
        [Frame(1, 16, body(*range(15)))],
        [Frame(1, 16, b"\xdc\x00")],
        [Frame(1, 16, b"\xdc")],
        [Frame(1, 1, b"\x81\xa1x\x01")],
        [Frame(1, 16, b"\x80" * 17)],
        [Frame(1, 70_000, body(*range(69_999)))],
    ],
)
def test_malformed_frames_are_not_accepted_despite_a_right_hash(frames: list[Frame]) -> None:
    stored = forged(*frames)
    assert not fast_accepts(stored.manifest, stored.read)
    assert not prove(NAME, stored.manifest, stored.read).holds


@pytest.mark.parametrize(
    "frames",
    [[Frame(0x90, 1, b""), Frame(0x91, 1, body("x"))], [Frame(0xFF0, 16, b"\xdc"), Frame(0x1000, 1, body("x"))]],
)
def test_a_body_is_not_read_beyond_its_end(frames: list[Frame]) -> None:
    """The ordinals of the following frames look like the header of an array."""
    stored = forged(*frames, received=Frontier(frames[0].first_ordinal - 1, b"h" * 16))
    assert not fast_accepts(stored.manifest, stored.read)
    assert not prove(NAME, stored.manifest, stored.read).holds


@pytest.mark.parametrize("length", [0, 15, 17, 32])
def test_a_hash_of_another_length_is_not_accepted(length: int) -> None:
    """A liar could hide the beginning of a frame in it."""
    stored = forged(Frame(8, 1, body("x")), received=Frontier(7, b"h" * length))
    assert not fast_accepts(stored.manifest, stored.read)
    assert not prove(NAME, stored.manifest, stored.read).holds


def test_frames_that_reach_into_the_next_section_are_not_accepted() -> None:
    stored = forged(Frame(1, 1, body("x")), Frame(2, 1, body("y")))
    record = stored.manifest.processes["q"]
    for size in range(record.in_flight["pq"].bytes):
        section = replace(record.in_flight["pq"], bytes=size)
        changed = {**stored.manifest.processes, "q": replace(record, in_flight={"pq": section})}
        assert not fast_accepts(replace(stored.manifest, processes=changed), stored.read)


def test_two_channels_with_the_same_name_are_not_accepted() -> None:
    one, other = ChannelSpec("c", "p", "q"), ChannelSpec("c", "r", "q")
    whole = assemble(View(1, ("p", "q", "r"), (one, other)), {"c": Ends(one, [1], 0, [0], 0)})
    liar = replace(whole.fragments["p"], sent={"c": Frontier(9, b"h" * 16)})
    stored = Stored(replace(whole, fragments={**whole.fragments, "p": liar}))
    assert not defined(stored.manifest, stored.read)
    assert not fast_accepts(stored.manifest, stored.read)


@pytest.mark.parametrize("field", ["sent", "received", "in_flight"])
def test_an_extra_channel_is_not_accepted(field: str) -> None:
    stored = Stored(sample())
    record = stored.manifest.processes["p"]
    more = {**getattr(record, field), "xx": next(iter(getattr(record, field).values()))}
    changed = {**stored.manifest.processes, "p": replace(record, **{field: more})}
    assert not fast_accepts(replace(stored.manifest, processes=changed), stored.read)


# Odd numbers and views


def test_a_negative_count_is_not_accepted() -> None:
    manifest = Stored(sample()).manifest
    records = dict(manifest.processes)
    for process, field in (("q", "sent"), ("p", "received")):
        ends = getattr(records[process], field)
        changed = {**ends, "idle": replace(ends["idle"], count=-1)}
        records[process] = replace(records[process], **{field: changed})
    assert not fast_accepts(replace(manifest, processes=records), Stored(sample()).read)


@pytest.mark.parametrize(
    "view",
    [
        View(1, ("p", "q", "q"), sample().view.channels),
        View(1, ("p", "q"), (*sample().view.channels, sample().view.channels[0])),
        View(1, ("p", "q"), (*sample().view.channels, ChannelSpec("px", "p", "x"))),
        View(1, ("p", "q"), (*sample().view.channels[:2], replace(sample().view.channels[2], incarnation=-1))),
        View(1, ("p", "q"), (*sample().view.channels[:2], replace(sample().view.channels[2], hash="md5"))),
        View(1, ("p",), sample().view.channels),
        View(1, ("p", "q", "r"), sample().view.channels),
        View(1, ("p", "q"), sample().view.channels[:2]),
    ],
)
def test_an_odd_view_is_left_to_the_definition(view: View) -> None:
    stored = Stored(sample())
    assert not fast_accepts(replace(stored.manifest, view=view), stored.read)


def test_a_cached_view_is_not_used_for_another_one() -> None:
    stored = Stored(sample())
    assert fast_accepts(stored.manifest, stored.read)
    renewed = tuple(replace(channel, incarnation=2) for channel in stored.manifest.view.channels)
    assert not fast_accepts(replace(stored.manifest, view=View(1, ("p", "q"), renewed)), stored.read)
    assert fast_accepts(stored.manifest, stored.read)
