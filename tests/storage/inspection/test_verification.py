"""Verification in levels: each finds what the earlier ones cannot, and reports what it examined (S4)."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.storage.samples import begin, commit, sample
from tests.storage.signing import commit_signed

from strobe.errors import MissingExtra, SnapshotNotFound
from strobe.protocol.values.log_entries import ProcessRecord
from strobe.storage import Store, collect
from strobe.storage.inspection.keys import create_keys, read_public_keys
from strobe.storage.inspection.verification import Level, Signers, StoreLevels
from strobe.storage.store import retention


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    create_keys(tmp_path / "keys", ["a", "b", "c"])
    return tmp_path / "keys"


def verdicts(store: Store, name: str) -> dict[str, str]:
    return {str(level): StoreLevels(store).verify(name, level).verdict for level in list(Level)[:3]}


def blob_of(store: Store, name: str, process: str = "a") -> Path:
    ref = store.state().committed[name].manifest.processes[process].state
    return Path(store.url) / f"blobs/{ref.begin:020d}/{ref.blake3}"


def test_each_level_includes_those_before_it() -> None:
    assert Level.EXISTS.included == (Level.EXISTS,)
    assert Level.CAUSAL.included == (Level.EXISTS, Level.CHECKSUMS, Level.CAUSAL)
    assert Level.RESTORE.included == tuple(Level)


def test_a_sound_snapshot_holds_at_every_level_with_details(store: Store) -> None:
    verified = StoreLevels(store).verify(commit(store, sample(1)), Level.CAUSAL)
    assert verified.holds
    assert [(str(check.level), check.verdict) for check in verified.checks] == [
        ("exists", "holds"),
        ("checksums", "holds"),
        ("causal", "holds"),
    ]
    assert verified.checks[0].detail.startswith("5 blobs of ")
    assert verified.checks[2].detail == "proof on 3 channels (self-consistent, signer unknown)"


def test_a_missing_blob_is_found_by_existence(store: Store) -> None:
    name = commit(store, sample(1))
    path = blob_of(store, name)
    path.unlink()
    assert verdicts(store, name) == dict.fromkeys(("exists", "checksums", "causal"), "corrupt")
    verified = StoreLevels(store).verify(name, Level.CAUSAL)
    assert [str(check.level) for check in verified.checks] == ["exists"]
    assert verified.findings[0].subject.endswith(path.name)
    assert "is missing" in verified.findings[0].problem


def test_a_truncated_blob_is_found_by_existence(store: Store) -> None:
    name = commit(store, sample(1))
    path = blob_of(store, name)
    path.write_bytes(path.read_bytes()[:-1])
    assert "bytes instead of" in StoreLevels(store).verify(name, Level.EXISTS).findings[0].problem


def test_a_changed_byte_is_found_by_checksums_and_not_before(store: Store) -> None:
    name = commit(store, sample(1))
    path = blob_of(store, name)
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert verdicts(store, name) == {"exists": "holds", "checksums": "corrupt", "causal": "corrupt"}


def test_a_lost_message_is_found_by_the_causal_proof_and_not_before(store: Store) -> None:
    whole = sample(1)
    lost = {channel: items[1:] for channel, items in whole.fragments["b"].in_flight.items()}
    fragments = {**whole.fragments, "b": msgspec.structs.replace(whole.fragments["b"], in_flight=lost)}
    name = commit(store, msgspec.structs.replace(whole, fragments=fragments))
    assert verdicts(store, name) == {"exists": "holds", "checksums": "holds", "causal": "violated"}


def test_sections_that_do_not_fit_their_blob_are_named(store: Store) -> None:
    name = begin(store, 1)
    manifest = store.write_snapshot(sample(1))
    record = manifest.processes["b"]
    section = msgspec.structs.replace(record.in_flight["a->b"], messages=9)
    wrong = msgspec.structs.replace(record, in_flight={**record.in_flight, "a->b": section})
    manifest = msgspec.structs.replace(manifest, processes={**manifest.processes, "b": wrong})
    store.commit(name, manifest, store.state().next_position, at_us=0)
    verified = StoreLevels(store).verify(name, Level.CAUSAL)
    assert verified.verdict == "corrupt"
    assert "not what its section says" in verified.findings[0].problem


def test_states_are_not_read_again_for_the_proof(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be gigabytes: with checksums, each blob is read once, and frames once more for the proof."""
    name = commit(store, sample(1))
    other = commit(store, sample(2), parent=name)
    read: list[str] = []
    plain = type(store.blobs).read
    monkeypatch.setattr(
        type(store.blobs), "read", lambda self, ref, **options: read.append(ref.blake3) or plain(self, ref, **options)
    )
    levels = StoreLevels(store)
    assert levels.verify(name, Level.CAUSAL).holds
    assert levels.verify(other, Level.CAUSAL).holds
    states = [record.state.blake3 for record in store.state().committed[name].manifest.processes.values()]
    assert [read.count(state) for state in states] == [1, 1, 1]


