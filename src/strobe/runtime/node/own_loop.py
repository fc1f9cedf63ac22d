"""`Node`: a program with its own event loop as a process of a system.

    async with Node.connect("system.toml", name="a", capture=f, restore=g) as node:
        async for channel, messages in node:         # one list per frame
            with node.atomic():
                ...                                  # no cut inside; no await inside
            await node.send("a->b", message)         # waits if the peer is slow; send_many() sends a list

The messages of a frame count as received when the program requests the next frame. Until then no cut is taken, so all
actions on these messages are on one side of a cut. Outside frames, the program's actions from await to await are one
event. A message is sent as soon as `send` is called; awaiting the result only waits for room (back-pressure). A
rollback calls `restore` between two events; messages that the interrupted event still sends are dropped.

`async for` ends when the system is stopped, or when this process was asked to leave or to restart. In the second case
`node.leaving` is true, and the sends until the end of the `async with` are its last event.

A program that leaves its `async with` without an error hands over: its state, and all messages that it has not received
or that have not arrived yet. Started again, it goes on from there (E11). After an error the system rolls back.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Iterable
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
from strobe.runtime.node.own_loop_application import (
    AtomicStretch,
    CaptureFunction,
    ChannelMessages,
    OwnLoopApplication,
    RestoreFunction,
)
from strobe.user_code import explain

logger = logging.getLogger("strobe.node")


class Node:
    """One process of a system, run by its own program. Create it with `connect`."""

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
        capture: CaptureFunction,
        restore: RestoreFunction,
        coordinator: str | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        store: str | None = None,
        declaring: Declaring | None = None,
    ) -> "Node":
        """Join `system`, a system.toml or a `System`, as its process `name`; use it with `async with`.

        `capture` returns the state: a msgspec struct, a `KeyedState` or bytes. `restore` takes it back. With a
        `System`, `coordinator` is the coordinator's address. `declaring` has the methods `waits_for`, `references` and
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
            await self._program.started.wait()
        except BaseException:
            await self._end()
            raise
        if self._program.ended:
            raise TransportError(self._program.problem or f"node {self.name} was stopped before it began")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._program.depart():
            # The last messages are in flight; the coordinator dismisses the process when they have been received. If
            # it restarts, it hands over.
            await self._program.without_timeline.wait()
        elif kind is None and self._program.untaken:
            logger.warning("node %s cannot hand over: its program has not taken the last messages", self.name)
        elif kind is None:
            self._program.end_program()
            await self._hand_over()
        await self._end()

    async def _hand_over(self) -> None:
        """Hand over to the next run of this program, if the system goes on without this one."""
        assert self._running is not None
        self._host.hand_over.request()
        await asyncio.wait([self._running])

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
        """Whether this process must leave or restart: `async for` has ended, and the last messages can be sent."""
        return self._program.leaving

    def send(self, channel: str, message: Any) -> Awaitable[None]:
        """Send `message`. It is sent when this returns; awaiting the result waits for room (back-pressure)."""
        self._program.require_running()
        if self._program.timeline is not None:
            self._program.count_own()
            self._program.timeline.outbox.send(channel, message)
        return _Room(self)

    def send_many(self, channel: str, messages: Iterable[Any]) -> Awaitable[None]:
        """Send all `messages`, like `send` for each but faster; if one cannot be sent, none is."""
        self._program.require_running()
        if self._program.timeline is not None:
            self._program.count_own()
            self._program.timeline.outbox.send_many(channel, messages)
        return _Room(self)

    def emit(self, record: Any) -> None:
        """Pass `record` to the sinks of this process."""
        self._program.require_running()
        if self._program.timeline is not None:
            self._program.count_own()
            self._program.timeline.emit(record)

    def snapshot(self) -> str | None:
        """Initiate a snapshot, between two events, and return its id; None during a rollback."""
        program, timeline = self._program, self._program.timeline
        if timeline is None:
            return None
        timeline.bound.spend(REQUEST_BYTES)
        requested = timeline.name_snapshot(program.position, program.requested)

        def initiate() -> None:
            program.requested -= 1
            timeline.initiate(requested, None)

        program.requested += 1
        timeline.scheduler.run_between(lambda: timeline.scheduler.attempt(initiate))
        return requested

    def atomic(self) -> AbstractContextManager[None]:
        """Mark a stretch without cuts. An await inside it raises UsageError."""
        return AtomicStretch(self._program)

    def __aiter__(self) -> AsyncIterator[ChannelMessages]:
        return self

    async def __anext__(self) -> ChannelMessages:
        """Return the next frame's channel and messages; end when the system is stopped or this process must leave."""
        return await self._program.next_delivery()

    def require_no_stretch(self) -> None:
        """Raise UsageError inside `atomic`, even if there is room and the await would return at once."""
        if self._program.in_atomic:
            raise UsageError(
                f"node {self.name}: `send` is awaited inside `atomic`, which must not be suspended; keep what it "
                "returns, and await that after the stretch"
            )

    async def wait_for_room(self) -> None:
        timeline = self._program.timeline
        while timeline is not None and timeline.outbox.full and not timeline.scheduler.closed:
            await timeline.outbox.room()


def _read(path: Path) -> System:
    """Return the system in the file `path`; its modules are imported from the file's directory first."""
    beside = str(path.absolute().parent)
    sys.path.insert(0, beside)
    try:
        return read_system_file(path)
    finally:
        sys.path.remove(beside)


class _Room:
    """The result of `send` and `send_many`. Awaiting it is optional."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __await__(self) -> Any:
        self._node.require_no_stretch()
        return self._node.wait_for_room().__await__()
