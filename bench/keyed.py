"""Keyed state: what a snapshot of it costs the process that goes on, how much it writes, and how fast.

The loop is that of a host: each turn runs handlers (writes and reads of random keys), makes a slice of the snapshot if
the writer thread has room, and asks the system for what has come. The processor time of such a turn is measured.
"""

import os
import random
import selectors
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from bench.figures import Figure, at_least, at_most, interleaved, shown, wall_s
from strobe import KeyedState
from strobe.keyed_state import Frozen
from strobe.protocol.log import BlobRef
from strobe.storage import Store
from strobe.storage.blobs import Blobs

COMMAND = "python -m bench keyed"
_ENTRIES, _ENTRIES_SMALL = 5_000_000, 500_000
_VALUE_BYTES = 200
_TURN_WRITES = _TURN_READS = 50
_CAPTURES = 3
_WAITING_MAX = 8  # slices: 2 MB on their way to the disk


class Turns:
    """A loop that runs handlers on a keyed state, and beside them whatever else it is given to do."""

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.pool = os.urandom(1 << 20)
        self.random = random.Random(entries)
        self.state: KeyedState[bytes] = KeyedState(bytes)
        for number in range(entries):
            self.state[key(number)] = self.value(number)
        self.selector = selectors.DefaultSelector()
        self.turns_s: list[float] = []

    def value(self, number: int) -> bytes:
        place = number * 7919 % (len(self.pool) - _VALUE_BYTES)
        return self.pool[place : place + _VALUE_BYTES]

    def turn(self, besides: Callable[[], None] = lambda: None) -> None:
        started = time.thread_time()
        state, draw, entries = self.state, self.random.randrange, self.entries
        for _ in range(_TURN_WRITES):
            state[key(draw(entries))] = self.value(draw(entries))
        for _ in range(_TURN_READS):
            state[key(draw(entries))]
        besides()
        self.turns_s.append(time.thread_time() - started)
        self.selector.select(0)

    def longest_s(self, share: float) -> float:
        """Return the time that so many of the turns stay below."""
        return sorted(self.turns_s)[min(len(self.turns_s) - 1, int(share * len(self.turns_s)))]


class Snapshot:
    """A frozen state that is written in a thread, a slice a turn."""

    def __init__(self, blobs: Blobs, begin: int, frozen: Frozen, since: int | None = None) -> None:
        self.number = frozen.number
        self.slices: Iterator[bytes] = frozen.slices(since)
        self.writer = blobs.open(begin)
        self.thread = ThreadPoolExecutor(1)
        self.waiting: deque[Future[None]] = deque()
        self.whole = False

    def step(self) -> None:
        while self.waiting and self.waiting[0].done():
            self.waiting.popleft().result()
        if len(self.waiting) < _WAITING_MAX and not self.whole:
            piece = next(self.slices, None)
            self.whole = piece is None
            if piece:
                self.waiting.append(self.thread.submit(self.writer.write, piece))

    def finish(self, turns: Turns) -> BlobRef:
        """Let turns go on until everything is on the disk."""
        while self.waiting or not self.whole:
            turns.turn(self.step)
        written = self.thread.submit(self.writer.finish)
        while not written.done():
            turns.turn()
        self.thread.shutdown()
        return written.result()


class Capture(msgspec.Struct):
    """What one snapshot under writes came to."""

    freeze_ms: float
    turn_ms: float
    turn_ms_max: float
    idle_turn_ms: float
    bytes: float
    delta_bytes: float


def key(number: int) -> str:
    return f"account-{number:08d}"


def _median(captures: Sequence[Capture]) -> Capture:
    return Capture(*map(statistics.median, zip(*map(msgspec.structs.astuple, captures), strict=True)))


