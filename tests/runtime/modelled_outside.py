"""The surroundings of a simulated coordinator: the system, its store and its output, and connections."""

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

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


class HandedState(NamedTuple):
    """What a process hands over (E11)."""

    process: str
    epoch: int
    view: View
    file: int
    written: int
    worked: int


class Outside:
    """What outlives a coordinator: the store, the released output, and the list of events."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = Random(seed)
        self.system = _system(directory)
        self.store_url = str(directory / "store")
        self.now_us = 1_000_000
        # Which copy of the store is in place; 0 is the original.
        self.history = 0
        self._begin_history()
        self.identity = self.store.header.store
        # The position up to which each process has released output, for each file that it ever had.
        self.released: Counter[tuple[str, int]] = Counter()
        # The end of a process's output when it left, or was leaving, in each file.
        self.staged: Counter[tuple[str, int]] = Counter()
        self.events: list[str] = []

    def _begin_history(self) -> None:
        self.store = Store.open_or_create(self.store_url)
        self.epoch = 0
        # The term of the leading coordinator.
        self.term = 0
        # Snapshots whose markers are on the way: a process that has not recorded yet may do so at any time.
        self.marked: dict[SnapshotId, None] = {}
        # The restored snapshot and the view of each epoch, as sent to the first node.
        self.restored: dict[int, tuple[str | None, View]] = {}
        # How far each process has got in an epoch, whichever instance ran it. The hand-overs, and who claimed each.
        self.reached: Counter[tuple[str, int]] = Counter()
        self.hand_overs: dict[str, HandedState] = {}
        self.claims: dict[str, str] = {}

    @contextmanager
    def older_copy(self, copy: Path) -> Iterator[None]:
        """Replace the store by a copy, and put the store back in the end."""
        place, elsewhere = Path(self.store_url), Path(self.store_url).with_name("elsewhere")
        kept = {name: getattr(self, name) for name in ("epoch", "term", "restored")}
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
    """A ring with a few more channels; two of its processes have output."""
    ring = [Channel(name, NAMES[(at + 1) % len(NAMES)]) for at, name in enumerate(NAMES)]
    more = [Channel("b", "a"), Channel("a", "c"), Channel("d", "b"), Channel("b", "d")]
    sinks = {f"out-{name}": FileSink(directory / f"{name}.jsonl", name) for name in WITH_OUTPUT}
    return System({name: Quiet() for name in NAMES}, ring + more, sinks=sinks)


class Line:
    """A connection. When it breaks, messages on the way are lost, or still arrive before the end is noticed."""

    def __init__(self, process: str) -> None:
        self.peer = process
        self.to_node: deque[Any] = deque()
        self.to_coordinator: deque[Any] = deque()
        self.member: Member | None = None
        self.is_over = False
        # Closed by the coordinator, which reads nothing more from it.
        self.is_closed = False

    def send(self, message: Any) -> None:
        if not self.is_over:
            self.to_node.append(message)

    def close(self) -> None:
        self.is_closed = self.is_over = True

    def cut(self, keep_sent: bool) -> None:
        """Break it. The node reads nothing more; with `keep_sent`, the coordinator still reads what was sent before."""
        self.is_over = True
        self.to_node.clear()
        if not keep_sent:
            self.to_coordinator.clear()
