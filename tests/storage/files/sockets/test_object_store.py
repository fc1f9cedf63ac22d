"""S1, S2: a store in an object store works like one on disk: one winner, atomic commits, damage named, nothing lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage import crashing_writer
from tests.storage.children import ROOT, start
from tests.storage.crashing_writer import NEW, write_new
from tests.storage.processes.test_races import race, racers
from tests.storage.random_logs import RandomLog
from tests.storage.samples import begin, commit, large_blob_removed_after_its_size_was_read, sample
from tests.support.object_server import SECRET, ObjectServer

from strobe.errors import (
    LeftBehind,
    LogConflict,
    MissingExtra,
    StoreCorrupt,
    StoreError,
    StoreFormatError,
    StoreMissing,
    TakenOver,
    UsageError,
)
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Remove, Term
from strobe.storage import CommitStep, Store, collect
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.manifests import blobs_of
from strobe.storage.files import object_store as objects_module
from strobe.storage.files.backend import MAPPED_BYTES_MIN
from strobe.storage.files.object_store import Objects
from strobe.storage.log.commit_reader import CommitReader
from strobe.storage.log.follower import Follower
from strobe.storage.store.optimistic_append import begin_term

COMMIT_ENTRY = "log/00000000000000000003.json"


@pytest.fixture
def url(objects: ObjectServer) -> str:
    return objects.new_url()


@pytest.fixture
def store(url: str) -> Store:
    return Store.create(url)


def every_file(store: Store) -> dict[str, bytes]:
    backend = store.backend
    names = ["strobe.json", *(f"log/{name}" for name in backend.names("log"))]
    for directory in backend.names("blobs"):
        names += [f"blobs/{directory}/{name}" for name in backend.names(f"blobs/{directory}")]
    return {name: backend.read(name) or b"" for name in names}


def overwrite(store: Store, name: str, data: bytes) -> None:
    import obstore

    assert isinstance(store.backend, Objects)
    obstore.put(store.backend._store, name, data)


def test_snapshots_are_stored_shared_with_their_children_and_loaded(store: Store) -> None:
    first = commit(store, sample(1))
    second = commit(store, sample(2, balance=5), parent=first)
    again = Store.open(store.url)
    assert [again.load(first), again.load(second)] == [sample(1), sample(2, balance=5)]
    shared = [ref for ref in blobs_of(again.state().committed[second].manifest) if ref.begin == 0]
    assert shared
    assert again.verify_bytes() == []


def test_S1_the_files_are_those_of_a_directory(store: Store, tmp_path: Path) -> None:
    """S1: one format. Copied to a directory, the objects are a store on local disk, which can be continued there."""
    commit(store, sample(1))
    for name, data in every_file(store).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    copy = Store.open(tmp_path)
    assert copy.load("latest") == sample(1)
    commit(copy, sample(2, balance=2), parent=str(sample(1).id))
    assert copy.load("latest") == sample(2, balance=2)
    assert copy.verify_bytes() == []


def test_S1_the_last_coordinator_to_start_is_the_only_writer(store: Store) -> None:
    """S1: the same rule as on a disk."""
    begin_term(store, "alpha pid 1", 1)
    commit(store, sample(1))
    end = store.state().next_position
    assert begin_term(Store.open(store.url), "beta pid 2", 2) == 2
    with pytest.raises(LogConflict):
        store.append(Remove(str(sample(1).id), "retention", 3), end)
    for work in (store.state, lambda: collect(store)):
        with pytest.raises(TakenOver, match="beta pid 2, term 2"):
            work()
    assert isinstance(list(Store.open(store.url).read_log())[-1][1], Term)


def test_S1_a_stopped_writer_cannot_reuse_removed_positions(url: str) -> None:
    """S1: the same rule as on a disk."""
    every = 4
    store = Store(Store.create(url).backend, checkpoint_every=every)
    stopped, reader, follower = Store.open(url), Store.open(url), Follower(url)

    def grow_and_collect(step: CommitStep, name: str) -> None:
        if step == CommitStep.ENTRY_SYNCED:
            stopped.on_step = None
            for position, entry in enumerate(RandomLog(1).entries(5 * every)):
                store.append(entry, position)
                store.write_checkpoint()
            assert "log/00000000000000000000.json" in collect(store).names

    assert reader.state().next_position == 0
    stopped.on_step = grow_and_collect
    with pytest.raises(LeftBehind):
        begin_term(stopped, "stopped", 0)
    expected = store.state().committed.keys()
    assert expected
    assert Store.open(url).state().committed.keys() == reader.state().committed.keys() == expected
    assert follower.advance() == 5 * every
    assert [one.problem for one in follower.between(0, 5 * every)] == [None] * len(follower.between(0, 5 * every))
    assert [one for one in store.verify_bytes() if not one.place.startswith("blobs/")] == []


def test_S1_exactly_one_of_racing_processes_gets_each_log_position(store: Store) -> None:
    """S1: entry n is created only if absent."""
    winners = []
    with racers(store.url, 4) as children:
        for position in range(12):
            answers = race(children, [f"append {position}"] * 4)
            assert sorted(answers) == ["lost"] * 3 + ["won"]
            winners.append(f"p{answers.index('won')}")
    entries = [entry for _, entry in Store.open(store.url).read_log()]
    assert [entry.initiators[0] for entry in entries if isinstance(entry, Begin)] == winners
    assert len(set(winners)) > 1, "one writer won every round: this was no race"
    assert store.verify_bytes() == []


def test_one_of_racing_creators_makes_the_store_and_all_use_it(url: str) -> None:
    with racers(url, 4) as children:
        assert sorted(race(children, ["append 0"] * 4)) == ["lost"] * 3 + ["won"]
    assert Store.open(url).verify_bytes() == []


def test_a_writer_whose_answer_got_lost_learns_that_it_won(store: Store, objects: ObjectServer) -> None:
    prefix = store.url.removeprefix("s3:/")
    objects.fail("PUT", f"{prefix}/log/", "lose")
    begin(store, 1)
    ((_, entry),) = store.read_log()
    with pytest.raises(LogConflict):
        # The same bytes, but another writer.
        Store.open(store.url).append(entry, 0)


def test_an_object_store_that_ignores_the_condition_is_not_used(url: str, objects: ObjectServer) -> None:
    objects.fail("PUT", f"{url.removeprefix('s3:/')}/", "ignore", times=100)
    for make in (Store.create, Store.open_or_create, Store.open_or_create):
        with pytest.raises(StoreError, match="use an object store that has conditional writes"):
            make(url)
    assert Objects(url).names("") == []


def test_nothing_is_written_into_a_removed_or_replaced_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Objects, "guarded_s", 0.0)
    begin(store, 1)
    backend = Objects(store.url)
    backend.remove(["strobe.json", *(f"log/{name}" for name in backend.names("log"))])
    writes = (lambda: begin(store, 2), lambda: store.blobs.write(0, [b"data"], {}), lambda: collect(store))
    for write in writes:
        with pytest.raises(StoreMissing, match=f"holds no store .*the identity {store.header.store} belongs here"):
            write()
    assert backend.names("") == []
    another = Store.create(store.url)
    for write in writes:
        with pytest.raises(StoreMissing, match=f"holds another store, with the identity {another.header.store}"):
            write()
    assert backend.names("") == ["strobe.json"]


def test_S1_a_log_without_its_newest_objects_is_not_continued(store: Store) -> None:
    first = commit(store, sample(1))
    commit(store, sample(2, balance=5), parent=first)
    for end in (2, 0):
        Objects(store.url).remove([f"log/{name}" for name in store.backend.names("log")[end:]])
        with pytest.raises(StoreCorrupt, match=f"the log ends before entry {end}, .* the newest entries are missing"):
            begin_term(Store.open(store.url), "here", 0)
        assert len(store.backend.names("log")) == end


def test_creating_a_store_leaves_nothing_but_its_header(store: Store) -> None:
    assert store.backend.names("") == ["strobe.json"]


def test_after_a_creator_dies_another_can_create_the_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "remove", die)
        with pytest.raises(Killed):
            Store.create(url)
    with pytest.raises(StoreFormatError, match=r"holds no store"):
        Store.open(url)
    store = Store.create(url)
    collect(store)
    assert store.backend.names("") == ["strobe.json"]


def every_step(url: str) -> list[tuple[CommitStep, str]]:
    steps: list[tuple[CommitStep, str]] = []
    commit(Store.create(url), sample(1))
    write_new(url, lambda step, name: steps.append((step, name)))
    return steps


def test_S1_a_writer_killed_at_any_step_keeps_committed_snapshots(objects: ObjectServer) -> None:
    """S1: a snapshot exists from its commit entry on, and not in part before."""
    steps = every_step(objects.new_url())
    assert {step for step, _ in steps} == set(CommitStep)
    children = []
    for fatal in _fatal_steps(steps):
        store = Store.create(objects.new_url())
        commit(store, sample(1))
        children.append((fatal, store, start(crashing_writer.__name__, store.url, str(fatal))))
    for fatal, store, child in children:
        child.communicate()
        assert child.returncode == -signal.SIGKILL
        committed = fatal >= steps.index((CommitStep.ENTRY_LINKED, COMMIT_ENTRY))
        expected = [sample(1), NEW] if committed else [sample(1)]
        assert [store.load(name) for _, name, _ in store.list()] == expected
        _go_on(store)


def _fatal_steps(steps: list[tuple[CommitStep, str]]) -> Iterator[int]:
    """Yield the last step of each kind: of the blobs, the last one; of the entries, the commit."""
    for kind in CommitStep:
        yield max(number for number, (step, _) in enumerate(steps) if step is kind)


def _go_on(store: Store) -> None:
    for name in list(store.state().open):
        store.append(Abort(name, "the coordinator crashed", 1), store.state().next_position)
    commit(store, sample(4, balance=4), parent=store.resolve("latest"))
    collect(store)
    assert store.verify_bytes() == []
    assert store.load("latest") == sample(4, balance=4)


def test_S2_damage_to_any_file_is_named(store: Store) -> None:
    """S2: every byte is under a checksum. Another test tries every byte of a store in a directory."""
    name = commit(store, sample(1))
    for place, data in every_file(store).items():
        for damage in (bytes([data[0] ^ 1]) + data[1:], data[:-1] + bytes([data[-1] ^ 128]), data[:-1], data + b"\n"):
            overwrite(store, place, damage)
            assert {problem.place for problem in store.verify_bytes()} == {place}
        with pytest.raises(Exception, match=place):
            Store.open(store.url).load(name)
        overwrite(store, place, data)
    assert store.verify_bytes() == []


def test_missing_and_foreign_files_are_named(store: Store) -> None:
    commit(store, sample(1))
    commit(store, sample(2))
    blob = next(name for name in every_file(store) if name.startswith("blobs/"))
    foreign = ["notes.txt", "log/notes.txt", "blobs/notes.txt", f"{blob.rpartition('/')[0]}/notes.txt"]
    for name in foreign:
        overwrite(store, name, b"?")
    store.backend.remove([blob, "log/00000000000000000001.json"])
    places = {problem.place for problem in store.verify_bytes()}
    assert places == {*foreign, "log/00000000000000000001.json"}
    with pytest.raises(StoreError, match="is missing, though later entries exist"):
        Store.open(store.url).state()


def test_S2_the_collector_keeps_shared_blobs_and_removes_others(store: Store) -> None:
    """S2, E8: the removal is logged first; then the blobs are removed that no complete or open snapshot needs."""
    parent = commit(store, sample(1))
    child = commit(store, sample(2, balance=2), parent=parent)
    store.append(Remove(parent, "old", 1), store.state().next_position)
    aborted = begin(store, 3)
    garbage = store.write_blob(aborted, b"nobody needs this")
    store.append(Abort(aborted, "timed out", 1), store.state().next_position)
    overwrite(store, "tmp/copied-from-a-disk", b"12345")
    foreseen = collect(store, dry_run=True)
    collected = collect(store)
    assert foreseen.names == collected.names
    assert {blob_name(garbage), "tmp/copied-from-a-disk"} < {*collected.names}
    needed = {blob_name(ref) for ref in blobs_of(store.state().committed[child].manifest)}
    assert {name for name in every_file(store) if name.startswith("blobs/")} == needed
    assert Store.open(store.url).load(child) == sample(2, balance=2)
    assert store.verify_bytes() == []
    assert collect(store).names == ()


def test_a_collector_in_another_process_takes_nothing_from_a_writer(store: Store) -> None:
    parent = commit(store, sample(1))
    with racers(store.url, 1) as (child,):
        for counter in range(2, 8):
            child.stdin.write("collect 2\n")
            name = begin(store, counter, parent)
            store.append(Remove(parent, "a newer one is on its way", 1), store.state().next_position)
            manifest = store.write_snapshot(sample(counter, balance=counter))
            store.commit(name, manifest, store.state().next_position, at_us=2)
            assert Store.open(store.url).load("latest") == sample(counter, balance=counter)
            parent = name
            child.stdout.readline()
    collect(store)
    assert store.verify_bytes() == []


def test_large_blobs_are_uploaded_and_downloaded_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "PART_BYTES", 5 << 20)  # the smallest part that S3 accepts
    name = begin(store, 1)
    data = os.urandom((11 << 20) + 7)
    ref = store.write_blob(name, data)
    writer = store.blobs.open(0)
    for start_at in range(0, len(data), 1 << 20):
        writer.write(memoryview(data)[start_at : start_at + (1 << 20)])
    assert writer.finish() == ref
    view = Store.open(store.url).read_blob(ref)
    assert view == data
    assert type(view.obj).__name__ == "mmap"
    overwrite(store, blob_name(ref), data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StoreError, match="do not match its name"):
        store.read_blob(ref)


def test_a_large_blob_removed_after_its_size_was_read_is_missing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = large_blob_removed_after_its_size_was_read(store, monkeypatch)
    with pytest.raises(StoreCorrupt, match=f"{ref.blake3}: is missing"):
        store.read_blob(ref)


@pytest.mark.parametrize("size", [0, 5, MAPPED_BYTES_MIN])
def test_blobs_of_any_size_are_read_as_written(store: Store, size: int) -> None:
    ref = store.write_blob(begin(store, 1), bytes(size))
    assert store.read_blob(ref) == bytes(size)
    writer = store.blobs.open(0)
    writer.write(b"half")
    writer.abandon()
    writer.abandon()
    assert len([name for name in every_file(store) if name.startswith("blobs/")]) == 1


def test_the_log_is_followed_and_commits_are_read_by_their_position(store: Store) -> None:
    first = commit(store, sample(1))
    follower = Follower(store.url)
    assert [one.snapshot_id for one in follower.between(0, follower.advance())] == [first]
    second = commit(store, sample(2))
    assert [one.snapshot_id for one in follower.between(2, follower.advance())] == [second]
    entry = CommitReader(store.url).read_commit(3)
    assert isinstance(entry, Commit)
    assert entry.snapshot == second
    header = store.backend.read("strobe.json")
    store.backend.remove(["strobe.json"])
    with pytest.raises(StoreError, match="is missing; put it back"):
        follower.advance()
    overwrite(store, "strobe.json", header or b"")
    assert follower.advance() == 4


def test_a_busy_object_store_is_retried_and_an_outage_is_reported(store: Store, objects: ObjectServer) -> None:
    path = f"{store.url.removeprefix('s3:/')}/log/"
    objects.fail("PUT", path, "refuse", times=2)
    begin(store, 1)
    objects.fail("GET", path, "refuse", times=objects_module.RETRIES_MAX + 1)
    with pytest.raises(StoreError, match=r"overloaded or out of order \(503 .*SlowDown\).*try again later"):
        Store.open(store.url).state()
    objects.fail("GET", path, "deny")
    with pytest.raises(StoreError, match=r"access was refused .* AWS_ACCESS_KEY_ID"):
        Store.open(store.url).state()
    assert Store.open(store.url).state().next_position == 1


def test_a_path_without_a_store_is_refused_with_advice(url: str) -> None:
    with pytest.raises(StoreFormatError, match=r"holds no store \(no strobe\.json\)"):
        Store.open(url)
    with pytest.raises(StoreError, match="the bucket does not exist; make it"):
        Store.open("s3://there-is-none/store")
    with pytest.raises(StoreError, match="the bucket does not exist; make it"):
        Store.open_or_create("s3://there-is-none/store")
    store = Store.create(url)
    with pytest.raises(UsageError, match="is a store already"):
        Store.create(url)
    overwrite(store, "notes/todo.txt", b"?")
    store.backend.remove(["strobe.json"])
    with pytest.raises(StoreFormatError, match=r"is not empty \(it holds notes\)"):
        Store.create(url)


def test_an_unreachable_object_store_is_reported_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setattr(objects_module, "RETRIES_MAX", 1)
    with pytest.raises(StoreError, match="cannot be reached; check AWS_ENDPOINT_URL") as caught:
        Store.open("s3://bucket/store")
    assert caught.value.exit_code == 3
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_extra_is_named() -> None:
    blocked = "import sys; sys.modules['obstore'] = None\nfrom strobe.storage import Store\nStore.open('s3://bucket/x')"
    result = subprocess.run([sys.executable, "-c", blocked], cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"{MissingExtra.__name__}: the store s3://bucket/x needs the extra 'objects'" in result.stderr
