"""The format is self-contained: a reader written from docs/format.md reads stores and checks proofs without Strobe."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.storage import stranger, stranger_signatures
from tests.storage.format_example import build
from tests.storage.random_logs import RandomLog
from tests.storage.samples import BLAKE3_VIEW, VIEW, begin, commit, declaring, sample, sample_id, versioned
from tests.storage.signing import commit_signed

from strobe.causality.proof import verify
from strobe.declarations import Declared, MessageRule, Waits
from strobe.protocol.values.frames import InFlight
from strobe.protocol.values.log_entries import Abort, EpochStart, Pin, Remove
from strobe.storage import Store, collect
from strobe.storage.inspection.keys import create_keys

STRANGER = Path(stranger.__file__)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    first = commit(store, sample(1))
    commit(store, sample(2, balance=7), parent=first)
    return store


def test_the_reader_imports_nothing_of_strobe() -> None:
    tree = ast.parse(STRANGER.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"json", "struct", "sys", "pathlib", "msgspec", "xxhash", "blake3"}


def test_the_independent_reader_proves_both_snapshots(store: Store) -> None:
    command = [sys.executable, "-I", str(STRANGER), store.url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{sample_id(counter)}: the proof holds" for counter in (1, 2)]


def test_the_reader_and_the_store_agree_on_the_meaning_of_the_log(store: Store) -> None:
    def append(entry: Any) -> None:
        store.append(entry, store.state().next_position)

    first, second = (str(sample_id(counter)) for counter in (1, 2))
    third, fourth = begin(store, 3), begin(store, 4)
    append(Abort(third, "timed out", 1))
    append(Pin(second, True, 2))
    append(Remove(first, "old", 3))
    append(Remove(second, "pinned, so it stays", 4))
    append(EpochStart(2, 5))
    append(Abort(fourth, "epoch 2 has aborted it already", 6))
    begin(store, 9, epoch=1)
    commit(store, sample(1, epoch=2))
    assert list(stranger.complete_snapshots(Path(store.url))) == [name for _, name, _ in store.list()]
    assert list(store.state().committed) == [second, str(sample_id(1, epoch=2))]


@pytest.mark.parametrize("seed", range(6))
def test_the_reader_and_the_store_agree_from_a_checkpoint_on(tmp_path: Path, seed: int) -> None:
    """S1: with all entries, and with only those that a collector must keep."""
    root = tmp_path / "store"
    store = Store(Store.create(root).backend, checkpoint_every=10)
    for position, entry in enumerate(RandomLog(seed).entries(45)):
        store.append(entry, position)
        store.write_checkpoint()
    expected = {name: complete.position for name, complete in store.state().committed.items()}
    assert list(stranger.complete_snapshots(root)) == list(expected)
    assert list(stranger.complete_snapshots(root, checkpointed=False)) == list(expected)
    reader = Store.open(root)
    reader.resume()
    for position in set(range(39)) - set(reader.known.needed_commits()):
        (root / "log" / f"{position:020d}.json").unlink()
    assert list(stranger.complete_snapshots(root)) == list(expected)
    assert list(Store.open(root).state().committed) == list(expected)
    with pytest.raises(stranger.Wrong, match="missing"):
        stranger.complete_snapshots(root, checkpointed=False)


@pytest.mark.parametrize("seed", range(6))
def test_the_reader_and_the_store_agree_when_entries_were_removed(tmp_path: Path, seed: int) -> None:
    """S1: the reader knows which entries must be there, and names one that is lost."""
    root = tmp_path / "store"
    store = Store(Store.create(root).backend, checkpoint_every=5)
    for position, entry in enumerate(RandomLog(seed).entries(48)):
        store.append(entry, position)
        store.write_checkpoint()
    assert stranger.lost_entries(root) == []
    collect(store)
    assert store.positions()[0] > 0
    expected = list(Store.open(root).state().committed)
    assert list(stranger.complete_snapshots(root)) == expected
    assert stranger.lost_entries(root) == []
    for position in (*(at for at in store.state().needed_commits() if at < 39), 41, 45, 46):
        path = root / "log" / f"{position:020d}.json"
        raw = path.read_bytes()
        path.unlink()
        assert stranger.lost_entries(root) == [position]
        path.write_bytes(raw)


def test_the_worked_example_is_accepted(tmp_path: Path) -> None:
    build(tmp_path / "store")
    stranger.main(str(tmp_path / "store"))


def test_blake3_chains_are_read_and_checked(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    commit(store, sample(1, view=BLAKE3_VIEW))
    manifest = manifest_of(store)
    assert [channel.get("hash") for channel in manifest["view"]["channels"]] == ["blake3", "blake3", None]
    assert len(manifest["processes"]["a"]["sent"]["a->b"]["hash"]) == 64
    assert verify(store.load(str(sample_id(1)))).holds
    stranger.check_proof(Path(store.url), manifest)
    manifest["processes"]["a"]["sent"]["a->b"]["hash"] = "0" * 64
    with pytest.raises(stranger.Wrong, match="a->b: hashes"):
        stranger.check_proof(Path(store.url), manifest)


@pytest.mark.parametrize(
    ("place", "name", "problem"),
    [
        (0, None, "a->b: the length of a hash"),
        (0, "md5", "no fifo channel has the hash md5"),
        (2, "blake3", "no unordered channel has the hash blake3"),
    ],
)
def test_a_channel_that_claims_another_hash_is_rejected(
    tmp_path: Path, place: int, name: str | None, problem: str
) -> None:
    store = Store.create(tmp_path / "store")
    commit(store, sample(1, view=BLAKE3_VIEW))
    manifest = manifest_of(store)
    channel = manifest["view"]["channels"][place]
    channel.pop("hash", None)
    channel |= {"hash": name} if name else {}
    with pytest.raises(stranger.Wrong, match=problem):
        stranger.check_proof(Path(store.url), manifest)


def manifest_of(store: Store) -> Any:
    return stranger.complete_snapshots(Path(store.url))[str(sample_id(1))]


def drop(mapping: dict[str, Any], key: str) -> None:
    del mapping[key]


TAMPERINGS: dict[str, Callable[[Any], None]] = {
    "sent count": lambda processes: processes["a"]["sent"]["a->b"].update(count=6),
    "received count": lambda processes: processes["c"]["received"]["b~>c"].update(count=2),
    "sent hash": lambda processes: processes["b"]["sent"]["b~>c"].update(hash="0" * 32),
    "received hash": lambda processes: processes["a"]["received"]["b->a"].update(hash="0" * 32),
    "section": lambda processes: processes["b"]["in_flight"]["a->b"].update(messages=3),
    "forgotten channel": lambda processes: drop(processes["c"]["in_flight"], "b~>c"),
    "forgotten sender's end": lambda processes: drop(processes["b"]["sent"], "b~>c"),
    "forgotten process": lambda processes: drop(processes, "c"),
    "swapped blobs": lambda processes: processes["b"].update(frames=processes["c"]["frames"]),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_tampered_manifest_is_rejected(store: Store, what: str) -> None:
    manifest = manifest_of(store)
    stranger.check_proof(Path(store.url), manifest)
    TAMPERINGS[what](manifest["processes"])
    with pytest.raises(stranger.Wrong):
        stranger.check_proof(Path(store.url), manifest)


def test_a_tampered_blob_and_a_tampered_entry_are_rejected(store: Store) -> None:
    root = Path(store.url)
    for name in ("log/00000000000000000001.json", next((root / "blobs").rglob("*/*")).relative_to(root).as_posix()):
        path = root / name
        original = path.read_bytes()
        path.write_bytes(original[:-3] + bytes([original[-3] ^ 1]) + original[-2:])
        with pytest.raises(stranger.Wrong, match=path.name):
            stranger.main(store.url)
        path.write_bytes(original)


def test_a_snapshot_with_one_frame_lost_is_stored_as_it_is_and_rejected(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    broken = sample(1)
    items = broken.fragments["b"].in_flight
    items["a->b"] = items["a->b"][:1]
    commit(store, broken)
    with pytest.raises(stranger.Wrong, match="a->b: counts"):
        stranger.main(store.url)


def test_two_exchanged_frames_are_rejected_on_fifo_channels_only(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    exchanged = sample(1)
    loose = exchanged.fragments["c"].in_flight
    loose["b~>c"] = loose["b~>c"][::-1]
    name = commit(store, exchanged)
    stranger.main(store.url)
    forth = exchanged.fragments["b"].in_flight
    forth["a->b"] = (InFlight(forth["a->b"][1].frame), forth["a->b"][0])
    commit(store, msgspec.structs.replace(exchanged, id=sample_id(2)), parent=name)
    with pytest.raises(stranger.Wrong, match="a->b: hashes"):
        stranger.main(store.url)


def test_declarations_are_read_without_classes_and_are_signed(tmp_path: Path) -> None:
    """G2, P1"""
    store = Store.create(tmp_path / "store")
    keys = tmp_path / "keys"
    create_keys(keys, VIEW.processes)
    rules = (MessageRule("type", "Fork", grants=True), MessageRule(0, 7, requests=(2,), references=(1,)))
    waits = Waits.any("b", Waits.all("c", times_out=True))
    declared = Declared(waits, {"z": (), "a": ("z", "b")}, False, rules)
    signed = commit_signed(store, declaring(sample(1), a=declared, b=Declared(active=False)), keys)
    manifest = manifest_of(store)
    assert msgspec.convert(manifest["processes"]["a"]["declared"], Declared) == declared
    assert "declared" not in manifest["processes"]["c"]
    assert store.load(signed).fragments["a"].state.declared == declared  # type: ignore[union-attr]
    assert stranger_signatures.unsigned(signed, manifest, keys) == []
    manifest["processes"]["b"]["declared"]["active"] = True
    assert stranger_signatures.unsigned(signed, manifest, keys) == ["b"]


def test_versions_of_states_are_read_and_are_signed(tmp_path: Path) -> None:
    """R3, P1: a state of version 1 has the signature that it had before there were versions."""
    store = Store.create(tmp_path / "store")
    keys = tmp_path / "keys"
    create_keys(keys, VIEW.processes)
    snapshot = versioned(declaring(sample(1), b=Declared(active=False)), a=2, b=3)
    signed = commit_signed(store, snapshot, keys)
    manifest = manifest_of(store)
    records = manifest["processes"]
    assert [records[name].get("state_version") for name in "abc"] == [2, 3, None]
    assert store.load(signed).fragments["b"].state.version == 3  # type: ignore[union-attr]
    assert stranger_signatures.unsigned(signed, manifest, keys) == []
    records["a"].pop("state_version")
    records["b"]["state_version"] = 2
    records["c"]["state_version"] = 2
    assert stranger_signatures.unsigned(signed, manifest, keys) == ["a", "b", "c"]


@pytest.mark.parametrize(("idle", "ends"), [("abc", True), ("ab", False)])
def test_termination_is_recognised_without_strobe(tmp_path: Path, idle: str, ends: bool) -> None:
    """G2: if a process declares nothing, or something is in flight, it is no termination."""
    store = Store.create(tmp_path / "store")
    quiet = declaring(sample(1), **{name: Declared(active=False) for name in idle})
    commit(store, quiet)
    assert not stranger.is_terminated(manifest_of(store))
    manifest = manifest_of(store)
    for record in manifest["processes"].values():
        record.pop("timers", None)
        record["in_flight"] = {}
    assert stranger.is_terminated(manifest) == ends


def test_the_log_is_plain_json(store: Store) -> None:
    entries = [json.loads(path.read_text()) for path in sorted((Path(store.url) / "log").iterdir())]
    assert [entry["entry"]["type"] for entry in entries] == ["begin", "commit", "begin", "commit"]
