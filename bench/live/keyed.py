"""Keyed state in a live node: what a snapshot costs the running process, how much it writes, and how fast.

The node is started as by `strobe up`. Its process writes and reads random entries in every event-loop iteration.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from bench.figures import Figure, at_least, at_most, interleaved, shown, wall_s
from bench.live.contest import await_, check, supervise
from bench.live.gauge import VARIABLE, Gate, Gauge
from bench.live.keeper import CHANGE, ENTRIES, ENTRIES_SMALL, VALUE_BYTES
from strobe.runtime.messages.api_documents import COMMITTED, Part

COMMAND = "python -m bench keyed"
_CAPTURES = 3
_IDLE_S = 2.0
_FILL_S_MAX = 300.0
_PATIENCE_S = 120.0
_PIECE_BYTES = 256 << 10
_ALL_ANEW = ("--set", "node.delta_chain_max=0")


class Turns(msgspec.Struct):
    """Event-loop iterations, in ms of CPU time: 99.9 % of them were shorter than `usual`."""

    usual_ms: float
    longest_ms: float


class Kept(AbstractContextManager["Kept"]):
    """A system of bench/keeper.py, filled."""

    def __init__(self, folder: Path, system: str, entries: int, options: Sequence[str] = ()) -> None:
        folder.mkdir()
        self._folder = folder
        self._entries = entries
        self._gate = Gate(folder)
        self._filled, self._usual, self._longest = (Gauge(name, folder) for name in ("filled", "usual", "longest"))
        patient = ("--timeout", f"{_PATIENCE_S:g}", "--silence", f"{_PATIENCE_S:g}")
        self.supervisor = supervise(f"bench.live.keeper:{system}", folder / "store", ["keeper"], [*patient, *options])

    def __enter__(self) -> Self:
        os.environ[VARIABLE] = str(self._folder)
        try:
            self.supervisor.start()
            await_(self._is_filled, f"{self._entries:,} entries", _FILL_S_MAX)
        except BaseException:
            self.supervisor.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.supervisor.close()

    def _is_filled(self) -> bool:
        check(self.supervisor)
        reading = self._filled.read()
        return reading is not None and reading.messages == self._entries

    def work(self, meanwhile: Callable[[], None]) -> Turns:
        """Let the process work until `meanwhile` has returned, and return its event-loop iterations."""
        before = self._longest.read()
        self._gate.open()
        meanwhile()
        self._gate.shut()
        await_(lambda: self._longest.read() != before, "the turns of the loop")
        usual, longest = self._usual.read(), self._longest.read()
        assert usual is not None, "it has worked"
        assert longest is not None, "it has worked"
        return Turns(usual.value * 1e3, longest.value * 1e3)

    def take(self) -> Part:
        """Take a snapshot, and return the part of the process."""
        taken = self.supervisor.client.take(timeout_s=_PATIENCE_S)
        if taken.outcome != COMMITTED:
            raise RuntimeError(f"snapshot {taken.id} was not committed: {taken.reason}")
        finished = next(one for one in self.supervisor.client.status().finished if one.id == taken.id)
        return finished.parts[0]

    def change(self) -> None:
        """Change 1 % of the entries."""
        change = self._folder / CHANGE
        change.touch()
        await_(lambda: not change.exists(), "entries to be changed")


class Capture(msgspec.Struct):
    """The results of a full snapshot under writes."""

    freeze_ms: float
    turn_ms: float
    turn_ms_max: float
    idle_turn_ms: float


def _capture(kept: Kept) -> Capture:
    idle = kept.work(lambda: time.sleep(_IDLE_S))
    parts: list[Part] = []
    busy = kept.work(lambda: parts.append(kept.take()))
    return Capture(parts[0].pause_us / 1e3, busy.usual_ms, busy.longest_ms, idle.usual_ms)


def _median(captures: Sequence[Capture]) -> Capture:
    return Capture(*map(statistics.median, zip(*map(msgspec.structs.astuple, captures), strict=True)))


def _delta_share(folder: Path) -> float:
    """Return the bytes written after a change of 1 % of the entries, against the first snapshot."""
    with Kept(folder / "changed", "small", ENTRIES_SMALL) as kept:
        everything = kept.take()
        kept.change()
        return kept.take().written_bytes / everything.written_bytes


def _against_disk(kept: Kept, folder: Path) -> tuple[float, float]:
    """Return the MB/s of a snapshot while the process is idle, and of the disk for the same number of bytes."""
    size = kept.take().written_bytes
    piece = os.urandom(_PIECE_BYTES)

    def write() -> None:
        with (folder / "raw").open("wb", buffering=0) as file:
            for _ in range(size // _PIECE_BYTES):
                file.write(piece)
            os.fsync(file.fileno())

    def disk_s() -> float:
        seconds = wall_s(write)
        (folder / "raw").unlink()
        return seconds

    raw_s, background_s = interleaved(_CAPTURES, disk_s, lambda: kept.take().duration_us / 1e6)
    return size / background_s / 1e6, size / raw_s / 1e6


def _stops() -> tuple[float, float]:
    """Return the cost of stopping the process instead, in ms: copying a dict, and encoding it."""
    plain = {number: bytes(VALUE_BYTES) for number in range(ENTRIES)}
    copying, encoding = interleaved(
        3, lambda: wall_s(lambda: plain.copy()), lambda: wall_s(lambda: msgspec.msgpack.encode(plain))
    )
    return copying * 1e3, encoding * 1e3


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as place:  # /tmp may be in memory
        folder = Path(place)
        with (
            Kept(folder / "few", "small", ENTRIES_SMALL, _ALL_ANEW) as few,
            Kept(folder / "many", "large", ENTRIES, _ALL_ANEW) as many,
        ):
            captures = [(_capture(few), _capture(many)) for _ in range(_CAPTURES)]
            background, disk = _against_disk(many, folder)
        delta_share = _delta_share(folder)
    small, large = (_median(taken) for taken in zip(*captures, strict=True))
    copying_ms, encoding_ms = _stops()
    growth, idle_growth = large.turn_ms / small.turn_ms, large.idle_turn_ms / small.idle_turn_ms
    return [
        at_most("keyed state of 1 GB: freezing it", large.freeze_ms, "ms", 0.5, COMMAND),
        at_most("longest turn while it is captured under writes, 99.9%", large.turn_ms, "ms CPU", 8, COMMAND),
        shown("the same, longest of all", large.turn_ms_max, "ms CPU", COMMAND),
        shown("the same, 99.9% without a snapshot", large.idle_turn_ms, "ms CPU", COMMAND),
        at_most("the same, 99.9%, against a state of 100 MB", growth, "x", 2, COMMAND),
        shown("the same, 99.9% without a snapshot, against a state of 100 MB", idle_growth, "x", COMMAND),
        shown("copying a dict of 1 GB instead", copying_ms, "ms", COMMAND),
        shown("encoding a dict of 1 GB instead", encoding_ms, "ms", COMMAND),
        at_most("bytes after 1% of the entries changed, against all", 100 * delta_share, "%", 3, COMMAND),
        shown("background writing", background, "MB/s", COMMAND),
        at_least("background writing, against the disk", background / disk, "x", 0.6, COMMAND),
    ]
