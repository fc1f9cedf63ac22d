"""What the processes of one program share: the writer thread, in-memory connections, and large values kept once.

Hundreds of processes may run in one program. Anything that each of them would have for itself (a thread, a copy of the
view, a copy of the manifest to restore, a garbage collection) would then cost hundreds of times as much.
"""

import asyncio
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from strobe.process import System
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.log_entries import EntryRef, Manifest
from strobe.protocol.values.view import ChannelSpec, View
from strobe.runtime.links.memory_connection import MemoryConnections
from strobe.runtime.links.receive_buffers import BUFFER_BYTES, SMALL_BUFFER_BYTES
from strobe.runtime.program.writer_thread import WriterThread
from strobe.runtime.recovery.fragment_loader import find
from strobe.runtime.settings import NodeSettings
from strobe.storage import Store


class SharedParts:
    """The parts shared by `processes` processes; `name` is the program's in the list of threads."""

    def __init__(self, name: str, processes: int = 1) -> None:
        self.processes = processes
        self.writer = WriterThread(name)
        self.connections = MemoryConnections()
        self.connect = self.connections.connect
        self.buffer_bytes = BUFFER_BYTES if processes == 1 else SMALL_BUFFER_BYTES
        self._view: View | None = None
        self._found: tuple[tuple[str, EntryRef | None], tuple[str, Manifest]] | None = None
        self._is_watched = False
        self._channels: tuple[System, dict[str, tuple[ChannelSpec, ...]]] | None = None
        self._collecting: asyncio.Task[None] | None = None
        self._next_collection: asyncio.Task[None] | None = None

    @property
    def alone(self) -> bool:
        """Whether only one process runs in this program."""
        return self.processes == 1

    def spin_s(self, settings: NodeSettings) -> float:
        """Return how long a process polls after a read: if it shares the program, that would only delay the others."""
        return settings.spin_s if self.alone else 0.0

    def watching(self, watch: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[None]:
        """Have the event loop watched, which all processes share, by the first of them."""
        if self._is_watched:
            return nullcontext()
        self._is_watched = True
        return watch()

    def shared_view(self, view: View) -> View:
        """Return `view`, or the equal one that another process has received."""
        if self._view is None or self._view.number != view.number or self._view != view:
            self._view = view
        return self._view

    def channels_of(self, process: str, system: System) -> tuple[ChannelSpec, ...]:
        """Return the channels that `process` has in the first view of `system`."""
        if self._channels is None or self._channels[0] is not system:
            found: dict[str, tuple[ChannelSpec, ...]] = {}
            for spec in first_view(system).channels:
                for end in {spec.source, spec.target}:
                    found[end] = (*found.get(end, ()), spec)
            self._channels = system, found
        return self._channels[1].get(process, ())

    def find(self, store: Store, snapshot: str, commit: EntryRef | None) -> tuple[str, Manifest]:
        """Return the id and manifest of a complete snapshot, read once. Call it in the writer thread."""
        key = snapshot, commit
        if commit is None or self._found is None or self._found[0] != key:
            self._found = key, find(store, snapshot, commit)
        return self._found[1]

    async def collect_garbage(self) -> None:
        """Collect garbage in the writer thread. Calls while one collection runs share the next one."""
        if self._next_collection is None:
            self._next_collection = asyncio.get_running_loop().create_task(self._collect(self._collecting))
        await asyncio.shield(self._next_collection)

    async def _collect(self, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait({earlier})
        self._collecting, self._next_collection = self._next_collection, None
        await self.writer.run(gc.collect)
