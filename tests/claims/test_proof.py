"""P1: every snapshot carries its own proof."""

from pathlib import Path

import msgspec
import pytest
from tests.protocol.network import Network
from tests.protocol.playbook import body, view
from tests.storage.samples import BLAKE3_VIEW, VIEW, begin, sample
from tests.storage.signing import commit_signed, sign

from strobe.causality.proof import verify
from strobe.protocol import FIFO, UNORDERED, ChannelSpec, Frame, InFlight, Snapshot, View
from strobe.protocol.values.frames import BLAKE3, XXH3, extend_all, seed_hash
from strobe.protocol.values.log_entries import Manifest
from strobe.storage import Store
from strobe.storage.inspection.keys import create_keys, read_public_keys
from strobe.storage.inspection.verification import Level, Signers, StoreLevels

replace = msgspec.structs.replace


def taken(protocol: str, kind: str, hashed_by: str = XXH3) -> Snapshot:
    """A snapshot, taken by the real protocol, with messages in flight from a to b."""
    plain = view("a>b:ab", "b>a:ba", kind=kind)
    channels = tuple(replace(channel, hash=hashed_by) for channel in plain.channels)
    network = Network(replace(plain, channels=channels), protocol)
    for _ in range(3):
        network.send(0, 1)
    network.take(0, 0)
    network.begin(1)
    while network.orders:
        network.apply(0)
    network.calm_down()
    return network.complete()[0]


CASES = pytest.mark.parametrize(("protocol", "kind"), [("chandy-lamport", FIFO), ("lai-yang", UNORDERED)])


@CASES
def test_P1_received_plus_in_flight_messages_equal_those_sent(protocol: str, kind: str) -> None:
    snapshot = taken(protocol, kind)
    assert snapshot.in_flight_messages > 0
    for spec in snapshot.view.channels:
        sent = snapshot.fragments[spec.source].sent[spec.id]
        received = snapshot.fragments[spec.target].received[spec.id]
        frames = [item.frame for item in snapshot.fragments[spec.target].in_flight[spec.id]]
        parts = [(frame.first_ordinal, frame.count, frame.body) for frame in frames]
        assert received.count + sum(frame.count for frame in frames) == sent.count
        assert extend_all(kind, seed_hash(spec.id, spec.incarnation), received.hash, parts) == sent.hash
    assert verify(snapshot).holds


@CASES
def test_P1_a_changed_lost_or_invented_message_is_found_with_its_channel(protocol: str, kind: str) -> None:
    snapshot = taken(protocol, kind)
    fragment = snapshot.fragments["b"]
    first, *rest = fragment.in_flight["ab"]
    changed = replace(first, frame=replace(first.frame, body=first.frame.body[:-1] + b"\x07"))
    invented = InFlight(Frame(7, 1, body("never sent")))
    for wrong in ([changed, *rest], rest, [first, *rest, invented]):
        in_flight = {**fragment.in_flight, "ab": tuple(wrong)}
        damaged = replace(snapshot, fragments={**snapshot.fragments, "b": replace(fragment, in_flight=in_flight)})
        assert {finding.subject for finding in verify(damaged).findings} == {"ab"}


@CASES
def test_P1_the_check_covers_the_view_so_omissions_are_found(protocol: str, kind: str) -> None:
    snapshot = taken(protocol, kind)
    alone = replace(snapshot, fragments={"a": snapshot.fragments["a"]})
    assert [finding.subject for finding in verify(alone).findings] == ["b"]
    larger = View(1, ("a", "b"), (*snapshot.view.channels, ChannelSpec("second", "a", "b", kind)))
    assert [finding.subject for finding in verify(snapshot, larger).findings] == ["second"]


def test_P1_the_verdict_states_what_is_unknown() -> None:
    assert str(verify(taken("chandy-lamport", FIFO))).endswith("holds (self-consistent, signer unknown)")


@pytest.mark.parametrize("hashed_by", [XXH3, BLAKE3])
def test_P1_either_hash_finds_a_swapped_message_in_flight(hashed_by: str) -> None:
    snapshot = taken("chandy-lamport", FIFO, hashed_by)
    assert verify(snapshot).holds
    fragment = snapshot.fragments["b"]
    for index, item in enumerate(fragment.in_flight["ab"]):
        items = list(fragment.in_flight["ab"])
        items[index] = replace(item, frame=replace(item.frame, body=body(*("another" for _ in item.frame.ordinals))))
        changed = replace(fragment, in_flight={**fragment.in_flight, "ab": tuple(items)})
        verdict = verify(replace(snapshot, fragments={**snapshot.fragments, "b": changed}))
        assert [(finding.check, finding.subject) for finding in verdict.findings] == [("hash", "ab")]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    create_keys(tmp_path / "keys", ["a", "b", "c"])
    return tmp_path / "keys"


def signed(directory: Path, keys: Path) -> tuple[str, Manifest]:
    """Create a store with BLAKE3 hashes and signatures of all processes: where a forgery begins."""
    store = Store.create(directory)
    name = commit_signed(store, sample(1, view=BLAKE3_VIEW), keys)
    assert StoreLevels(store, Signers(read_public_keys(keys))).verify(name, Level.CAUSAL).findings == ()
    return name, store.state().committed[name].manifest


def rewritten(directory: Path, snapshot: Snapshot, signatures: Manifest) -> Store:
    """A store whose every byte is rewritten by a forger, except for the signatures, which are the true ones."""
    store = Store.create(directory)
    name = begin(store, snapshot.id.counter)
    manifest = store.write_snapshot(snapshot)
    records = {
        process: replace(record, signature=signatures.processes[process].signature)
        for process, record in manifest.processes.items()
    }
    store.commit(name, replace(manifest, processes=records), store.state().next_position, at_us=30)
    return store


@pytest.mark.parametrize(
    ("forged", "caught"),
    [(sample(1, balance=7, view=BLAKE3_VIEW), ["a", "b"]), (sample(1, view=VIEW), ["a", "b", "c"])],
    ids=["other messages", "a weaker hash"],
)
def test_P1_signatures_find_rewritten_frames_and_frontiers(
    tmp_path: Path, keys: Path, forged: Snapshot, caught: list[str]
) -> None:
    name, manifest = signed(tmp_path / "true", keys)
    store = rewritten(tmp_path / "forged", forged, manifest)
    assert StoreLevels(store).verify(name, Level.CAUSAL).findings == ()
    found = StoreLevels(store, Signers(read_public_keys(keys))).verify(name, Level.CAUSAL).findings
    assert [(finding.check, finding.subject) for finding in found] == [("signature", process) for process in caught]


def test_P1_the_chain_finds_wrong_frames_signed_by_the_receiver(tmp_path: Path, keys: Path) -> None:
    """The receiver's signature is valid, since it has its key; but the sender signed a hash of other frames."""
    forged = sample(1, view=BLAKE3_VIEW)
    b = forged.fragments["b"]
    first, last = b.in_flight["a->b"]
    b.in_flight["a->b"] = (first, replace(last, frame=replace(last.frame, body=body("last but not sent"))))
    store = Store.create(tmp_path / "store")
    name = begin(store, 1)
    store.commit(name, sign(name, store.write_snapshot(forged), keys), store.state().next_position, at_us=30)
    found = StoreLevels(store, Signers(read_public_keys(keys))).verify(name, Level.CAUSAL).findings
    assert [(finding.check, finding.subject) for finding in found] == [("hash", "a->b")]
