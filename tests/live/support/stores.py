"""What happens to the store of a live system: moved away, replaced, copied, damaged."""

import os
import shutil
from contextlib import contextmanager, suppress

from tests.storage.files.test_guard import everything

from strobe.storage import Store
from strobe.storage.content.blobs import blob_name

IN_ITS_PLACE = {
    "absent": "does not exist",
    "empty": "is empty",
    "another": "holds another store, with the identity another-store",
}


def put_in_place(store, what):
    """Put nothing, an empty directory or another store, as `what` says, in the place of a store that was moved away."""
    if what == "empty":
        store.mkdir()
    if what == "another":
        Store.create(store, identity="another-store")


@contextmanager
def moved_away(store, what):
    """Move the store away for the duration of the block; nothing may be written in its place."""
    elsewhere = store.with_name("elsewhere")
    store.rename(elsewhere)
    put_in_place(store, what)
    before = everything(store)
    yield
    assert everything(store) == before
    shutil.rmtree(store, ignore_errors=True)
    elsewhere.rename(store)


def copy_running(store, copy):
    """Copy a store that is being written to: first its log, so that the copy has all blobs that the log names."""
    shutil.copytree(store / "log", copy / "log")
    without_log = shutil.ignore_patterns("log")
    shutil.copytree(store, copy, ignore=without_log, copy_function=_copy_if_there, dirs_exist_ok=True)


def _copy_if_there(source, target):
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


@contextmanager
def older_copy(store, end, log_only=True):
    """Put a copy with the log entries before `end` in the store's place for a while; nothing may be appended to it.

    `log_only`: without blobs and checkpoints; otherwise only the newest entries are missing.
    """
    elsewhere, copy = store.with_name("elsewhere"), store.with_name("copy")
    store.rename(elsewhere)
    (copy / "log").mkdir(parents=True)
    shutil.copy(elsewhere / "strobe.json", copy)
    if not log_only:
        for room in ("blobs", "checkpoints"):
            if (elsewhere / room).exists():
                shutil.copytree(elsewhere / room, copy / room, copy_function=os.link)
    kept = [path for path in (elsewhere / "log").iterdir() if int(path.stem) < end]
    for path in kept:
        shutil.copy(path, copy / "log")
    copy.rename(store)  # whole: programs may write to it from now on
    yield
    store.rename(copy)
    elsewhere.rename(store)
    assert len(list((copy / "log").iterdir())) == len(kept)
    shutil.rmtree(copy)


def damage(store, snapshot, name):
    """Change one byte of the state of process `name`."""
    opened = Store.open(store)
    record = next(manifest for _, known, manifest in opened.list() if known == snapshot).processes[name]
    path = store / blob_name(record.state)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
