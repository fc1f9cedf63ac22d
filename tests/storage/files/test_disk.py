"""Files on disk: written whole or not at all, and each error of the system is a StoreError that names the file."""

import errno
import os
from pathlib import Path

import pytest
from tests.storage.samples import begin, commit, files_of, sample

from strobe.errors import StoreError
from strobe.storage import CommitStep, Store, collect


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def unfinished(store: Store) -> list[Path]:
    return list((Path(store.url) / "tmp").iterdir())


@pytest.mark.parametrize(
    ("call", "number", "advice"),
    [
        ("write", errno.ENOSPC, "make room"),
        ("write", errno.EDQUOT, "make room"),
        ("fsync", errno.EIO, "Input/output error"),
        ("link", errno.EPERM, "has hard links"),
        ("open", errno.EACCES, "let this user read it"),
        ("open", errno.EROFS, "may write"),
    ],
)
def test_errors_of_the_system_are_named_and_leave_no_file(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str, number: int, advice: str
) -> None:
    begin(store, 1)

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StoreError, match=advice) as caught:
            # The log is read with os.open too: what matters is that a file is named.
            store.write_snapshot(sample(1))
    assert caught.value.exit_code == 3
    assert "blobs/" in str(caught.value) or "log/" in str(caught.value)
    assert unfinished(store) == []
    assert store.verify_bytes() == []
    store.commit(str(sample(1).id), store.write_snapshot(sample(1)), 1, at_us=0)


def test_a_disk_that_fills_up_during_the_commit_leaves_the_snapshot_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = begin(store, 1)
    manifest = store.write_snapshot(sample(1))

    def refuse(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with pytest.raises(StoreError, match=r"cannot write log/00000000000000000001\.json: No space left"):
            store.commit(name, manifest, 1, at_us=0)
    assert list(store.state().open) == [name]
    store.commit(name, manifest, 1, at_us=0)
    assert store.load("latest") == sample(1)


def test_writes_that_take_only_a_part_are_continued(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    name = begin(store, 1)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    assert store.read_blob(store.write_blob(name, b"0123456789")) == b"0123456789"


def test_reads_that_give_only_a_part_are_continued(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(store, sample(1))
    expected = store.load("latest")
    read = os.pread
    monkeypatch.setattr("strobe.storage.files.disk.READ_BYTES", 7)
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: read(descriptor, min(size, 5), offset))
    assert Store.open(store.url).load("latest") == expected


def test_every_file_and_directory_is_synced_before_what_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: blobs, then their directories, then the entry, then its directory."""
    events: list[str] = []
    fsync, link = os.fsync, os.link

    def noted_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        events.append(f"sync {path.name if path.is_dir() else 'file'}")
        fsync(descriptor)

    def noted_link(source: str, target: str, *, dst_dir_fd: int | None = None) -> None:
        directory = Path(target).parent if dst_dir_fd is None else Path(f"/proc/self/fd/{dst_dir_fd}").readlink()
        events.append(f"link {directory.name}")
        link(source, target, dst_dir_fd=dst_dir_fd)

    store = Store.create(tmp_path / "store")
    begin(store, 1)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    store.commit(str(sample(1).id), store.write_snapshot(sample(1)), 1, at_us=0)
    own = f"{0:020d}"
    blobs = ["sync blobs", *["sync file", f"link {own}"] * 5, f"sync {own}"]
    assert events == [*blobs, "sync file", "link log", "sync log"]


def test_an_entry_that_another_wrote_is_synced_before_one_follows_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store, 1)
    follower = Store.open(store.url)
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink()))
    begin(follower, 2)
    begin(follower, 3)
    assert [path.name for path in synced].count("log") == 3


def test_the_steps_of_a_commit_come_in_their_order(tmp_path: Path) -> None:
    seen: list[CommitStep] = []
    store = Store.create(tmp_path / "store", on_step=lambda step, name: seen.append(step))
    commit(store, sample(1))
    entry = [step for step in CommitStep if CommitStep.ENTRY_OPENED <= step <= CommitStep.ENTRY_DURABLE]
    assert seen[:5] == entry
    assert seen[-6:] == [CommitStep.BLOBS_DURABLE, *entry]
    assert seen[5:-6] == [step for step in CommitStep if step <= CommitStep.BLOB_LINKED] * 5


def test_a_step_hook_that_raises_ends_the_operation(store: Store) -> None:
    class Crashed(Exception):
        pass

    def crash(step: CommitStep, name: str) -> None:
        if step is CommitStep.BLOB_SYNCED:
            raise Crashed

    begin(store, 1)
    store.on_step = crash
    with pytest.raises(Crashed):
        store.write_snapshot(sample(1))
    store.on_step = None
    store.commit(str(sample(1).id), store.write_snapshot(sample(1)), 1, at_us=0)
    assert Store.open(store.url).load("latest") == sample(1)


def test_a_file_being_written_is_kept_and_an_abandoned_one_removed(tmp_path: Path) -> None:
    collected: list[tuple[str, ...]] = []

    def collect_now(step: CommitStep, name: str) -> None:
        if step is CommitStep.BLOB_WRITTEN:
            collected.append(collect(Store.open(tmp_path / "store")).names)

    store = Store.create(tmp_path / "store", on_step=collect_now)
    (tmp_path / "store" / "tmp" / "999-abandoned").write_bytes(b"12345")
    name = begin(store, 1)
    store.write_blob(name, b"data")
    store.write_blob(name, b"more data")
    assert collected == [("tmp/999-abandoned",), ()]


def test_a_writer_whose_file_was_collected_before_its_lock_retries(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    flock = fcntl.flock
    taken: list[Path] = []

    def late_flock(descriptor: int, operation: int) -> None:
        if not taken:
            taken.extend(unfinished(store))
            taken[0].unlink()
        flock(descriptor, operation)

    name = begin(store, 1)
    monkeypatch.setattr(fcntl, "flock", late_flock)
    assert store.read_blob(store.write_blob(name, b"data")) == b"data"
    assert len(taken) == 1


def copy_without_empty_directories(store: Store, target: Path) -> Store:
    """Copy a store as an object store or git does: they keep files only."""
    for name, data in files_of(Path(store.url)).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)
    return Store.open(target)


def test_S1_a_copy_without_its_empty_directories_can_be_written(store: Store, tmp_path: Path) -> None:
    fresh = copy_without_empty_directories(store, tmp_path / "fresh")
    first = commit(fresh, sample(1))
    copy = copy_without_empty_directories(fresh, tmp_path / "copy")
    assert not (tmp_path / "copy" / "tmp").exists()
    commit(copy, sample(2, balance=7), parent=first)
    assert [copy.load(name) for _, name, _ in copy.list()] == [sample(1), sample(2, balance=7)]
    assert copy.verify_bytes() == []
    streaming = copy_without_empty_directories(copy, tmp_path / "streaming")
    writer = streaming.blobs.open(0)
    writer.write(b"data")
    assert streaming.read_blob(writer.finish()) == b"data"
