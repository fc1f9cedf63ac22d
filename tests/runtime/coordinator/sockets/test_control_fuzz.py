"""Whatever valid, mutated or random control messages a node sends, the coordinator continues."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.runtime.fake_nodes import Running, both_alive, committed, record_of, running

from strobe.errors import TransportError
from strobe.protocol import SnapshotId
from strobe.protocol.coordinator.messages import (
    CannotRestore,
    Drained,
    RecordingFailed,
    Released,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.coordinator.restart_messages import (
    CannotHandOver,
    CannotResume,
    HandedOver,
    HandOverRef,
    RestartWanted,
)
from strobe.runtime.messages.control import (
    FROM_NODE,
    LENGTH,
    VERSION,
    Blocked,
    ChannelReport,
    Failed,
    FragmentStored,
    Heartbeat,
    ProcessRecorded,
    Register,
    SnapshotBegun,
    Welcome,
    pack,
    unpack,
)
from strobe.storage import Store
from strobe.storage.store.repair import examine

SEEDS = range(20)
MESSAGES = 12
HOSTILE = (
    None,
    True,
    0,
    -1,
    1 << 31,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 32,
    1 << 40,
    1 << 63,
    (1 << 64) - 1,
    float("inf"),
    -1.0,
    1e308,
    float("nan"),
    "",
    "a",
    "b",
    "nobody",
    "a->b",
    "../../etc",
    "../" * 12 + "dev/zero",
    "a\nb",
    "a b",
    ".",
    "\u202e",
    "0" * 64,
    "é" * 150,
    "x" * 10_000,
    "\x00\x1b[31m",
    b"\xc1",
    [],
    {},
    [[]] * 50,
    [1, (1 << 63) - 1, "a"],
    [1, 1, ""],
    {f"k{number}": 1 for number in range(1000)},
    {"": 0},
    "1-1-a",
    "999999-999999-b",
)


def every_message(coordinator: Running, snapshot: SnapshotId) -> list[msgspec.Struct]:
    """Return one message of each kind that a node may send, as process a would send it about `snapshot`."""
    view = coordinator.coordinator.lifecycle.view
    record = record_of(Store.open(coordinator.coordinator.store_url), view, "a", 0, b"state")
    channels = {channel.id: ChannelReport(5) for channel in view.outgoing("a")}
    messages = [
        Register(VERSION, "a", "instance", 1, ("127.0.0.1", 1), tuple(view.channels), "chandy-lamport"),
        Heartbeat(
            "a",
            1,
            7,
            0.1,
            1000,
            channels,
            {"b->a": 3},
            {"garbage": 1},
            waiting="x",
            waiting_bytes={"b->a": 5},
            unreadable={"b->a": "x"},
            held_back="x",
            blocked="x",
        ),
        Blocked("a", "instance", coordinator.coordinator.identity, "x() of a at y.py:1", 5.0),
        ProcessRecorded(snapshot, "a", 5),
        FragmentStored(snapshot, "a", view.number, record),
        RecordingFailed(snapshot, "a", "no room"),
        SentCountsArrived(snapshot, "a", {"a->b": 5}),
        SnapshotStarted(snapshot, "a", view.number),
        SnapshotWanted(("a",)),
        Drained("a", view.number),
        Released("a", 2),
        CannotRestore("a", 7, "it is damaged"),  # for the current epoch, it would rightly stop everything
        RestartWanted("a"),
        HandedOver("a", 7, HandOverRef("0" * 16 + "-000007-" + "0" * 16, "0" * 64, 5)),
        CannotHandOver("a", "its sink has no resume"),
        CannotResume("a", "0" * 16 + "-000007-" + "0" * 16, "it was used"),
        Failed("a", "it cannot go on"),
    ]
    assert {type(message).__name__ for message in messages} == set(FROM_NODE)
    return messages


def mutated(fields: Any, chance: Random) -> Any:
    """Return `fields` with a part, at any depth, replaced, copied to another key, or left out."""
    if isinstance(fields, dict) and fields and chance.random() < 0.9:
        key = chance.choice(list(fields))
        if chance.random() < 0.05:
            return {name: value for name, value in fields.items() if name != key}
        if chance.random() < 0.05:
            return {**fields, chance.choice(["a", "b->a", "nobody", ""]): fields[key]}
        return {**fields, key: mutated(fields[key], chance)}
    if isinstance(fields, (list, tuple)) and fields and chance.random() < 0.9:
        place = chance.randrange(len(fields))
        return [*fields[:place], mutated(fields[place], chance), *fields[place + 1 :]]
    return chance.choice(HOSTILE)


def by_fields(message: msgspec.Struct, chance: Random) -> bytes:
    body = msgspec.msgpack.encode((type(message).__name__, mutated(msgspec.to_builtins(message), chance)))
    return LENGTH.pack(len(body)) + body


def nested(message: msgspec.Struct, chance: Random) -> bytes:
    """Encode the message with deeply nested arrays in place of its fields."""
    name = msgspec.msgpack.encode(type(message).__name__)
    body = b"\x92" + name + b"\x91" * chance.randrange(900, 100_000) + b"\x00"
    return LENGTH.pack(len(body)) + body


def by_bytes(message: msgspec.Struct, chance: Random) -> bytes:
    data = bytearray(pack(message))
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(LENGTH.size, len(data))] = chance.randrange(256)
    return bytes(data)


def unchanged(message: msgspec.Struct, chance: Random) -> bytes:
    return pack(message)


async def send(coordinator: Running, data: bytes) -> None:
    """Reconnect as process a with the view installed, send `data`, and wait until the connection has ended."""
    lifecycle = coordinator.coordinator.lifecycle
    node = await coordinator.node("a", instance="a", epoch=lifecycle.epoch)
    node.send(Drained("a", lifecycle.view.number))
    node.writer.write(data)
    node.writer.write_eof()
    async with asyncio.timeout(20):
        await node.ended.wait()
    assert isinstance(node.received[0], Welcome)


async def assert_continues(store: Path) -> None:
    """Check that another coordinator can read the log and commit a snapshot of both processes."""
    async with running(store, timeout_s=20.0) as coordinator:
        a, b = await both_alive(coordinator)
        a.forget()
        b.forget()
        await committed(coordinator, a, b)
    assert examine(Store.open(store).backend).findings == ()


@pytest.mark.parametrize("open_snapshot", [False, True])
@pytest.mark.parametrize("change", [by_fields, by_bytes, nested, unchanged])
def test_the_coordinator_survives_any_messages_of_a_node(
    tmp_path: Path, change: Callable[[msgspec.Struct, Random], bytes], open_snapshot: bool
) -> None:
    async def scenario(seed: int) -> None:
        chance = Random(seed)
        async with running(tmp_path / f"store-{seed}", overlapping_max=1000) as coordinator:
            a = await coordinator.node("a", instance="a")
            await a.start_as_ordered()
            await coordinator.start_node("b")
            await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
            snapshot = SnapshotId(1, 1, "a")
            if open_snapshot:
                coordinator.coordinator.handle(SnapshotWanted())
                snapshot = (await a.handle(SnapshotBegun)).snapshot
            for message in chance.choices(every_message(coordinator, snapshot), k=MESSAGES):
                await send(coordinator, change(message, chance))
            stranger = await coordinator.node("stranger", channels=())
            assert "there is no process" in (await stranger.refused()).reason
        await assert_continues(tmp_path / f"store-{seed}")

    for seed in SEEDS:
        asyncio.run(scenario(seed))


def leaves(fields: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value that is not a map or an array, at any depth."""
    if isinstance(fields, dict):
        for key, value in fields.items():
            yield from leaves(value, (*path, key))
    elif isinstance(fields, (list, tuple)):
        for place, value in enumerate(fields):
            yield from leaves(value, (*path, place))
    else:
        yield path


