"""The rows of `process_states` and `channel_messages`: encoded user data, by field if possible."""

from collections.abc import Iterator
from typing import Any

import msgspec
from blake3 import blake3

from strobe.errors import UNREADABLE
from strobe.keyed_state import Key
from strobe.protocol.values.fragment import KEYED, MSGPACK, LocalState
from strobe.protocol.values.frames import InFlight
from strobe.spark.rows.committed_snapshot import CommittedSnapshot
from strobe.spark.schema.arrow import Rows
from strobe.spark.schema.variant_encoding import Variant, to_variants
from strobe.storage.content.keyed_state_blobs import keyed_parts

_messages = msgspec.msgpack.Decoder(list[msgspec.Raw])
_values_of = msgspec.msgpack.Decoder(list[Any])


def process_states(snapshot: CommittedSnapshot, process: str | None) -> Rows:
    """One row for a state, or one row for each key of a keyed state."""
    for name, state in snapshot.states(process):
        for keys, values in _values(state):
            plain = state.encoding == MSGPACK or keys is not None
            yield _state_rows(snapshot.id, name, state, keys, values, plain)


def key_text(key: Key) -> str:
    """Return a key as text: strings unchanged, numbers in decimal, bytes in hexadecimal."""
    if type(key) is str:
        return key
    return key.hex() if isinstance(key, bytes) else str(key)


def _values(state: LocalState) -> Iterator[tuple[list[str] | None, list[bytes]]]:
    """Yield the values of a state with their keys, in parts.

    If a keyed state is malformed, the whole state follows as one value without a key.
    """
    if state.encoding != KEYED:
        yield None, [state.data]
        return
    try:
        for part in keyed_parts(state):
            yield list(map(key_text, part)), list(part.values())
    except ValueError:
        yield None, [bytes(state.data)]


def _state_rows(
    snapshot_id: str, process: str, state: LocalState, keys: list[str] | None, values: list[bytes], plain: bool
) -> tuple[list[Any], int]:
    count = len(values)
    variants: list[Variant | None] = to_variants(values) if plain else [None] * count
    unsaid = [None if variant is not None else value for variant, value in zip(variants, values, strict=True)]
    chunks = [
        [snapshot_id] * count,
        [process] * count,
        [None] * count if keys is None else keys,
        variants,
        unsaid,
        [state.encoding] * count,
        [blake3(value).digest() for value in values],
        [state.position] * count,
    ]
    return chunks, sum(map(len, values))


def channel_messages(snapshot: CommittedSnapshot) -> Rows:
    """Every message in flight on a channel of the view, as recorded by its receiver."""
    ends = {channel.id: (channel.source, channel.target) for channel in snapshot.view.channels}
    for receiver, channels in snapshot.frames():
        for channel, items in channels.items():
            source, target = ends.get(channel, ("", ""))
            if target == receiver:
                for item in items:
                    yield _message_rows(snapshot.id, channel, source, target, item)


def _message_rows(snapshot_id: str, channel: str, source: str, target: str, item: InFlight) -> tuple[list[Any], int]:
    """Return one row for each message. A body that cannot be split becomes one row, so that it is not lost."""
    body = item.frame.body
    first = item.frame.first_ordinal + item.consumed
    try:
        payloads = list(map(bytes, _messages.decode(body)[item.consumed :]))
        variants = to_variants(payloads, _decoded(body, item.consumed))
    except (*UNREADABLE, ValueError):
        payloads, variants = [bytes(body)], [None]
    count = len(payloads)
    chunks = [
        [snapshot_id] * count,
        [channel] * count,
        [source] * count,
        [target] * count,
        list(range(first, first + count)),
        variants,
        payloads,
    ]
    return chunks, len(body)


def _decoded(body: bytes, consumed: int) -> list[Any] | None:
    """Return the messages of a body, decoded at once; None if one is malformed and each must be tried alone."""
    try:
        messages: list[Any] = _values_of.decode(body)
        return messages[consumed:]
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return None
