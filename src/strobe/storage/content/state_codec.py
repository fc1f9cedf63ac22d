"""Encodes captured states for a snapshot; decodes states and messages from one."""

from typing import Any

import msgspec

from strobe.encodable import UNENCODABLE, refusal
from strobe.errors import UsageError
from strobe.handlers import check_finished
from strobe.keyed_state import KeyedState
from strobe.known_fields import decode_known
from strobe.process import Process, System
from strobe.protocol import LocalState, Snapshot
from strobe.protocol.values.fragment import KEYED, MSGPACK, OPAQUE
from strobe.storage.content.keyed_state_blobs import keyed_items

_encode = msgspec.msgpack.Encoder().encode


def encoding_of(captured: Any) -> str:
    """Return the encoding for a value returned by `capture`."""
    if isinstance(captured, KeyedState):
        return KEYED
    return OPAQUE if isinstance(captured, (bytes, bytearray, memoryview)) else MSGPACK


def require_state(process: str, captured: Any) -> None:
    """Raise UsageError if `capture` returned None: such a snapshot would verify but restore nothing."""
    if captured is None:
        raise UsageError(
            f"capture() of process {process} returned None; return its state: a msgspec struct, a KeyedState or bytes"
        )
    check_finished(f"capture() of process {process}", captured)


def encode_captured(process: str, captured: Any) -> tuple[str, bytes]:
    """Return the encoding and bytes of a value returned by `capture`. A keyed state becomes one base segment."""
    require_state(process, captured)
    if isinstance(captured, KeyedState):
        return KEYED, captured.encode()
    if isinstance(captured, (bytes, bytearray, memoryview)):
        return OPAQUE, bytes(captured)
    try:
        return MSGPACK, _encode(captured)
    except UNENCODABLE as error:
        raise refusal(f"what capture() of process {process} returned", captured, error) from error


def decode_captured(example: Any, state: LocalState) -> Any:
    """Return a captured state as `capture` returned it. `example` is its current result and determines the type.

    Raise ValueError if the state is not of that type, for example because of an unknown field (E9).
    """
    if state.encoding == KEYED:
        value_type = example.value_type if isinstance(example, KeyedState) else Any
        return KeyedState.from_segments((state.data, *state.deltas), value_type)
    if state.encoding == OPAQUE:
        return bytes(state.data)
    return decode_known(state.data, type(example))


def encode_state(name: str, process: Process) -> tuple[str, bytes]:
    """Return the encoding and bytes of the current state of a process."""
    return encode_captured(name, process.capture())


def decode_state(process: Process, state: LocalState) -> Any:
    """Return the state that `process` once captured, for its `restore`."""
    return decode_captured(process.capture(), state)


def is_captured(name: str, process: Process, state: LocalState) -> bool:
    """Return whether `process` now captures `state`. Keyed states are compared by entries, not by segments."""
    encoding, data = encode_state(name, process)
    if encoding == state.encoding == KEYED:
        return dict(keyed_items(state)) == dict(keyed_items(LocalState(state.position, KEYED, data)))
    return encoding == state.encoding and data == state.data


def decode_snapshot(system: System, snapshot: Snapshot) -> tuple[dict[str, Any], list[Any]]:
    """Return the states in `snapshot` by process, and the messages in flight."""
    states = {
        name: decode_state(system.processes[name], fragment.state)
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
