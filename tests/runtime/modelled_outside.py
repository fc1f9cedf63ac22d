"""What lies around a coordinator in a world of steps: the system, its store and its output, and connections."""

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.runtime.fake_nodes import Quiet
from tests.runtime.unremoved import move_store

from strobe.process import Channel, System
from strobe.protocol import SnapshotId, View
from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.coordinator.node_registry import Member
from strobe.storage import Store

NAMES = ("a", "b", "c", "d")
WITH_OUTPUT = ("c", "d")


class Wrong(Exception):
    """A promise was broken."""


class Outside:
    """What lies beside the coordinator and outlives it: the store, what is out, and what has happened."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = Random(seed)
        self.system = _system(directory)
        self.store_url = str(directory / "store")
        self.now_us = 1_000_000
        # Of several copies of the store, the one that is in place.
        self.history = 0
        self._begin_history()
        self.identity = self.store.header.store
        # How far the output of each process is out, in each file that it ever had.
        self.released: Counter[tuple[str, int]] = Counter()
        # How much output a process had when it left, or was about to, in each file.
        self.staged: Counter[tuple[str, int]] = Counter()
        self.events: list[str] = []

    def _begin_history(self) -> None:
        self.store = Store.open_or_create(self.store_url)
        self.epoch = 0
        # That of the coordinator which leads.
        self.term = 0
        # Snapshots whose markers are on the way: whoever has not recorded yet may do so at any time.
        self.marked: dict[SnapshotId, None] = {}
        # What was told of each epoch.
        self.told: dict[int, tuple[str | None, View]] = {}

    @contextmanager
    def older_copy(self, copy: Path) -> Iterator[None]:
        """Put a copy of the store in its place, and the store back in the end."""
        place, elsewhere = Path(self.store_url), Path(self.store_url).with_name("elsewhere")
        kept = {name: getattr(self, name) for name in ("epoch", "term", "told")}
        move_store(place, elsewhere)
        move_store(copy, place)
        self.history += 1
        self._begin_history()
        yield
        move_store(elsewhere, place)
        self.history = 0
        self._begin_history()
        vars(self).update(kept)

    def note(self, event: str) -> None:
        self.events.append(f"{self.now_us / 1e6:9.3f} s  {event}")

    def release(self, process: str, file: int, position: int) -> None:
        self.released[process, file] = max(self.released[process, file], position)


def _system(directory: Path) -> System:
    """A ring with a few channels more; two of its processes have output."""
    ring = [Channel(name, NAMES[(at + 1) % len(NAMES)]) for at, name in enumerate(NAMES)]
    more = [Channel("b", "a"), Channel("a", "c"), Channel("d", "b"), Channel("b", "d")]
    sinks = {f"out-{name}": FileSink(directory / f"{name}.jsonl", name) for name in WITH_OUTPUT}
    return System({name: Quiet() for name in NAMES}, ring + more, sinks=sinks)


class Line:
    """A connection. What is on the way when it breaks may be lost, or may still come before its end is noticed."""

    def __init__(self, process: str) -> None:
        self.peer = process
        self.to_node: deque[Any] = deque()
        self.to_coordinator: deque[Any] = deque()
        self.member: Member | None = None
        self.is_over = False
        # Closed by the coordinator: nothing that comes is read any more.
        self.is_closed = False

    def send(self, message: Any) -> None:
        if not self.is_over:
            self.to_node.append(message)

    def close(self) -> None:
        self.is_closed = self.is_over = True

    def cut(self, with_last_words: bool) -> None:
        """Break it from outside: the node reads nothing more of it, the coordinator perhaps what was sent before."""
        self.is_over = True
        self.to_node.clear()
        if not with_last_words:
            self.to_coordinator.clear()