def test_an_incomplete_snapshot_is_not_verified(store: Store) -> None:
    with pytest.raises(SnapshotNotFound):
        StoreLevels(store).verify("000001-00000009-a", Level.EXISTS)


@pytest.mark.parametrize("reading", ["check_size", "read"])
def test_E8_a_snapshot_removed_during_verification_is_not_corrupt(
    store: Store, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    name = commit(store, sample(1))
    commit(store, sample(2, balance=5))
    read = getattr(store.blobs, reading)

    def read_late(*arguments: Any, **options: Any) -> Any:
        retention.remove(Store.open(store.url), name, "retention", 0)
        collect(Store.open(store.url))
        return read(*arguments, **options)

    monkeypatch.setattr(store.blobs, reading, read_late)
    with pytest.raises(SnapshotNotFound, match="was removed: retention"):
        StoreLevels(store).verify(name, Level.CAUSAL)
    assert StoreLevels(store).verify("latest", Level.CAUSAL).holds


def test_P1_with_keys_the_verdict_names_the_signers(store: Store, keys: Path) -> None:
    signers = Signers(read_public_keys(keys))
    name = commit_signed(store, sample(1), keys)
    verified = StoreLevels(store, signers).verify(name, Level.CAUSAL)
    assert verified.checks[-1].detail == "proof on 3 channels (signed by all 3 processes)"
    unsigned = commit(store, sample(2))
    assert StoreLevels(store).verify(unsigned, Level.CAUSAL).holds
    findings = StoreLevels(store, signers).verify(unsigned, Level.CAUSAL).findings
    assert [str(finding) for finding in findings] == [f"{p}: has not signed its part [signature]" for p in "abc"]


def test_P1_only_signatures_detect_a_store_rewritten_as_a_whole(store: Store, keys: Path) -> None:
    """New bytes with a new checksum, in a log that was sealed again: everything except the signature is correct."""
    whole = sample(1)
    name = commit_signed(store, whole, keys)
    signature = store.state().committed[name].manifest.processes["a"].signature
    forged = Store.create(Path(store.url).parent / "forged")
    rich = msgspec.structs.replace(whole.fragments["a"].state, data=msgspec.msgpack.encode({"balance": 10**6}))
    fragments = {**whole.fragments, "a": msgspec.structs.replace(whole.fragments["a"], state=rich)}
    begin(forged, 1)
    manifest = forged.write_snapshot(msgspec.structs.replace(whole, fragments=fragments))
    honest = store.state().committed[name].manifest.processes
    record: ProcessRecord = msgspec.structs.replace(manifest.processes["a"], signature=signature)
    manifest = msgspec.structs.replace(manifest, processes={**honest, "a": record})
    forged.commit(name, manifest, forged.state().next_position, at_us=30)
    assert forged.verify_bytes() == []
    assert StoreLevels(forged).verify(name, Level.CAUSAL).holds
    verified = StoreLevels(forged, Signers(read_public_keys(keys))).verify(name, Level.CAUSAL)
    assert verified.verdict == "violated"
    assert [finding.subject for finding in verified.findings] == ["a"]


def test_signatures_cannot_be_checked_without_the_extra(
    store: Store, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signers = Signers(read_public_keys(keys))
    name = commit_signed(store, sample(1), keys)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(MissingExtra):
        StoreLevels(store, signers).verify(name, Level.CAUSAL)
