"""Reads keyed states from a base blob and its delta blobs (E5)."""

from collections.abc import Callable, Iterator

import msgspec

from strobe.keyed_state import Key, merged_entries, merged_parts
from strobe.keyed_state.segments import BASE, pack_header, pack_part
from strobe.protocol.values.fragment import KEYED, LocalState
from strobe.protocol.values.log_entries import ProcessRecord


def keyed_items(state: LocalState) -> Iterator[tuple[Key, bytes]]:
    """Yield each key of a keyed state with its value in MessagePack, in no particular order.

    It uses memory only for the keys of the deltas. Raises ValueError if a segment cannot be read.
    """
    assert state.encoding == KEYED, "other states have no keys"
    return ((key, bytes(value)) for key, value in merged_entries((state.data, *state.deltas)))


def keyed_parts(state: LocalState) -> Iterator[dict[Key, bytes]]:
    """Yield the same as `keyed_items`, one part at a time."""
    assert state.encoding == KEYED, "other states have no keys"
    for part in merged_parts((state.data, *state.deltas)):
        yield {key: bytes(value) for key, value in part.items()}


def converted(state: LocalState, convert: Callable[[Key, bytes], bytes]) -> bytes:
    """Return a keyed state as one base segment, with each value converted."""
    pieces = [pack_header(BASE)]
    for part in keyed_parts(state):
        pieces += pack_part({key: msgspec.Raw(convert(key, value)) for key, value in part.items()})
    return b"".join(pieces)


def takes_delta(parent: ProcessRecord, chain_max: int) -> bool:
    """Return whether the next snapshot may add a delta to the state of `parent`; if not, it writes a new base (E5).

    A chain has at most `chain_max` deltas, and ends when they exceed half the size of their base.
    """
    delta_bytes = sum(delta.bytes for delta in parent.deltas)
    return parent.encoding == KEYED and len(parent.deltas) < chain_max and 2 * delta_bytes <= parent.state.bytes
