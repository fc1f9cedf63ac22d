"""Encodes captured states for a snapshot; decodes states and messages from one."""

from typing import Any

import msgspec

from strobe.encodable import UNENCODABLE, refusal
from strobe.errors import UsageError
from strobe.handlers import check_finished
from strobe.invariants import GlobalState
from strobe.keyed_state import KeyedState
from strobe.known_fields import decode_known
from strobe.migrations import migrate, version_of_type
from strobe.process import Process, System
from strobe.protocol import LocalState, Snapshot
from strobe.protocol.values.fragment import KEYED, MSGPACK, OPAQUE
from strobe.storage.content.keyed_state_blobs import converted, keyed_items

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


def version_of(captured: Any) -> int:
    """Return the version of a captured state's type (R3)."""
    return version_of_type(_type_of(captured))


def captured_state(process: str, captured: Any, position: int = 0, **rest: Any) -> LocalState:
    """Return a value returned by `capture` as a snapshot stores it, with `rest` as further fields."""
    return LocalState(position, *encode_captured(process, captured), version=version_of(captured), **rest)


def upgraded(example: Any, state: LocalState) -> LocalState:
    """Return a state of an older version as one of the current version (R3); others as they are.

    `example` is a current result of `capture`. Raise UserCodeFailed if a migration fails, and UsageError if the state
    is of a newer version.
    """
    kind, version = _type_of(example), version_of(example)
    if encoding_of(example) != state.encoding or version == state.version:
        return state
    if state.encoding == KEYED:
        data = converted(state, lambda key, value: migrate(f"the value of key {key!r}", kind, state.version, value))
    else:
        data = migrate("the state", kind, state.version, state.data)
    return msgspec.structs.replace(state, data=data, deltas=(), version=version)


def _type_of(captured: Any) -> Any:
    """Return the type that has the version of a captured state: for a keyed state, that of its values."""
    return captured.value_type if isinstance(captured, KeyedState) else type(captured)


def decode_captured(example: Any, state: LocalState) -> Any:
    """Return a captured state as `capture` returned it. `example` is its current result and determines the type.

    A state of an older version is migrated. Raise ValueError, UsageError or UserCodeFailed if the state is not of that
    type, for example because of an unknown field (E9).
    """
    state = upgraded(example, state)
    if state.encoding == KEYED:
        value_type = example.value_type if isinstance(example, KeyedState) else Any
        return KeyedState.from_segments((state.data, *state.deltas), value_type)
    if state.encoding == OPAQUE:
        return bytes(state.data)
    return decode_known(state.data, type(example))


def decode_state(process: Process, state: LocalState) -> Any:
    """Return the state that `process` once captured, for its `restore`."""
    return decode_captured(process.capture(), state)


def is_captured(name: str, process: Process, state: LocalState) -> bool:
    """Return whether `process` now captures `state`. Keyed states are compared by entries, not by segments."""
    captured = process.capture()
    encoding, data = encode_captured(name, captured)
    state = upgraded(captured, state)
    if encoding == state.encoding == KEYED:
        return dict(keyed_items(state)) == dict(keyed_items(LocalState(state.position, KEYED, data)))
    return encoding == state.encoding and data == state.data


def decode_snapshot(system: System, snapshot: Snapshot) -> GlobalState:
    """Return the states in `snapshot`, and the messages in flight."""
    states = {
        name: decode_state(system.processes[name], fragment.state)
        for name, fragment in snapshot.fragments.items()
        if fragment.state is not None
    }
    decode = system.decoder.decode
    in_flight = {
        channel: [message for item in items for message in decode(item.frame.body)[item.consumed :]]
        for fragment in snapshot.fragments.values()
        for channel, items in fragment.in_flight.items()
    }
    return global_state(snapshot, states, in_flight)


def global_state(snapshot: Snapshot, states: dict[str, Any], in_flight: dict[str, list[Any]]) -> GlobalState:
    """Return decoded states and messages as one global state, with the counts of `snapshot`."""
    fragments = snapshot.fragments.values()
    return GlobalState(
        states,
        {channel.id: [] for channel in snapshot.view.channels} | in_flight,
        {name: fragment.state.position for name, fragment in snapshot.fragments.items() if fragment.state is not None},
        {channel: frontier.count for fragment in fragments for channel, frontier in fragment.sent.items()},
        {channel: frontier.count for fragment in fragments for channel, frontier in fragment.received.items()},
    )
