"""Stores to read rows from: snapshots with many processes, frames or keys, made without running any process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from strobe.causality.trace_lines import VERSION, Line, Receive, Send, TraceHeader, encode_header, encode_lines
from strobe.keyed_state.segments import pack_header, pack_part
from strobe.protocol.values.fragment import KEYED, MSGPACK, Fragment, LocalState, Snapshot
from strobe.protocol.values.frames import Frame, Frontier, InFlight, seed_hash
from strobe.protocol.values.ids import COORDINATOR, SnapshotId
from strobe.protocol.values.log_entries import Begin
from strobe.protocol.values.view import ChannelSpec, View
from strobe.storage import Store


def mesh(processes: int, hubs: int) -> View:
    """Return a view in which every process has channels to and from each of the first `hubs` processes."""
    names = [f"process{number:03d}" for number in range(processes)]
    pairs = [(a, b) for a in names for b in names if a != b and (a in names[:hubs] or b in names[:hubs])]
    return View(1, tuple(names), tuple(ChannelSpec(f"{a}->{b}", a, b) for a, b in pairs))


def snapshot_of(view: View, counter: int, keys: int = 0, frames: int = 0, messages: int = 0) -> Snapshot:
    """Return snapshot number `counter`; each process has a state with `keys`, and `frames` in flight on one channel."""
    identity = SnapshotId(1, counter, COORDINATOR)
    fragments = {}
    for number, name in enumerate(view.processes):
        incoming, outgoing = view.incoming(name), view.outgoing(name)
        in_flight: dict[str, tuple[InFlight, ...]] = {channel.id: () for channel in incoming}
        if frames:
            in_flight[incoming[0].id] = tuple(_frame(counter, place, messages) for place in range(frames))
        fragments[name] = Fragment(
            identity,
            name,
            view.number,
            {channel.id: Frontier(counter, seed_hash(channel.id, counter)) for channel in outgoing},
            {channel.id: Frontier(counter, seed_hash(channel.id, counter)) for channel in incoming},
            in_flight,
            _state(counter * 1000 + number, keys),
        )
    return Snapshot(identity, "chandy-lamport", (view.processes[0],), view, fragments, counter, counter + 1)


def fill(path: Path, snapshots: list[Snapshot]) -> Store:
    """Commit `snapshots` to a new store."""
    store = Store.create(path)
    with unsynced():
        for snapshot in snapshots:
            begin = Begin(str(snapshot.id), snapshot.view.number, snapshot.protocol, snapshot.initiators, at_us=1)
            store.append(begin, store.state().next_position)
            store.commit(str(snapshot.id), store.write_snapshot(snapshot), store.state().next_position, at_us=2)
    return store


@contextmanager
def unsynced() -> Iterator[None]:
    """Skip fsync, for stores that are only made to be read: waiting for the disk would take minutes."""
    fsync, os.fsync = os.fsync, lambda _: None
    try:
        yield
    finally:
        os.fsync = fsync


def _state(seed: int, keys: int) -> LocalState:
    if not keys:
        return LocalState(seed, MSGPACK, msgspec.msgpack.encode({"balance": seed, "name": f"account {seed}"}))
    entries = {f"account{key:06d}": {"balance": seed + key, "name": f"account {key}"} for key in range(keys)}
    return LocalState(seed, KEYED, b"".join((pack_header("base"), *pack_part(entries))))


def _frame(counter: int, place: int, messages: int) -> InFlight:
    first = place * messages + 1
    amounts = [
        {"amount": counter * 100 + number, "memo": f"transfer {number}"} for number in range(first, first + messages)
    ]
    return InFlight(Frame(first, messages, msgspec.msgpack.encode(amounts)))


def write_trace(path: Path, events: int) -> None:
    """Write a trace in which eight processes pass messages around a ring, each receiving one and sending one."""
    names = [f"process{number}" for number in range(8)]
    channels = [ChannelSpec(f"{a}->{b}", a, b) for a, b in zip(names, [*names[1:], names[0]], strict=True)]
    header = TraceHeader(VERSION, tuple(names), tuple(channels))
    lines: list[Line] = [Send(names[0], 1, channels[0].id, 1)]
    for event in range(1, events):
        place, turn = event % 8, event // 8
        process, position = names[place], turn + 1
        lines.append(Receive(process, position, channels[place - 1].id, (event - 1) // 8 + 1))
        lines.append(Send(process, position, channels[place].id, turn + 1))
    path.write_bytes(encode_header(header) + encode_lines(lines))
