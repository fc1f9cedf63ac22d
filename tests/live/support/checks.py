"""Checks of what a live system leaves behind: snapshots, released output, files and processes."""

from contextlib import suppress
from pathlib import Path

import msgspec
from tests.live.support import forking
from tests.live.support import ledger as clerks

from strobe.causality.proof import verify
from strobe.storage import Store, collect


def complete_snapshots(store):
    """Load and return every complete snapshot, which checks each byte."""
    opened = Store.open(store)
    return [opened.load(name) for _, name, _ in opened.list()]


def verify_all(store):
    """Check the proof and every byte of every complete snapshot; return how many there are."""
    assert Store.open(store).verify_bytes() == []
    snapshots = complete_snapshots(store)
    for snapshot in snapshots:
        verdict = verify(snapshot)
        assert verdict.holds, (snapshot.id, verdict.findings)
    return len(snapshots)


class Checked(msgspec.Struct):
    """The number of snapshots, messages and lines that were checked after a run."""

    snapshots: int
    messages: int
    lines: int


def check_everything(system, store, output=None):
    """Check everything that a system which has ended leaves behind.

    Every complete snapshot: its bytes, its proof, and that it has each message exactly once. The released output, byte
    for byte. That no file is left in tmp/, and after a collection no blob of an aborted snapshot.
    """
    verify_all(store)
    snapshots = complete_snapshots(store)
    messages = [clerks.assert_exactly_once(system, snapshot) for snapshot in snapshots]
    covers = [clerks.covered_by(system, snapshot) for snapshot in snapshots]
    lines = clerks.check_released(system, covers, output) if output is not None else 0
    assert_nothing_left(store)
    return Checked(len(snapshots), messages[-1] if messages else 0, lines)


def assert_nothing_left(store):
    """Check that no program works on a store, no file is spilled or unfinished, and unneeded blobs are collected."""
    assert not working_on(store), f"processes are left: {working_on(store)}"
    opened = Store.open(store)
    collect(opened)
    assert list((store / "tmp").iterdir()) == []
    spill = store / "run" / "spill"
    assert not spill.exists() or list(spill.iterdir()) == []
    kept = {ref.begin for _, _, manifest in opened.list() for ref in _blobs(manifest)}
    kept |= {one.position for one in opened.state().open.values()}
    found = {int(place.name) for place in (store / "blobs").iterdir()}
    assert found <= kept, f"blobs of no snapshot are left: {sorted(found - kept)}"


def working_on(store):
    """Return the programs that were started for a store and still run."""
    found = {pid: " ".join(words) for pid, words in forking.programs().items() if str(store) in words}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may have ended in between, or belong to another user
            words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            if str(store) in words:
                found[entry.name] = " ".join(words)
    return found


def _blobs(manifest):
    for record in manifest.processes.values():
        yield from (record.state, *record.deltas)
        if record.frames is not None:
            yield record.frames
