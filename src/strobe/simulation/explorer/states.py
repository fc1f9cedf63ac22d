"""The states of the explorer: one process, its reaction to an event, the whole system; and numbers for equal values."""

from collections.abc import Hashable
from typing import Any

import msgspec

from strobe.protocol import SnapshotId

Global = tuple[int, ...]
"""The state of the whole system, as described in `space`."""


class Interned:
    """Gives equal values the same small number."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.keys: list[Hashable] = []
        self.values: list[Any] = []

    def number(self, key: Hashable, value: Any = None) -> int:
        known = self.numbers.get(key)
        if known is None:
            known = self.numbers[key] = len(self.values)
            self.keys.append(key)
            self.values.append(key if value is None else value)
        return known


class ActualMessages(msgspec.Struct, frozen=True):
    """What a process has really done at its recording: fragments are compared with it."""

    sent: tuple[tuple[str, int], ...]
    received: tuple[tuple[str, frozenset[int]], ...]

    def as_fields(self) -> dict[str, Any]:
        """Return it in the form of a running process."""
        return {"sent": dict(self.sent), "received": dict(self.received)}


class Local(msgspec.Struct):
    """One process: its protocol machine, what it has done, what it has captured."""

    machine: Any
    sent: dict[str, int]
    received: dict[str, frozenset[int]]
    captured: dict[SnapshotId, ActualMessages]
    # With barriers: inputs that are held back, and running timers.
    held: frozenset[str] = frozenset()
    timers: frozenset[SnapshotId] = frozenset()

    def actual(self) -> ActualMessages:
        return ActualMessages(tuple(sorted(self.sent.items())), tuple(sorted(self.received.items())))


class LocalStep(msgspec.Struct, frozen=True):
    """The output of a process's reaction: items on channels, orders and reports, fragments."""

    local: int
    puts: tuple[tuple[int, int], ...]
    orders: tuple[tuple[int, int], ...]
    fragments: tuple[tuple[int, int], ...]


class Action(msgspec.Struct, frozen=True):
    """One possible action: `kind` is send, forward, deliver, timeout, control, crash or rollback."""

    kind: str
    process: str
    channel: str = ""
    event: Any = None
