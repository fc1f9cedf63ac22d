"""A program with its own loop as a process of a system: `Node`.

    async with Node.connect("system.toml", name="a", capture=f, restore=g) as node:
        async for channel, messages in node:         # one list per frame
            with node.atomic():
                ...                                  # no cut inside; no await inside
            await node.send("a->b", message)         # waits where the peer is slow

The messages of a frame are received when the next frame is asked for; until then no cut is made, so that all that the
program does with them lies on one side of it. What a program does on its own, between frames, is one event from await
to await: a message is sent as soon as `send` is called, and what it waits for is only room for more. A rollback calls
`restore`, between two events; what an event under way still sends goes nowhere.

`async for` ends when the system is stopped, and when this process was asked to leave: then `node.leaving` is true, and
what the program still sends before it leaves the `async with` is its last event.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from strobe.declarations import Declaring
from strobe.errors import TransportError, UsageError
from strobe.event_bound import REQUEST_BYTES
from strobe.process import System
from strobe.runtime.addresses import parse_address
from strobe.runtime.connectors.system_file import parse_system_file, read_system_file
from strobe.runtime.node.host import Host
from strobe.runtime.node.own_loop_application import Capture, Delivery, OwnLoopApplication, Restore, Uncut
from strobe.user_code import explain


class Node:
    """One process of a system, run by a program of its own. Make one by `connect`."""

    def __init__(self, host: Host, program: OwnLoopApplication) -> None:
        self._host = host
        self._program = program
        self._running: asyncio.Task[int] | None = None

    @classmethod
    def connect(
        cls,
        system: str | Path | System,
        *,
        name: str,
        capture: Capture,
        restore: Restore,
        coordinator: str | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        store: str | None = None,
        declaring: Declaring | None = None,
    ) -> "Node":
        """Join `system`, a system.toml or a `System`, as its process `name`; use it with `async with`.

        `capture` returns the state: a msgspec struct, a `KeyedState` or bytes. `restore` takes it back. With a
        `System`, `coordinator` says where that listens. `declaring` has the methods `waits_for`, `references` and
        `active` of a `Process`, for the stable predicates. The others are as for `strobe node`.
        """
        if isinstance(system, System):
            whole = system
        else:
            file = parse_system_file(Path(system))
            whole = _read(Path(system))
            coordinator = coordinator or file.coordinator.listen
            listen = listen or (file.process[name].listen if name in file.process else None)
        if name not in whole.processes:
            raise UsageError(f"the system has no process {name!r}; there are: {', '.join(whole.processes)}")
        program = OwnLoopApplication(name, whole, capture, restore, declaring)
        where = parse_address(coordinator or "127.0.0.1:7400", "coordinator")
        place = parse_address(listen or "127.0.0.1:0", "listen")
        return cls(Host(name, whole, program, where, listen=place, advertise=advertise, store=store), program)

    async def __aenter__(self) -> "Node":
        self._running = asyncio.get_running_loop().create_task(self._host.run())
        self._running.add_done_callback(self._ended)
        try:
            await self._program.living.wait()
        except BaseException:
            await self._end()
            raise
        if self._program.over:
            raise TransportError(self._program.problem or f"node {self.name} was stopped before it began")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._program.depart():
            # Its last messages are on their way; the coordinator lets it go when they have been received.
            await self._program.timeless.wait()
        await self._end()

    async def _end(self) -> None:
        assert self._running is not None
        self._host.end(0)
        await asyncio.wait([self._running])

    def _ended(self, running: asyncio.Task[int]) -> None:
        error = None if running.cancelled() else running.exception()
        problem = explain(error) if error is not None else self._host.problem
        failed = running.cancelled() or error is not None or running.result() != 0
        self._program.finish((problem or f"node {self.name} has failed") if failed else None)

    @property
    def name(self) -> str:
        return self._host.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return self._program.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._program.outputs

    @property
    def leaving(self) -> bool:
        """Whether the process was asked to leave: `async for` has ended, and what it holds can be sent once more."""
        return self._program.leaving

    def send(self, channel: str, message: Any) -> Awaitable[None]:
        """Send `message`: it is sent when this returns; awaiting the result waits until there is room for more."""
        self._program.require_life()
        if self._program.timeline is not None:
            self._program.count_own()
            self._program.timeline.outbox.send(channel, message)
        return _Room(self)

    def emit(self, record: Any) -> None:
        """Hand `record` to the sink of this process."""
        self._program.require_life()
        if self._program.timeline is not None:
            self._program.count_own()
            self._program.timeline.boundary.emit(record)

    def snapshot(self) -> str | None:
        """Initiate a snapshot from here, between two events; return its id. None while the system is rolling back."""
        program, timeline = self._program, self._program.timeline
        if timeline is None:
            return None
        timeline.bound.spend(REQUEST_BYTES)
        requested = timeline.name_snapshot(program.requested)

        def initiate() -> None:
            program.requested -= 1
            timeline.initiate(requested, None)

        program.requested += 1
        timeline.run_between(lambda: timeline.attempt(initiate))
        return requested

    def atomic(self) -> AbstractContextManager[None]:
        """Mark a stretch inside which no cut falls. There must be no await in it, else it raises UsageError."""
        return Uncut(self._program)

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        """Return the next frame's channel and messages; end when the system has been stopped, or this node let go."""
        return await self._program.ask()

    def require_no_stretch(self) -> None:
        """Raise UsageError inside `atomic`: also where there is room now, and awaiting would do no harm yet."""
        if self._program.in_stretch:
            raise UsageError(
                f"node {self.name}: `send` is awaited inside `atomic`, where there must be no await; keep what it "
                "returns, and await that after the stretch"
            )

    async def until_room(self) -> None:
        timeline = self._program.timeline
        while timeline is not None and timeline.outbox.full and not timeline.closed:
            await timeline.outbox.room()


def _read(path: Path) -> System:
    """Return the system that `path` describes; modules are looked for beside the file first."""
    beside = str(path.absolute().parent)
    sys.path.insert(0, beside)
    try:
        return read_system_file(path)
    finally:
        sys.path.remove(beside)


class _Room:
    """What `send` returns. Whoever does not wait for it loses nothing."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __await__(self) -> Any:
        self._node.require_no_stretch()
        return self._node.until_room().__await__()
