"""The promises about the store. More thorough tests are in tests/storage."""

import re
import signal
from pathlib import Path

import msgspec
import pytest
from tests.storage import crashing_writer, racing_writer, stranger
from tests.storage.children import start
from tests.storage.samples import begin, commit, files_of, sample, unchecked_commit

from strobe.errors import LogConflict, SnapshotIncomplete, StoreFormatError
from strobe.protocol.values.log_entries import Abort, EpochStart, Remove
from strobe.storage import CommitStep, Store, collect


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture(params=["disk", "objects"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store on local disk, and one in an object store."""
    if request.param == "disk":
        return Store.create(tmp_path / "store")
    return Store.create(request.getfixturevalue("objects").new_url())


def test_S1_a_reader_written_from_the_format_page_reads_a_store(store: Store) -> None:
    commit(store, sample(1))
    (manifest,) = stranger.complete_snapshots(Path(store.url)).values()
    stranger.check_proof(Path(store.url), manifest)


def test_S1_a_store_of_another_version_is_refused(store: Store) -> None:
    header = Path(store.url) / "strobe.json"
    header.write_bytes(header.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(StoreFormatError, match=r"version 2 .* version 1"):
        Store.open(store.url)


def test_S1_of_two_processes_that_append_the_same_entry_exactly_one_wins(any_store: Store) -> None:
    with start(racing_writer.__name__, any_store.url, "p") as p, start(racing_writer.__name__, any_store.url, "q") as q:
        for position in range(20):
            for racer in (p, q):
                racer.stdin.write(f"append {position}\n")
            assert {racer.stdout.readline() for racer in (p, q)} == {"won\n", "lost\n"}
    assert [position for position, _ in any_store.read_log()] == list(range(20))


def test_S1_the_first_outcome_wins(any_store: Store) -> None:
    first = commit(any_store, sample(1))
    second = begin(any_store, 2)
    for entry in (
        Abort(second, "timed out", 0),
        unchecked_commit(any_store, second, first),
        Abort(first, "too late", 0),
    ):
        any_store.append(entry, any_store.state().next_position)
    assert list(any_store.state().committed) == [first]
    assert any_store.state().aborted == {second: "timed out"}


def test_S1_a_stale_coordinator_cannot_commit(any_store: Store) -> None:
    name = begin(any_store, 1)
    stale = Store.open(any_store.url)
    manifest = stale.write_snapshot(sample(1))
    any_store.append(EpochStart(2, 0), 1)
    with pytest.raises(SnapshotIncomplete, match="epoch 2"):
        stale.commit(name, manifest, stale.state().next_position, at_us=0)
    with pytest.raises(LogConflict):
        stale.append(Abort(name, "has not read entry 1", 0), 1)
    assert any_store.list() == []


@pytest.mark.parametrize("step", [CommitStep.BLOB_LINKED, CommitStep.ENTRY_SYNCED, CommitStep.ENTRY_LINKED])
def test_S1_a_commit_is_atomic_when_its_writer_is_killed(tmp_path: Path, step: CommitStep) -> None:
    steps: list[CommitStep] = []
    for name in ("rehearsal", "store"):
        commit(Store.create(tmp_path / name), sample(1))
    crashing_writer.write_new(str(tmp_path / "rehearsal"), lambda step, name: steps.append(step))
    last = len(steps) - 1 - steps[::-1].index(step)
    child = start(crashing_writer.__name__, str(tmp_path / "store"), str(last))
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    store = Store.open(tmp_path / "store")
    expected = [sample(1), crashing_writer.NEW] if step is CommitStep.ENTRY_LINKED else [sample(1)]
    assert [store.load(name) for _, name, _ in store.list()] == expected


def test_S2_a_changed_byte_in_any_file_is_detected_and_the_file_is_named(store: Store) -> None:
    commit(store, sample(1))
    root = Path(store.url)
    for name, original in files_of(root).items():
        middle = len(original) // 2
        (root / name).write_bytes(original[:middle] + bytes([original[middle] ^ 1]) + original[middle + 1 :])
        assert {problem.place for problem in store.verify_bytes()} == {name}
        (root / name).write_bytes(original)
    assert store.verify_bytes() == []


def test_S2_blobs_are_shared_with_the_parent_and_survive_its_removal(store: Store) -> None:
    first = commit(store, sample(1))
    child = begin(store, 2, parent=first)
    store.append(Remove(first, "retention", 0), store.state().next_position)
    assert collect(store).names == (), "the parent of an open snapshot is a root"
    manifest = store.write_snapshot(sample(2, balance=7))
    assert manifest.processes["c"].state.begin == 0, "the state of c has not changed"
    store.commit(child, manifest, store.state().next_position, at_us=0)
    assert len(collect(store).names) == 2, "what only the parent had is swept"
    assert store.load(child) == sample(2, balance=7)


def test_S3_stored_bytes_are_json_or_messagepack_and_opaque_ones_marked(store: Store) -> None:
    commit(store, sample(1))
    for name, raw in files_of(Path(store.url)).items():
        if not name.startswith("blobs/"):
            msgspec.json.decode(raw)
    fragments = store.load("latest").fragments
    assert {name: fragment.state.encoding for name, fragment in fragments.items()} == {
        "a": "msgpack",
        "b": "msgpack",
        "c": "bytes",
    }
    assert msgspec.msgpack.decode(fragments["a"].state.data) == {"balance": 100}
    bodies = [item.frame.body for item in fragments["b"].in_flight["a->b"]]
    assert [msgspec.msgpack.decode(body) for body in bodies] == [[{"amount": 3}, {"amount": 100}], ["last"]]


def test_S3_nothing_from_store_or_wire_is_unpickled_or_evaluated() -> None:
    forbidden = re.compile(r"\bimport (pickle|marshal|shelve|dill)\b|\b(pickle|marshal)\.|(?<![.\w])(eval|exec)\(")
    for package in ("storage", "runtime", "protocol", "causality", "traces"):
        for path in (Path(__file__).parents[2] / "src" / "strobe" / package).rglob("*.py"):
            assert not forbidden.search(path.read_text("utf-8")), path
