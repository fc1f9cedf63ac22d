"""Snapshots with random declarations of processes and messages, reproducible by seed."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec
from tests.spark.generate import Execution

from strobe.declarations import Declared, MessageRule, Waits
from strobe.protocol.values.fragment import LocalState, Snapshot
from strobe.protocol.values.frames import Frame
from strobe.protocol.values.ids import COORDINATOR, SnapshotId
from strobe.protocol.values.view import ChannelSpec

RULES = (
    MessageRule("type", "Grant", grants=True),
    MessageRule("type", "Ask", requests=True),
    MessageRule("type", "Share", references=("names",)),
    MessageRule("type", "Relay", grants=("names",), requests=("names",)),
)
NAMES = ("a", "b", "c", "d", "x", "y", "z", "elsewhere")


def declaring_snapshots(seed: int, count: int, first_counter: int = 1) -> Iterator[Snapshot]:
    rng = random.Random(seed)
    for counter in range(first_counter, first_counter + count):
        yield DeclaringExecution(rng).snapshot(SnapshotId(1, counter, COORDINATOR))


class DeclaringExecution(Execution):
    """Rates differ between runs: if all processes waited, or much was in flight, all answers would be the same."""

    def __init__(self, rng: random.Random) -> None:
        self.waiting, self.active, self.rules = rng.random(), rng.choice((0.0, 0.2, 0.7)), rng.random() < 0.8
        super().__init__(rng)
        if rng.random() < 0.4:
            self.receive_everything()

    def receive_everything(self) -> None:
        for channel in self.view.channels:
            for frame in self.wires[channel.id]:
                self.incoming[channel.id].accept(frame, channel.target)
            self.wires[channel.id].clear()

    def breakpoint(self, process: str) -> None:
        """Return None: everything may be received, so nothing may be in flight."""

    def send(self, channel: ChannelSpec) -> Frame:
        messages = [self.message() for _ in range(self.rng.randint(1, 2))]
        return self.outgoing[channel.id].seal(len(messages), msgspec.msgpack.encode(messages), 0, self.view.number)

    def message(self) -> Any:
        kind = self.rng.choice(("Grant", "Ask", "Share", "Relay", "Other"))
        return {"type": kind, "names": self.rng.sample(NAMES, 2)} if self.rng.random() < 0.9 else 17

    def state(self) -> LocalState:
        rng = self.rng
        timers = (("tick", 0.5),) if rng.random() < self.active / 2 else ()
        if rng.random() < 0.1:
            return LocalState(1, "bytes", b"", timers)
        waits = self.waits(2) if rng.random() < self.waiting else None
        holders = rng.sample(NAMES[:7], rng.randint(0, 3))
        references = {holder: tuple(rng.sample(NAMES, rng.randint(0, 2))) for holder in holders}
        rules = RULES if self.rules else ()
        return LocalState(
            1, "bytes", b"", timers, declared=Declared(waits, references, rng.random() < self.active, rules)
        )

    def waits(self, depth: int) -> Waits:
        members = [
            self.waits(depth - 1) if depth and self.rng.random() < 0.2 else self.rng.choice(NAMES[:4])
            for _ in range(self.rng.randint(0 if depth < 2 else 1, 3))
        ]
        return Waits(tuple(members), self.rng.random() < 0.4, self.rng.random() < 0.1)
