"""Restores a state into a process, captures it again, and reports the differences (S4, E9, E13).

It compares states, not bytes: the members of a set may be written in any order, and a new field with a default is not a
loss. Both states are decoded as the type that `capture()` returns now, and encoded again in a fixed order.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from strobe.errors import UNREADABLE
from strobe.handlers import call
from strobe.keyed_state import KeyedState
from strobe.process import Process
from strobe.protocol import LocalState
from strobe.protocol.values.fragment import KEYED, MSGPACK
from strobe.storage.content.state_codec import encode_captured, encoding_of, upgraded
from strobe.storage.inspection.diff import compare_keyed
from strobe.storage.inspection.value_diff import CHANGED, FieldChange, changed_fields
from strobe.user_code import RAISED, explain, is_failure

FIELDS_MAX = 5
"""Maximum number of differing fields reported."""
_SHOWN_MAX = 40

_encode_in_order = msgspec.msgpack.Encoder(order="deterministic").encode


def round_trip(name: str, process: Process, local: LocalState, state: Any) -> str | None:
    """Restore `state`, decoded from `local`, into `process`; return how the newly captured state differs, or None.

    The process must not be used afterwards.
    """
    try:
        call(process, "restore", state)
    except RAISED as error:  # the user's own code
        if not is_failure(error):
            raise
        return f"restore() fails: {explain(error)}"
    try:
        captured = process.capture()
        encoding, data = encode_captured(name, captured)
        changed = captured_again(name, process, captured, data)
    except RAISED as error:  # the user's own code
        if not is_failure(error):
            raise
        return f"capture() after restore() fails: {explain(error)}"
    if changed is not None:
        return f"after restore(), {changed}"
    if encoding != local.encoding:
        return f"capture() after restore() gives {encoding} instead of {local.encoding}"
    try:
        return _difference(captured, data, upgraded(captured, local))
    except UNREADABLE as error:
        return f"capture() after restore() gives a {type(captured).__name__}, which its state is not: {error}"


def captured_again(name: str, process: Process, captured: Any, data: bytes) -> str | None:
    """Capture once more; return how the state differs from `captured`, encoded as `data`, or None.

    A large state is keyed, and not encoded twice.
    """
    if encoding_of(captured) == KEYED:
        return None
    again = encode_captured(name, process.capture())[1]
    fields = _changes(captured, data, again) if again != data else []
    return f"capture(), called twice, gives different states: {_listed(fields)}" if fields else None


def _difference(captured: Any, data: bytes, local: LocalState) -> str | None:
    """Describe how `captured`, encoded as `data`, differs from the restored state; None if nothing is lost."""
    if data == local.data and not local.deltas:
        return None
    fields = _keyed_changes(captured, data, local) if local.encoding == KEYED else _changes(captured, local.data, data)
    return f"capture() after restore() gives another state: {_listed(fields)}" if fields else None


def _changes(captured: Any, before: bytes, after: bytes) -> list[FieldChange]:
    """Return the differences between two states that are not keyed; `captured` is of their type."""
    if encoding_of(captured) == MSGPACK:
        return list(_state_changes(type(captured), before, after))
    return [FieldChange("", CHANGED, bytes(before), after)]


def _listed(fields: list[FieldChange]) -> str:
    some = ", ".join(_description(one) for one in fields[:FIELDS_MAX])
    more = f" and {len(fields) - FIELDS_MAX} more" if len(fields) > FIELDS_MAX else ""
    return f"{some}{more}"


def _description(one: FieldChange) -> str:
    if one.change != CHANGED:
        return f"{one.path or 'value'} {one.change}"
    return f"{one.path or 'value'} {one.change} ({_shown(one.before)}, then {_shown(one.after)})"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def _keyed_changes(captured: KeyedState[Any], data: bytes, local: LocalState) -> list[FieldChange]:
    kind = captured.value_type
    decode = msgspec.msgpack.Decoder(kind).decode

    def in_order(value: msgspec.Raw) -> bytes | memoryview:
        try:
            return _encode_in_order(decode(value))
        except TypeError:  # keys or members that cannot be sorted
            return memoryview(value)

    return compare_keyed((local.data, *local.deltas), (data,), in_order).examples


def _state_changes(kind: Any, before: bytes, after: bytes) -> Iterator[FieldChange]:
    states = [msgspec.msgpack.decode(data, type=kind) for data in (before, after)]
    try:
        plain = [msgspec.msgpack.decode(_encode_in_order(state)) for state in states]
    except TypeError:  # keys or members that cannot be sorted
        if states[0] == states[1]:
            return
        plain = [msgspec.msgpack.decode(data) for data in (before, after)]
    yield from changed_fields(*plain)
