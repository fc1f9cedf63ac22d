"""A process whose behaviour the test sets, and which remembers what it received."""

from collections.abc import Callable
from typing import Any

import msgspec

from strobe.process import Channel, Context, Process, System
from strobe.runtime.node.host import Host


class Memory(msgspec.Struct):
    """What a scripted process has done."""

    received: list[tuple[str, Any]] = []
    fired: list[str] = []
    started: int = 0


class Scripted(Process):
    """`on_receive` and `on_leave` are called with the context; they may send."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.on_receive: Callable[[Context, str, Any], None] = lambda ctx, channel, message: None
        self.on_leave: Callable[[Context], None] = lambda ctx: None

    @property
    def messages(self) -> list[Any]:
        return [message for _, message in self.memory.received]

    def start(self, ctx: Context) -> None:
        self.memory.started += 1

    def receive(self, ctx: Context, channel: str, message: Any) -> None:
        self.memory.received.append((channel, message))
        self.on_receive(ctx, channel, message)

    def timer(self, ctx: Context, name: str) -> None:
        self.memory.fired.append(name)

    def leave(self, ctx: Context) -> None:
        self.on_leave(ctx)

    def capture(self) -> Any:
        return self.memory

    def restore(self, state: Any) -> None:
        self.memory = state


def pair(protocol: str = "chandy-lamport", kind: str = "fifo", **outside: Any) -> System:
    """Two processes, a and b, with a channel each way."""
    channels = [Channel("a", "b", kind), Channel("b", "a", kind)]
    return System({"a": Scripted(), "b": Scripted()}, channels, protocol=protocol, **outside)


def scripted(system: System, name: str) -> Scripted:
    process = system.processes[name]
    assert isinstance(process, Scripted)
    return process


def acting(host: Host) -> Context:
    """Return the context of a process, for use as if one of its handlers ran."""
    assert host.timeline is not None
    host.timeline.outbox.begin_event()
    return host.application.context  # type: ignore[attr-defined,no-any-return]
