"""Random executions of small systems and their snapshots, reproducible by seed.

Both ends of every channel are those of the real protocols, so a snapshot is good because it was recorded correctly. It
is taken at one instant, which is always a consistent cut. Some processes are at a breakpoint inside a received frame.
"""

import random
from collections.abc import Iterator

import msgspec

from strobe.protocol.process.channels import Incoming, Outgoing
from strobe.protocol.process.events import Breakpoint
from strobe.protocol.values.fragment import MSGPACK, OPAQUE, Fragment, LocalState, Snapshot
from strobe.protocol.values.frames import BLAKE3, FIFO, UNORDERED, XXH3, Frame, InFlight
from strobe.protocol.values.ids import COORDINATOR, SnapshotId
from strobe.protocol.values.view import ChannelSpec, View

FRAMES_MAX = 24
SEND = 0.6
BREAKPOINT = 0.3
LONG_FRAME = 0.02
"""Some frames have so many messages that MessagePack encodes the length of the array in another format."""


def good_snapshots(seed: int, count: int, first_counter: int = 1) -> Iterator[Snapshot]:
    rng = random.Random(seed)
    for counter in range(first_counter, first_counter + count):
        yield Execution(rng).snapshot(SnapshotId(1, counter, COORDINATOR))


def random_view(rng: random.Random) -> View:
    """Return two to four processes with random channels, possibly with self-loops or several between the same pair."""
    processes = tuple("abcd"[: rng.randint(2, 4)])
    channels = tuple(random_channel(rng, f"c{number}", processes) for number in range(rng.randint(1, 5)))
    return View(rng.randint(1, 9), processes, channels)


def random_channel(rng: random.Random, name: str, processes: tuple[str, ...]) -> ChannelSpec:
    kind, hashed_by = rng.choice(((FIFO, XXH3), (FIFO, BLAKE3), (UNORDERED, XXH3)))
    return ChannelSpec(name, rng.choice(processes), rng.choice(processes), kind, rng.randint(1, 3), hashed_by)


class Execution:
    """One run: frames are sent, and received in an order that the channel allows, for a random number of steps."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.view = random_view(rng)
        self.view.check()
        self.outgoing = {channel.id: Outgoing(channel) for channel in self.view.channels}
        self.incoming = {channel.id: Incoming(channel) for channel in self.view.channels}
        self.wires: dict[str, list[Frame]] = {channel.id: [] for channel in self.view.channels}
        for _ in range(rng.randint(0, FRAMES_MAX)):
            self.step(rng.choice(self.view.channels))

    def step(self, channel: ChannelSpec) -> None:
        wire = self.wires[channel.id]
        if not wire or self.rng.random() < SEND:
            wire.append(self.send(channel))
        else:
            place = 0 if channel.kind == FIFO else self.rng.randrange(len(wire))
            self.incoming[channel.id].accept(wire.pop(place), channel.target)

    def send(self, channel: ChannelSpec) -> Frame:
        count = 17 if self.rng.random() < LONG_FRAME else self.rng.randint(1, 3)
        messages = [{"type": "Transfer", "amount": self.rng.randint(1, 1000)} for _ in range(count)]
        return self.outgoing[channel.id].seal(count, msgspec.msgpack.encode(messages), 0, self.view.number)

    def snapshot(self, identity: SnapshotId) -> Snapshot:
        fragments = {process: self.fragment(identity, process) for process in self.view.processes}
        return Snapshot(identity, "chandy-lamport", self.view.processes[:1], self.view, fragments, 1_000_000, 2_000_000)

    def fragment(self, identity: SnapshotId, process: str) -> Fragment:
        stop = self.breakpoint(process)
        incoming = self.view.incoming(process)
        return Fragment(
            snapshot=identity,
            process=process,
            view=self.view.number,
            sent={channel.id: self.outgoing[channel.id].frontier() for channel in self.view.outgoing(process)},
            received={channel.id: self.incoming[channel.id].frontier(stop) for channel in incoming},
            in_flight={channel.id: self.in_flight(channel, stop) for channel in incoming},
            state=self.state(),
        )

    def in_flight(self, channel: ChannelSpec, stop: Breakpoint | None) -> tuple[InFlight, ...]:
        waiting = tuple(InFlight(frame) for frame in self.wires[channel.id])
        if stop is None or stop.channel != channel.id:
            return waiting
        last = self.incoming[channel.id].last
        assert last is not None
        return (InFlight(last, stop.consumed), *waiting)

    def breakpoint(self, process: str) -> Breakpoint | None:
        """Sometimes return a position inside the last frame of one incoming channel."""
        for channel in self.view.incoming(process):
            last = self.incoming[channel.id].last
            if last is not None and last.count > 1 and self.rng.random() < BREAKPOINT:
                return Breakpoint(channel.id, self.rng.randrange(1, last.count))
        return None

    def state(self) -> LocalState:
        position = self.rng.randint(0, 100)
        if self.rng.random() < 0.1:
            return LocalState(position, OPAQUE, self.rng.randbytes(8))
        return LocalState(position, MSGPACK, msgspec.msgpack.encode({"balance": self.rng.randint(0, 1000)}))
