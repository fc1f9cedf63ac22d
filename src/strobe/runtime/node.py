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
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strobe.errors import TransportError, UsageError
from strobe.process import System
from strobe.protocol import Frame, LocalState
from strobe.runtime.addresses import parse_address
from strobe.runtime.application import Application, Captured, decode_frame
from strobe.runtime.host import Host
from strobe.runtime.system_file import parse_system_file, read_system_file
from strobe.storage.states import decode_captured, encode_captured

if TYPE_CHECKING:
    from strobe.runtime.timeline import Timeline

Capture = Callable[[], Any]
Restore = Callable[[Any], None]
Delivery = tuple[str, list[Any]]


class Program(Application):
    """The state of a program with its own loop, and what it is waiting for."""

    def __init__(self, name: str, system: System, capture: Capture, restore: Restore) -> None:
        self.name = name
        self.inputs: tuple[str, ...] = ()
        self.outputs: tuple[str, ...] = ()
        self.timeline: Timeline | None = None
        self.living = asyncio.Event()
        self.over = False
        self.problem: str | None = None
        self._decode = system.decoder.decode
        self._capture = capture
        self._restore = restore
        self._initial: tuple[str, bytes] | None = None
        self._asking: asyncio.Future[Delivery] | None = None
        self._in_event = False
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def ready(self) -> bool:
        return self._asking is not None and not self._asking.done()

    @property
    def quiet(self) -> bool:
        return not self._in_event

    async def until_quiet(self) -> None:
        await self._quiet.wait()

    def begin(self, timeline: "Timeline", local: LocalState | None, state: Any) -> None:
        self.timeline = timeline
        self.position = local.position if local is not None else 0
        if local is not None:
            self._restore(state)
        elif self._initial is None:
            self._initial = encode_captured(self._capture())
        else:
            # Everybody begins anew: so does this program, which cannot be made anew.
            encoding, data = self._initial
            self._restore(decode_captured(self._capture(), LocalState(0, encoding, data)))
        self.living.set()

    def end(self) -> None:
        self.timeline = None

    def view_changed(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self.inputs, self.outputs = inputs, outputs

    def deliver(self, channel: str, frame: Frame, consumed: int) -> None:
        messages = decode_frame(self._decode, self.name, channel, frame)[consumed:]
        self.position += len(messages)
        self._hand_over((channel, messages))

    def take(self, source: str, record: Any) -> None:
        self.position += 1
        self._hand_over((source, [record]))

    def _hand_over(self, delivery: Delivery) -> None:
        assert self._asking is not None, "a program gets messages only when it asks"
        self.enter()
        self._asking.set_result(delivery)

    def leave(self) -> None:
        self.position += 1

    def capture(self) -> Captured:
        return Captured(self._capture(), self.position)

    def example(self) -> Any:
        return self._capture()

    # Events

    def enter(self) -> None:
        self._in_event = True
        self._quiet.clear()

    def exit(self) -> None:
        """The event under way has ended: what waited for that may happen."""
        if self._in_event:
            self._in_event = False
            self._quiet.set()
            if self.timeline is not None:
                self.timeline.pump()

    async def ask(self) -> Delivery:
        """Wait for the next messages; one that was handed over to a wait that was cancelled is not lost."""
        if self.over:
            raise self.ending()
        if self._asking is None:
            self.exit()
            self._asking = asyncio.get_running_loop().create_future()
            if self.timeline is not None:
                self.timeline.pump_soon()
        delivery = await asyncio.shield(self._asking)
        self._asking = None
        return delivery

    def finish(self, problem: str | None) -> None:
        """The node has ended, for this `problem` if there was one: whoever waits is told."""
        self.problem = problem
        self.over = True
        self.living.set()
        if self._asking is not None and not self._asking.done():
            self._asking.set_exception(self.ending())

    def ending(self) -> Exception:
        return TransportError(self.problem) if self.problem is not None else StopAsyncIteration()


class Node:
    """One process of a system, run by a program of its own. Make one by `connect`."""

    def __init__(self, host: Host, program: Program) -> None:
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
        store: str | None = None,
    ) -> "Node":
        """Join `system`, a system.toml or a `System`, as its process `name`; use it with `async with`.

        `capture` returns the state: a msgspec struct, a `KeyedState` or bytes. `restore` takes it back. With a
        `System`, `coordinator` says where that listens.
        """
        if isinstance(system, System):
            whole = system
        else:
            file = parse_system_file(Path(system))
            whole = read_system_file(Path(system))
            coordinator = coordinator or file.coordinator.listen
            listen = listen or (file.process[name].listen if name in file.process else None)
        if name not in whole.processes:
            raise UsageError(f"the system has no process {name!r}; there are: {', '.join(whole.processes)}")
        program = Program(name, whole, capture, restore)
        where = parse_address(coordinator or "127.0.0.1:7400", "coordinator")
        host = Host(name, whole, program, where, listen=parse_address(listen or "127.0.0.1:0", "listen"), store=store)
        return cls(host, program)

    async def __aenter__(self) -> "Node":
        self._running = asyncio.get_running_loop().create_task(self._host.run())
        self._running.add_done_callback(self._ended)
        await self._program.living.wait()
        if self._program.over:
            raise TransportError(self._program.problem or f"node {self.name} was stopped before it began")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        self._host.end(0)
        await self._running

    def _ended(self, running: asyncio.Task[int]) -> None:
        failed = running.cancelled() or running.exception() is not None or running.result() != 0
        self._program.finish((self._host.problem or f"node {self.name} has failed") if failed else None)

    @property
    def name(self) -> str:
        return self._host.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return self._program.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._program.outputs

    def send(self, channel: str, message: Any) -> Awaitable[None]:
        """Send `message`: it is sent when this returns; awaiting the result waits until there is room for more."""
        if self._program.timeline is not None:
            self._program.timeline.outbox.send(channel, message)
        return _Room(self)

    def emit(self, record: Any) -> None:
        """Hand `record` to the sink of this process."""
        if self._program.timeline is not None:
            self._program.timeline.boundary.emit(record)

    def snapshot(self) -> str | None:
        """Initiate a snapshot from here, between two events; return its id. None while the system is rolling back."""
        timeline = self._program.timeline
        if timeline is None:
            return None
        requested = timeline.name_snapshot(0)
        timeline.run_between(lambda: timeline.initiate(requested, None))
        return requested

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """Mark a stretch inside which no cut falls. There must be no await in it."""
        nested = not self._program.quiet
        self._program.enter()
        try:
            yield
        finally:
            if not nested:
                self._program.exit()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        """Return the next frame's channel and messages; end when the system has been stopped, or this node let go."""
        return await self._program.ask()

    async def until_room(self) -> None:
        timeline = self._program.timeline
        while timeline is not None and timeline.outbox.full and not timeline.closed:
            await timeline.outbox.room()


class _Room:
    """What `send` returns. Whoever does not wait for it loses nothing."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __await__(self) -> Any:
        return self._node.until_room().__await__()
