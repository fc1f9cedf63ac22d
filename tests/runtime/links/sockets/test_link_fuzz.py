"""E14: mutated streams, sent to the link port of a real node over real sockets.

Each mutant is a valid stream with one change. Afterwards the node must still run, hold no more than its bounds allow,
and receive the next valid message on the same channel.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.runtime.link_ends import EPOCH, run, until
from tests.runtime.links.sockets.test_hostile_peers import Hostile
from tests.runtime.lone_node import LoneNode, lone_node
from tests.runtime.scripted import Scripted

from strobe.process import Channel, System
from strobe.protocol import Frame, SnapshotId, View
from strobe.protocol.process.events import Marker
from strobe.runtime.links import codec
from strobe.runtime.links.codec import HEADER
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.messages.control import FragmentStored
from strobe.runtime.node.captures import UNBEGUN_MAX

MUTANTS = 150
PROTOCOLS = {
    "chandy-lamport": "fifo",
    "lai-yang": "unordered",
    "aligned": "fifo",
    "unaligned": "fifo",
    "aligned-then-unaligned": "fifo",
}
EXTREME = (0, 1, 2, 3, 1 << 8, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
SIZES = (32, 16, 8, 32, 32, 64, 64, 64)
"""The number of bits of each header field."""
NUMBERS = msgspec.msgpack.Decoder(list[int])


def system_of(protocol: str) -> System:
    return System({"a": Scripted(), "b": Scripted()}, [Channel("a", "b", PROTOCOLS[protocol])], protocol=protocol)


class Peer:
    """The source of a->b. It has no state: its frames continue from the current state of the node."""

    def __init__(self, node: LoneNode, chance: Random) -> None:
        self.node, self.chance = node, chance

    @property
    def incoming_link(self) -> IncomingLink:
        return self.node.timeline.channels.incoming_links["a->b", 1]

    @property
    def view(self) -> View:
        return self.node.timeline.protocol.view

    def messages(self, first: int, *numbers: int) -> bytearray:
        body, index = msgspec.msgpack.encode(numbers), self.node.timeline.protocol.index
        return codec.messages_frame(Frame(first, len(numbers), body, index, self.view.number))

    def marker(self, sent: int) -> Marker:
        counter = self.node.timeline.protocol.counter_seen + self.chance.randrange(2)
        barriers = self.node.timeline.protocol.barriers
        return Marker(EPOCH, self.view.number, SnapshotId(EPOCH, counter, "a"), sent if barriers else None)

    def joined(self, sent: int) -> bytearray:
        """Return a frame with the next view, which has one more process."""
        number = self.view.number + 1
        return codec.view_frame(View(number, (*self.view.processes, f"n{number}"), self.view.channels), sent)

    def overtaking(self, due: int) -> list[bytearray]:
        waiting = [self.messages(due, 1, 2), self.messages(due + 2, 3)]
        return [*codec.barrier_frames(self.marker(due + 2), waiting), *waiting]

    def stream(self) -> list[bytearray]:
        """Return a few valid next frames, in order."""
        due = self.incoming_link.next_ordinal
        frames: list[bytearray] = []
        for _ in range(self.chance.randrange(1, 4)):
            frames.append(self.messages(due, *range(self.chance.randrange(1, 5))))
            due += HEADER.unpack_from(frames[-1])[3]
            if self.chance.random() < 0.5:
                frames.append(codec.marker_frame(self.marker(due - 1)))
        if self.node.timeline.protocol.overtakes and self.chance.random() < 0.5:
            frames += self.overtaking(due)
            due += 3
        if self.chance.random() < 0.2:
            frames.append(self.joined(due - 1))
        return frames


def by_bytes(frame: bytearray, chance: Random) -> bytearray:
    for _ in range(chance.randrange(1, 4)):
        frame[chance.randrange(len(frame))] = chance.randrange(256)
    return frame


def by_header(frame: bytearray, chance: Random) -> bytearray:
    """Change one header field to an extreme value, or to one close to its own."""
    header = list(HEADER.unpack_from(frame))
    place = chance.randrange(len(header))
    near = header[place] + chance.choice((-2, -1, 1, 2))
    header[place] = chance.choice((*EXTREME, near)) % (1 << SIZES[place])
    HEADER.pack_into(frame, 0, *header)
    return frame


def by_values(frame: bytearray, chance: Random) -> bytearray:
    """Change one value in the body; the body of an OVERTAKEN frame is replaced."""
    content = msgspec.msgpack.decode(frame[HEADER.size :]) if frame[codec.KIND_AT] != codec.OVERTAKEN else [0]
    body = msgspec.msgpack.encode(changed(content, chance))
    header = HEADER.unpack_from(frame)
    return bytearray(HEADER.pack(len(body), *header[1:])) + body


def changed(value: object, chance: Random) -> object:
    if isinstance(value, dict) and value:
        key = chance.choice(list(value))
        return {**value, key: changed(value[key], chance)}
    if isinstance(value, list) and value:
        place = chance.randrange(len(value))
        return [*value[:place], changed(value[place], chance), *value[place + 1 :]]
    if isinstance(value, int) and chance.random() < 0.5:
        return value + chance.choice((-1, 1))
    return chance.choice((*EXTREME, -1, None, "", "a", "../b", b"\xc1", [], {}, 1.5))


def cut_short(frame: bytearray, chance: Random) -> bytearray:
    return frame[: chance.randrange(len(frame))]


def unrelated(frame: bytearray, chance: Random) -> bytearray:
    return bytearray(chance.randbytes(chance.randrange(1, 200)))


CHANGES: tuple[Callable[[bytearray, Random], bytearray], ...] = (by_bytes, by_header, by_values, cut_short, unrelated)


def mutant(frames: list[bytearray], first_sequence: int, chance: Random) -> bytes:
    """Return the stream with one frame changed, left out or repeated."""
    for sequence, frame in enumerate(frames, first_sequence):
        codec.number(frame, sequence)
    place, kind = chance.randrange(len(frames)), chance.random()
    if kind < 0.75:
        frames[place] = chance.choice(CHANGES)(frames[place], chance)
    elif kind < 0.85:
        frames.pop(place)
    else:
        frames.insert(chance.randrange(len(frames) + 1), frames[place])
        if kind < 0.95:  # with valid sequence numbers, so that only its ordinals are wrong
            for sequence, frame in enumerate(frames, first_sequence):
                frames[sequence - first_sequence] = bytearray(frame)
                codec.number(frames[sequence - first_sequence], sequence)
    return b"".join(frames)


async def send(node: LoneNode, data: bytes) -> None:
    """Send `data`, close the connection, and wait until the node has closed it too."""
    hostile = await Hostile.connect(node)
    hostile.writer.write(data)
    hostile.writer.write_eof()
    try:
        while await hostile.reader.read(1 << 16):
            pass
    except ConnectionError:
        pass
    hostile.writer.close()


async def check_receives(peer: Peer, number: int) -> None:
    """Check that a valid message is received, with a second attempt if an incomplete barrier preceded it."""
    process = peer.node.process
    for _ in range(2):
        hostile = await Hostile.connect(peer.node)
        frame = peer.messages(peer.incoming_link.next_ordinal, number)
        codec.number(frame, hostile.welcome.last_sequence + 1)
        hostile.writer.write(frame)
        ended = asyncio.ensure_future(hostile.reader.read())
        await until(lambda: number in process.messages[-1:] or ended.done())  # noqa: B023
        hostile.writer.close()
        ended.cancel()
        if number in process.messages[-1:]:
            return
    raise AssertionError(f"{number} was not received: {peer.node.host.rejected}")


async def check_stores(peer: Peer) -> None:
    """Check that a snapshot of the coordinator is recorded and stored."""
    node, protocol = peer.node, peer.node.timeline.protocol
    counter = max(protocol.counter_seen, protocol.index) + 1
    initiator = "coordinator" if protocol.sequenced else "a"
    begun = node.coordinator.log_begin("b", snapshot=SnapshotId(EPOCH, counter, initiator))
    node.link.send(begun)
    await until(lambda: begun.snapshot in node.timeline.captures._begun)
    sent = peer.incoming_link.next_ordinal - 1
    marker = Marker(EPOCH, peer.view.number, begun.snapshot, sent if protocol.barriers else None)
    frame = peer.messages(sent + 1, -1) if protocol.name == "lai-yang" else codec.marker_frame(marker)
    if protocol.name == "lai-yang":
        codec.HEADER.pack_into(frame, 0, *HEADER.unpack_from(frame)[:-1], counter)
    hostile = await Hostile.connect(node)
    codec.number(frame, hostile.welcome.last_sequence + 1)
    hostile.writer.write(frame)
    await until(lambda: begun.snapshot in node.timeline.captures.open)
    if protocol.name != "lai-yang":  # which waits for a count from the coordinator before it is stored
        await until(lambda: any(report.snapshot == begun.snapshot for report in node.link.said(FragmentStored)))
    hostile.writer.close()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_E14_no_mutant_of_a_stream_ends_the_node(tmp_path: Path, protocol: str, seed: int) -> None:
    async def scenario() -> None:
        chance = Random(f"{protocol} {seed}")
        system = system_of(protocol)
        system.decoder = NUMBERS
        async with lone_node(tmp_path, system, alignment_s=0.0) as node:
            node.source.outgoing_link.close()
            node.timeline.channels.admit(node.source.outgoing_link.hello)
            peer = Peer(node, chance)
            for number in range(MUTANTS):
                hostile = await Hostile.connect(node)
                data = mutant(peer.stream(), hostile.welcome.last_sequence + 1, chance)
                hostile.writer.close()
                await send(node, data)
                assert node.host.problem is None, f"mutant {number}"
                await check_receives(peer, 1000 + number)
                assert len(node.timeline.captures.open) <= UNBEGUN_MAX
            assert sum(node.host.rejected.values()) > MUTANTS // 4
            await check_stores(peer)
            assert node.host.problem is None

    run(scenario())
