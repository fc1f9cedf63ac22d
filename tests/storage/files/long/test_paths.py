"""Nothing outside of a store is read, written or removed through it, and nobody else can read its files (E14)."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.storage.samples import commit, sample

from strobe.errors import SnapshotCorrupt, StoreCorrupt
from strobe.protocol.values.log_entries import BlobRef
from strobe.storage import Store, collect
from strobe.storage.inspection.keys import create_keys
from strobe.storage.log.follower import Follower


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "store")
    commit(made, sample(1))
    return made


def moved_away(store: Store, name: str) -> Path:
    """Move a file or directory out of the store and put a symbolic link in its place; return where it is now."""
    inside, outside = Path(store.url, name), Path(store.url).parent / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    return outside


def blob_of(store: Store) -> BlobRef:
    _, _, manifest = store.list()[0]
    return next(iter(manifest.processes.values())).state


def first_blob(store: Store) -> str:
    ref = blob_of(store)
    return f"blobs/{ref.begin:020d}/{ref.blake3}"


@pytest.mark.parametrize("directory", ["log", "blobs", "blobs/00000000000000000000"])
def test_a_directory_of_a_store_that_is_a_link_is_not_entered(store: Store, directory: str) -> None:
    name = next(iter(store.state().committed))
    moved_away(store, directory)
    with pytest.raises((StoreCorrupt, SnapshotCorrupt), match="is a symbolic link, but must be a directory"):
        Store.open(store.url).load(name)
    with pytest.raises(StoreCorrupt, match="is a symbolic link"):
        collect(Store.open(store.url))


def test_collecting_removes_nothing_that_a_link_leads_to(store: Store) -> None:
    outside = moved_away(store, "tmp")
    precious = outside / "precious"
    precious.write_bytes(b"precious")
    with pytest.raises(StoreCorrupt, match="tmp: is a symbolic link"):
        collect(store)
    assert precious.read_bytes() == b"precious"


def test_collecting_leaves_links_in_tmp_alone(store: Store, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    Path(store.url, "tmp", "link").symlink_to(precious)
    os.mkfifo(Path(store.url, "tmp", "fifo"))
    collect(store)
    assert precious.read_bytes() == b"precious"


def test_nothing_is_written_through_a_link(store: Store) -> None:
    outside = moved_away(store, "tmp")
    with pytest.raises(StoreCorrupt, match="tmp: is a symbolic link"):
        commit(store, sample(2))
    assert list(outside.iterdir()) == []


def as_link(path: Path) -> None:
    outside = path.parent.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [as_link, as_fifo, as_directory])
def test_only_a_regular_file_is_read_as_a_blob(store: Store, change: Callable[[Path], None]) -> None:
    ref = blob_of(store)
    change(Path(store.url, first_blob(store)))
    with pytest.raises(StoreCorrupt, match="but must be a regular file"):
        store.read_blob(ref)


@pytest.mark.parametrize("change", [as_link, as_fifo, as_directory])
@pytest.mark.parametrize("name", ["strobe.json", "log/00000000000000000000.json"])
def test_only_a_regular_file_is_read_as_a_document(store: Store, name: str, change: Callable[[Path], None]) -> None:
    change(Path(store.url, name))
    with pytest.raises(StoreCorrupt, match="but must be a regular file"):
        Store.open(store.url).state()
    if name == "strobe.json":
        with pytest.raises(StoreCorrupt, match="but must be a regular file"):
            Follower(store.url).advance()
    else:  # a follower names it, and continues after it
        follower = Follower(store.url)
        found = follower.between(0, follower.advance())
        assert "but must be a regular file" in (found[0].problem or "")


def test_a_blob_that_is_longer_than_its_reference_is_not_read_whole(store: Store) -> None:
    ref = blob_of(store)
    with Path(store.url, first_blob(store)).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(StoreCorrupt, match=f"has {1 << 40} bytes instead of {ref.bytes}"):
        store.read_blob(ref)


def test_a_store_may_be_reached_through_a_link(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store.url)
    linked = Store.open(tmp_path / "link")
    assert len(linked.list()) == 1
    commit(linked, sample(2))
    assert len(store.list()) == 2


@pytest.fixture(params=[0o022, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(root: Path) -> set[tuple[str, int]]:
    found = [root, *root.rglob("*")]
    return {("directory" if path.is_dir() else "file", stat.S_IMODE(path.stat().st_mode)) for path in found}


@pytest.mark.usefixtures("umask")
def test_only_its_owner_can_read_a_store_under_any_umask(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    commit(store, sample(1))
    assert modes(tmp_path / "store") == {("directory", 0o700), ("file", 0o600)}


@pytest.mark.usefixtures("umask")
def test_a_store_can_be_made_for_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROBE_UMASK", "027")
    store = Store.create(tmp_path / "store")
    commit(store, sample(1))
    assert modes(tmp_path / "store") == {("directory", 0o750), ("file", 0o640)}


@pytest.mark.usefixtures("umask")
def test_private_keys_are_for_their_owner_and_public_ones_for_all(tmp_path: Path) -> None:
    create_keys(tmp_path / "keys", ["a"])
    assert modes(tmp_path / "keys") == {("directory", 0o700), ("file", 0o600), ("file", 0o644)}