def _capture(turns: Turns, blobs: Blobs) -> Capture:
    """Take a full snapshot under writes; then change one entry of a hundred, and take another."""
    turns.turns_s.clear()
    for _ in range(2000):
        turns.turn()
    idle_s = turns.longest_s(0.999)
    turns.turns_s.clear()
    started = time.perf_counter()
    frozen = turns.state.freeze()
    freeze_s = time.perf_counter() - started
    first = Snapshot(blobs, 0, frozen)
    whole = first.finish(turns)
    longest_s, longest_s_max = turns.longest_s(0.999), turns.longest_s(1)
    quiet = turns.state.freeze()
    quiet.close()
    for number in turns.random.sample(range(turns.entries), turns.entries // 100):
        turns.state[key(number)] = turns.value(number + 1)
    delta = sum(map(len, turns.state.freeze().slices(quiet.number)))
    return Capture(freeze_s * 1e3, longest_s * 1e3, longest_s_max * 1e3, idle_s * 1e3, whole.bytes, delta)


def _background_s(state: KeyedState[bytes], blobs: Blobs, selector: selectors.BaseSelector) -> float:
    """Return how long a snapshot takes while the process has nothing else to do."""
    snapshot = Snapshot(blobs, 1, state.freeze())

    def write() -> None:
        while snapshot.waiting or not snapshot.whole:
            snapshot.step()
            selector.select(0 if len(snapshot.waiting) < _WAITING_MAX else 0.0002)
        snapshot.thread.submit(snapshot.writer.finish).result()

    seconds = wall_s(write)
    snapshot.thread.shutdown()
    return seconds


def _disk_s(state: KeyedState[bytes], path: Path) -> float:
    """Return how long the disk takes for the same bytes when they are at hand: written, and brought to it."""
    pieces = list(state.freeze().slices())

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for piece in pieces:
                file.write(piece)
            os.fsync(file.fileno())

    seconds = wall_s(write)
    path.unlink()
    return seconds


def _against_disk(state: KeyedState[bytes], folder: Path) -> list[float]:
    """Return the seconds of the disk alone and of a snapshot in the background; what was written is removed again."""
    selector = selectors.DefaultSelector()

    def snapshot_s() -> float:
        with tempfile.TemporaryDirectory(dir=folder) as store:
            return _background_s(state, Store.create(Path(store) / "store").blobs, selector)

    return interleaved(3, lambda: _disk_s(state, folder / "raw"), snapshot_s)


def _stops(turns: Turns) -> tuple[float, float]:
    """Return what stopping the process costs instead, in ms: copying a dict, and encoding it."""
    plain = {number: turns.value(number) for number in range(turns.entries)}
    copying, encoding = interleaved(
        3, lambda: wall_s(lambda: plain.copy()), lambda: wall_s(lambda: msgspec.msgpack.encode(plain))
    )
    return copying * 1e3, encoding * 1e3


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:  # /tmp may be in memory
        blobs = Store.create(Path(folder) / "store").blobs
        few, turns = Turns(_ENTRIES_SMALL), Turns(_ENTRIES)
        captures = [(_capture(few, blobs), _capture(turns, blobs)) for _ in range(_CAPTURES)]
        small, large = (_median(taken) for taken in zip(*captures, strict=True))
        disk_s, background_s = _against_disk(turns.state, Path(folder))
        copying_ms, encoding_ms = _stops(turns)
    growth = large.turn_ms / small.turn_ms
    idle_growth = large.idle_turn_ms / small.idle_turn_ms
    return [
        at_most("keyed state of 1 GB: freezing it", large.freeze_ms, "ms", 0.5, COMMAND),
        at_most("longest turn while it is captured under writes, 99.9%", large.turn_ms, "ms CPU", 8, COMMAND),
        shown("the same, longest of all", large.turn_ms_max, "ms CPU", COMMAND),
        shown("the same, 99.9% without a snapshot", large.idle_turn_ms, "ms CPU", COMMAND),
        at_most("the same, 99.9%, against a state of 100 MB", growth, "x", 2, COMMAND),
        shown("the same, 99.9% without a snapshot, against a state of 100 MB", idle_growth, "x", COMMAND),
        shown("copying a dict of 1 GB instead", copying_ms, "ms", COMMAND),
        shown("encoding a dict of 1 GB instead", encoding_ms, "ms", COMMAND),
        at_most(
            "bytes after 1% of the entries changed, against all", 100 * large.delta_bytes / large.bytes, "%", 3, COMMAND
        ),
        shown("background writing", large.bytes / background_s / 1e6, "MB/s", COMMAND),
        at_least("background writing, against the disk", disk_s / background_s, "x", 0.6, COMMAND),
    ]