def with_value(fields: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    first, *rest = path
    if isinstance(fields, dict):
        return {**fields, first: with_value(fields[first], tuple(rest), value)}
    return [*fields[:first], with_value(fields[first], tuple(rest), value), *fields[first + 1 :]]


def accepted_variants(message: msgspec.Struct) -> Iterator[bytes]:
    """Yield the message with each of its values replaced by each hostile one, if `unpack` still accepts it."""
    fields = msgspec.to_builtins(message)
    for path in leaves(fields):
        for value in HOSTILE:
            body = msgspec.msgpack.encode((type(message).__name__, with_value(fields, path, value)))
            with suppress(TransportError):
                unpack(body, FROM_NODE)
                yield LENGTH.pack(len(body)) + body


def test_every_accepted_extreme_value_is_harmless(tmp_path: Path) -> None:
    """Only values that `unpack` accepts: all others end their connection before the coordinator handles them."""

    async def scenario() -> None:
        async with running(tmp_path / "store", overlapping_max=1000) as coordinator:
            a = await coordinator.node("a", instance="a")
            await a.start_as_ordered()
            await coordinator.start_node("b")
            await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
            for message in every_message(coordinator, SnapshotId(1, 1, "a")):
                if not isinstance(message, Register | CannotRestore):  # the latter would rightly stop everything
                    for data in accepted_variants(message):
                        await send(coordinator, data)
        await assert_continues(tmp_path / "store")

    asyncio.run(scenario())
