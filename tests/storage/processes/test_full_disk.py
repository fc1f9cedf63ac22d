"""A full disk: the error names the file, nothing is left behind, and the store is unchanged."""

from pathlib import Path

from tests.storage import limited_writer
from tests.storage.children import start
from tests.storage.samples import commit, sample

from strobe.storage import Store


def test_a_write_that_the_system_stops_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    commit(store, sample(1))
    child = start(limited_writer.__name__, store.url, "4096")
    output, _ = child.communicate()
    assert output.startswith(f"3 store {store.url}: cannot write blobs/00000000000000000002/")
    assert "make room" in output
    assert child.returncode == 0
    assert list((tmp_path / "store" / "tmp").iterdir()) == []
    assert [name for _, name, _ in store.list()] == [str(sample(1).id)]
    assert store.verify_bytes() == []
    commit(store, sample(3))
