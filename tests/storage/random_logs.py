"""Logs of random entries in random order, most of which follow from each other; the same for the same seed.

Run with `python -m`, it writes such logs into stores in the given directory, and a checkpoint after each.
"""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.storage.samples import VIEW, sample_id

from strobe.protocol.values.log_entries import (
    Abort,
    Begin,
    BlobRef,
    Commit,
    Departure,
    Entry,
    EpochStart,
    FrontierRecord,
    Manifest,
    Pin,
    ProcessRecord,
    Release,
    Remove,
    Section,
    Term,
    ViewChange,
)
from strobe.protocol.values.view import View
from strobe.storage import Store


class RandomLog:
    """Generates entries for a log in this `term`. Most of them take effect, and some do not."""

    def __init__(self, seed: int, term: int = 0) -> None:
        self.random = random.Random(seed)
        self.epoch, self.counter, self.view, self.term = 0, 0, 0, term
        self.snapshots: list[str] = []

    def entries(self, count: int) -> Iterator[Entry]:
        """Yield `count` entries of a live system; the first starts an epoch."""
        yield self._start_epoch()
        makers = (self._begin, self._begin, self._begin, self._commit, self._commit, self._commit, self._abort)
        makers += (
            self._remove,
            self._remove,
            self._pin,
            self._change,
            self._release,
            self._start_epoch,
            self._begin_term,
        )
        for _ in range(count - 1):
            yield self.random.choice(makers)()

    def _begin(self) -> Entry:
        self.counter += 1
        snapshot = str(sample_id(self.counter, max(1, self.epoch - self._rarely())))
        if self._rarely():
            snapshot = self._snapshot()
        self.snapshots.append(snapshot)
        parent, retries = (self.random.choice([None, self._snapshot()]) for _ in range(2))
        return Begin(snapshot, self.view, "chandy-lamport", ("a",), self._time(), parent, retries)

    def _commit(self) -> Entry:
        snapshot = self._snapshot()
        epoch = int(snapshot.partition("-")[0]) + self._rarely()
        begin = self.random.randrange(50)
        refs = [BlobRef(f"{self.random.randrange(3):064x}", self.random.randrange(99), begin) for _ in range(2)]
        record = ProcessRecord(
            self.random.randrange(99),
            "bytes",
            refs[0],
            {},
            {"b->a": FrontierRecord(3, "0" * 32)},
            {"b->a": Section(0, 30, 1, 2)},
            frames=refs[1],
            pause_us=self.random.randrange(99),
            duration_us=self.random.randrange(99),
        )
        departed = {"c": Departure({"out": 3}, view=self.view)} if self._rarely() else {}
        manifest = Manifest(
            "chandy-lamport", ("a",), self._view(), epoch, self._time(), self._time(), {"a": record}, departed=departed
        )
        return Commit(snapshot, manifest, self._time())

    def _abort(self) -> Entry:
        return Abort(self._snapshot(), self.random.choice(["failed", "timed out"]), self._time())

    def _remove(self) -> Entry:
        return Remove(self._snapshot(), self.random.choice(["retention", "by hand"]), self._time())

    def _pin(self) -> Entry:
        return Pin(self._snapshot(), self.random.random() < 0.6, self._time())

    def _change(self) -> Entry:
        self.view += 1 - self._rarely()
        return ViewChange(self._view(), self._time())

    def _release(self) -> Entry:
        return Release("c", self.view, self._time())

    def _start_epoch(self) -> Entry:
        if self.epoch and self.random.random() < 0.7:
            return self._begin()
        self.epoch += 1
        self.view += 1
        restored = self.random.choice([None, self._snapshot()]) if self.snapshots else None
        return EpochStart(self.epoch, self._time(), restored, self._view(), "a crash", self.random.choice([None, "a"]))

    def _begin_term(self) -> Entry:
        self.term += 1
        return Term(self.term, f"host {int(self._rarely())} pid {self.term}", self._time())

    def _view(self) -> View:
        processes = tuple(sorted(self.random.sample(VIEW.processes, self.random.randrange(1, 4))))
        return View(max(1, self.view), processes, ())

    def _snapshot(self) -> str:
        return self.random.choice(self.snapshots[-8:] or [str(sample_id(1))])

    def _time(self) -> int:
        return self.random.randrange(10**6)

    def _rarely(self) -> bool:
        return self.random.random() < 0.1


def write_log(store: Store, seed: int, count: int) -> None:
    for position, entry in enumerate(RandomLog(seed).entries(count)):
        store.append(entry, position)


def checkpointed_store(root: Path, seed: int, count: int, every: int) -> Path:
    """Make a store at `root` with such a log, and with each checkpoint written when it is due."""
    store = Store(Store.create(root, identity="0" * 32).backend, checkpoint_every=every)
    for position, entry in enumerate(RandomLog(seed).entries(count)):
        store.append(entry, position)
        store.write_checkpoint()
    return root


if __name__ == "__main__":
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # there is no power failure here
    for seed in range(6):
        written = Store(Store.create(f"{sys.argv[1]}/{seed}", identity="0" * 32).backend, checkpoint_every=20)
        write_log(written, seed, 60)
        assert written.write_checkpoint() is not None
