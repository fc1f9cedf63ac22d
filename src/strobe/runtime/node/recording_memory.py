"""The bound on channel recordings: first memory, then disk, then the snapshot is aborted (E3).

Recordings keep references to frames until their fragment is stored. When they fill half of `recording_bytes_max`, a
thread writes the bodies to an unnamed file, and the frames are replaced by frames whose bodies are views into that
file. The other half is for frames that arrive meanwhile. If a bound would be exceeded, or the disk is full, the
snapshot that holds the most is aborted. The application continues.
"""

import asyncio
import logging
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

from strobe.protocol import Endpoint, Frame, InFlight, SnapshotId
from strobe.runtime.links.codec import held_bytes
from strobe.runtime.node.fragment_writer import Capture
from strobe.runtime.settings import NodeSettings

logger = logging.getLogger("strobe.node")

_PIECES_MAX = 1000  # per system call, whose limit is 1024


class Recordings:
    """Bounds the recordings of one process: those of `protocol`, and those being stored, in `captures`.

    `abandon` aborts a snapshot for a reason; `make_directory` returns a directory for the spilled frames.
    """

    def __init__(
        self,
        settings: NodeSettings,
        protocol: Endpoint,
        captures: Mapping[SnapshotId, Capture],
        abandon: Callable[[SnapshotId, str], None],
        make_directory: Callable[[str], Path],
    ) -> None:
        # An upper bound on the memory held; exact near a limit.
        self.bytes = 0
        self.spilled_bytes = 0
        self.spills = 0
        self._protocol = protocol
        self._captures = captures
        self._abandon = abandon
        self._make_directory = make_directory
        self._memory_max = settings.recording_bytes_max
        self._disk_max = settings.spill_bytes_max
        self._looked_at = self._memory_max // 2
        self._maps: dict[int, mmap.mmap] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def is_spilling(self) -> bool:
        return self._task is not None

    def arrived(self, frame: Frame) -> None:
        """Count a frame that arrived during a recording."""
        self.joined((frame,))

    def joined(self, frames: Iterable[Frame]) -> None:
        """Count frames that may have become part of a recording at once."""
        self.bytes += sum(map(held_bytes, frames))
        if self.bytes > self._looked_at:
            self.look()

    def changed(self) -> None:
        """Update the counts after a recording has ended or was stored."""
        if self._maps or next(self._held(), None) is None:
            self._recount()

    def look(self) -> None:
        """Count the memory held. If it is too much, spill to disk or abort a snapshot."""
        unspilled = self._recount()
        unspilled_bytes = sum(len(frame.body) for frame in unspilled)
        quarter = self._memory_max // 4
        fits = self.spilled_bytes + unspilled_bytes <= self._disk_max
        worthwhile = unspilled_bytes > quarter or self.bytes > self._memory_max
        if self.bytes > 2 * quarter and worthwhile and fits and unspilled and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._spill_out(unspilled))
        elif self.bytes > self._memory_max:
            disk = f" and {self._disk_max:,} bytes of disk" if not fits else ""
            pace = ", faster than the disk takes it" if fits and self._task is not None else ""
            self._give_up(f"recording its channels took more than {self._memory_max:,} bytes of memory{disk}{pace}")
        self._looked_at = max(2 * quarter, min(self._memory_max, self.bytes + quarter))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _recount(self) -> list[Frame]:
        """Make all counts exact; return the frames that could be spilled."""
        frames = {id(item.frame): item.frame for _, items in self._held() for item in items}
        on_disk = [frame for frame in frames.values() if self._is_spilled(frame)]
        self.spilled_bytes = sum(len(frame.body) for frame in on_disk)
        in_use = {id(cast(memoryview, frame.body).obj) for frame in on_disk}
        self._maps = {key: mapped for key, mapped in self._maps.items() if key in in_use}
        self.bytes = sum(map(held_bytes, frames.values())) - self.spilled_bytes
        written = {id(item.frame) for items in self._being_written() for item in items}
        return [frame for key, frame in frames.items() if key not in written and not self._is_spilled(frame)]

    def _held(self) -> Iterator[tuple[SnapshotId, list[InFlight]]]:
        """Yield the frames that each snapshot holds, per channel."""
        for snapshot, recording in self._protocol.open.items():
            yield from ((snapshot, items) for items in recording.frames.values() if items)
        for snapshot, capture in self._captures.items():
            yield from ((snapshot, items) for items in capture.in_flight.values() if items)

    def _being_written(self) -> Iterator[list[InFlight]]:
        for capture in self._captures.values():
            if capture.writes_frames:
                yield from capture.in_flight.values()

    def _is_spilled(self, frame: Frame) -> bool:
        body: object = frame.body
        return isinstance(body, memoryview) and id(body.obj) in self._maps

    async def _spill_out(self, frames: list[Frame]) -> None:
        try:
            # Not in the writer thread: memory could run out during a sync there.
            mapped, bodies = await asyncio.to_thread(self._write, frames)
        except Exception as error:  # noqa: BLE001 -- no space or no thread: only the snapshot fails
            self._task = None
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._give_up(f"its recorded channel state could not be written to disk: {reason}")
        else:
            self._task = None
            self._maps[id(mapped)] = mapped
            self.spills += 1
            self._replace({id(frame): body for frame, body in zip(frames, bodies, strict=True)})
            logger.info("put %d bytes of channel state on disk", sum(map(len, bodies)))
            self.look()

    def _write(self, frames: list[Frame]) -> tuple[mmap.mmap, list[memoryview]]:
        return _write(self._make_directory("spill"), frames)

    def _replace(self, bodies: dict[int, memoryview]) -> None:
        """Replace frames in memory by frames on disk."""
        for _, items in self._held():
            for place, item in enumerate(items):
                body = bodies.get(id(item.frame))
                if body is not None:
                    frame = item.frame
                    on_disk = Frame(frame.first_ordinal, frame.count, cast(bytes, body), frame.index, frame.view)
                    items[place] = InFlight(on_disk, item.consumed)

    def _give_up(self, reason: str) -> None:
        """Abort the snapshot that holds the most."""
        held: dict[SnapshotId, int] = {}
        for snapshot, items in self._held():
            held[snapshot] = held.get(snapshot, 0) + sum(held_bytes(item.frame) for item in items)
        if held:
            self._abandon(max(held, key=lambda known: held[known]), reason)
        self._recount()


def _write(place: Path, frames: list[Frame]) -> tuple[mmap.mmap, list[memoryview]]:
    """Write the bodies of `frames` to a new unnamed file; return its mapping, and each body as a view of it."""
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        for start in range(0, len(frames), _PIECES_MAX):
            _write_pieces(file.fileno(), [memoryview(frame.body) for frame in frames[start : start + _PIECES_MAX]])
        mapped = mmap.mmap(file.fileno(), sum(len(frame.body) for frame in frames), access=mmap.ACCESS_READ)
    whole, bodies, offset = memoryview(mapped), [], 0
    for frame in frames:
        bodies.append(whole[offset : offset + len(frame.body)])
        offset += len(frame.body)
    return mapped, bodies


def _write_pieces(file: int, pieces: list[memoryview]) -> None:
    """Write `pieces` in few system calls: after each call this thread must reacquire the GIL from a busy event loop."""
    first = 0
    while first < len(pieces):
        written = os.writev(file, pieces[first:])
        while first < len(pieces) and written >= len(pieces[first]):
            written -= len(pieces[first])
            first += 1
        if written:
            pieces[first] = pieces[first][written:]
