"""Keyed states as they are stored: a base blob and delta blobs on it, read as one (E5)."""

from collections.abc import Iterator

from strobe.keyed_state import Key, merged_entries, merged_parts
from strobe.protocol.values.fragment import KEYED, LocalState
from strobe.protocol.values.log_entries import ProcessRecord


def keyed_items(state: LocalState) -> Iterator[tuple[Key, bytes]]:
    """Yield each key of a keyed state with its value in MessagePack, in no particular order.

    It takes memory for the keys of the deltas only. Raises ValueError where a segment cannot be read.
    """
    assert state.encoding == KEYED, "other states have no keys"
    return ((key, bytes(value)) for key, value in merged_entries((state.data, *state.deltas)))


def keyed_parts(state: LocalState) -> Iterator[dict[Key, bytes]]:
    """Yield the same as `keyed_items`, many at a time."""
    assert state.encoding == KEYED, "other states have no keys"
    for part in merged_parts((state.data, *state.deltas)):
        yield {key: bytes(value) for key, value in part.items()}


def takes_delta(parent: ProcessRecord, chain_max: int) -> bool:
    """Tell whether another delta may be put on the state of `parent`, or all of it is to be written anew (E5).

    A chain has at most `chain_max` deltas, and is ended when they come to more than half of their base.
    """
    delta_bytes = sum(delta.bytes for delta in parent.deltas)
    return parent.encoding == KEYED and len(parent.deltas) < chain_max and 2 * delta_bytes <= parent.state.bytes
