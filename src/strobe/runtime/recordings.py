"""The bound on what channel recording holds: memory first, then disk, then that snapshot is aborted (E3).

Recordings keep references to frames. Where those grow past `recording_bytes_max`, their bodies are written to a file
without a name, by the writer thread, and the frames replaced by ones whose bodies are views into that file: nobody else
notices. What would go past `spill_bytes_max`, or finds the disk full, aborts the snapshot that holds the most. The
application goes on meanwhile.
"""

import asyncio
import logging
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from strobe.protocol import Frame, InFlight, SnapshotId
from strobe.protocol.coordination import RecordingFailed
from strobe.protocol.events import SnapshotAborted

if TYPE_CHECKING:
    from strobe.runtime.timeline import Timeline

logger = logging.getLogger("strobe.node")


class Recordings:
    """Watches over the open recordings of one process."""

    def __init__(self, timeline: "Timeline") -> None:
        self.bytes = 0
        self.spilled_bytes = 0
        self.spills = 0
        self._timeline = timeline
        settings = timeline.host.settings
        self._memory_max = settings.recording_bytes_max
        self._disk_max = settings.spill_bytes_max
        self._maps: dict[int, mmap.mmap] = {}
        self._task: asyncio.Task[None] | None = None

    def arrived(self, frame: Frame) -> None:
        """A frame came while something is being recorded."""
        self.bytes += len(frame.body)
        if self.bytes > self._bytes_max:
            self.joined()

    def joined(self) -> None:
        """Frames may have become part of a recording, how many nobody has counted."""
        self._recount()
        if self.bytes > self._bytes_max:
            self._spill()

    @property
    def _bytes_max(self) -> int:
        # While a spill is under way, what comes meanwhile stays in memory: in all it is not more than both may hold.
        return self._memory_max if self._task is None else self._memory_max + self._disk_max - self.spilled_bytes

    def changed(self) -> None:
        """A recording has ended."""
        self._recount()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _recount(self) -> None:
        frames = {id(item.frame): item.frame for _, item in self._items()}
        on_disk = [frame for frame in frames.values() if self._is_spilled(frame)]
        self.spilled_bytes = sum(len(frame.body) for frame in on_disk)
        self.bytes = sum(len(frame.body) for frame in frames.values()) - self.spilled_bytes
        in_use = {id(cast(memoryview, frame.body).obj) for frame in on_disk}
        self._maps = {key: mapped for key, mapped in self._maps.items() if key in in_use}

    def _items(self) -> Iterator[tuple[SnapshotId, InFlight]]:
        for snapshot, recording in self._timeline.protocol.open.items():
            for items in recording.frames.values():
                for item in items:
                    yield snapshot, item

    def _is_spilled(self, frame: Frame) -> bool:
        body: object = frame.body
        return isinstance(body, memoryview) and id(body.obj) in self._maps

    def _spill(self) -> None:
        if self.bytes + self.spilled_bytes > self._memory_max + self._disk_max:
            self._give_up(
                f"recording its channels took more than {self._memory_max:,} bytes of memory and "
                f"{self._disk_max:,} bytes of disk"
            )
            return
        if self._task is not None:
            return
        frames = {id(item.frame): item.frame for _, item in self._items() if not self._is_spilled(item.frame)}
        self._task = asyncio.get_running_loop().create_task(self._spill_out(list(frames.values())))

    async def _spill_out(self, frames: list[Frame]) -> None:
        try:
            mapped, bodies = await self._timeline.host.in_thread(
                lambda: _write(self._timeline.host.spill_place, frames)
            )
        except OSError as error:
            self._give_up(f"what its channels held could not be put on disk: {error.strerror}")
        else:
            self._maps[id(mapped)] = mapped
            self.spills += 1
            self._replace({id(frame): body for frame, body in zip(frames, bodies, strict=True)})
            logger.info("put %d bytes of channel state on disk", sum(map(len, bodies)))
        finally:
            self._task = None
        self._recount()

    def _replace(self, bodies: dict[int, memoryview]) -> None:
        """Put frames on disk in the place of those in memory."""
        for recording in self._timeline.protocol.open.values():
            for items in recording.frames.values():
                for place, item in enumerate(items):
                    body = bodies.get(id(item.frame))
                    if body is not None:
                        frame = item.frame
                        on_disk = Frame(frame.first_ordinal, frame.count, cast(bytes, body), frame.index, frame.view)
                        items[place] = InFlight(on_disk, item.consumed)

    def _give_up(self, reason: str) -> None:
        """Abort the snapshot that holds the most."""
        held: dict[SnapshotId, int] = {}
        for snapshot, item in self._items():
            held[snapshot] = held.get(snapshot, 0) + len(item.frame.body)
        if not held:
            return
        snapshot = max(held, key=lambda known: held[known])
        logger.warning("snapshot %s is given up: %s", snapshot, reason)
        self._timeline.host.say(RecordingFailed(snapshot, self._timeline.name, reason))
        self._timeline.tell(SnapshotAborted(snapshot))


def _write(place: Path, frames: list[Frame]) -> tuple[mmap.mmap, list[memoryview]]:
    """Write the bodies of `frames` to a new file without a name; return its mapping, and each body as a view of it."""
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        for frame in frames:
            rest = memoryview(frame.body)
            while rest:
                rest = rest[os.write(file.fileno(), rest) :]
        mapped = mmap.mmap(file.fileno(), sum(len(frame.body) for frame in frames), access=mmap.ACCESS_READ)
    whole, bodies, offset = memoryview(mapped), [], 0
    for frame in frames:
        bodies.append(whole[offset : offset + len(frame.body)])
        offset += len(frame.body)
    return mapped, bodies
