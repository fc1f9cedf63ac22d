"""The summary of a snapshot, as lists and checkpoints of the log have it."""

from pathlib import Path

import msgspec
from tests.storage.samples import commit, sample

from strobe.storage import Store
from strobe.storage.content.summaries import Summary, summarize


def test_E5_bytes_written_leave_out_what_the_parent_has(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    first = commit(store, sample(1))
    commit(store, sample(2, balance=101), parent=first)
    commit(store, sample(3))
    whole, delta, again = (complete.summary for complete in store.state().committed.values())
    assert whole.written_bytes == again.written_bytes
    assert whole.written_bytes is not None
    assert delta.written_bytes is not None
    assert 0 < delta.written_bytes < whole.written_bytes


def test_a_summary_in_a_checkpoint_of_an_older_version_is_still_read(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    commit(store, sample(1))
    [complete] = store.state().committed.values()
    known = summarize(complete.manifest, complete.begin)
    *older, written = msgspec.to_builtins(known)
    assert written == known.written_bytes
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=Summary)
    assert read == msgspec.structs.replace(known, written_bytes=None)
