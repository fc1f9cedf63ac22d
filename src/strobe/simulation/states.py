"""Captured states and recorded messages, encoded for a snapshot and decoded from one."""

from typing import Any

import msgspec

from strobe.process import Process, System
from strobe.protocol import Snapshot
from strobe.protocol.fragment import MSGPACK, OPAQUE

_encode = msgspec.msgpack.Encoder().encode


def encode_state(process: Process) -> tuple[str, bytes]:
    """Return the encoding and the bytes of a process's state as it is now."""
    state = process.capture()
    if isinstance(state, (bytes, bytearray, memoryview)):
        return OPAQUE, bytes(state)
    return MSGPACK, _encode(state)


def decode_state(process: Process, encoding: str, data: bytes) -> Any:
    """Return a captured state as `capture` gave it."""
    if encoding != MSGPACK:
        return data
    return msgspec.msgpack.decode(data, type=type(process.capture()))


def decode_snapshot(system: System, snapshot: Snapshot) -> tuple[dict[str, Any], list[Any]]:
    """Return the states that `snapshot` has, by process, and the messages that were in flight."""
    states = {
        name: decode_state(system.processes[name], fragment.state.encoding, fragment.state.data)
        for name, fragment in snapshot.fragments.items()
        if fragment.state is not None
    }
    messages = [
        message
        for fragment in snapshot.fragments.values()
        for items in fragment.in_flight.values()
        for item in items
        for message in system.decoder.decode(item.frame.body)[item.consumed :]
    ]
    return states, messages
