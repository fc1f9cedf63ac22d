"""Copies and canonical forms of protocol machines, for merging equal states.

The machines are unaware of the explorer. A canonical form leaves out constants (names, seeds, the view) and fields that
only a breakpoint reads (none is explored). Frames recorded on an unordered channel are a set, as nothing depends on
their order.
"""

from typing import Any

from strobe.protocol.process.channels import Incoming, Outgoing
from strobe.protocol.process.endpoint import Endpoint, Recording

_CONSTANT = frozenset(
    {"announced", "epoch", "extend", "fifo", "hash_before_last", "id", "last", "process", "seed", "spec", "view"}
)


def copy_of(value: Any) -> Any:
    """Return a copy that shares only immutable values."""
    if isinstance(value, dict):
        return {key: copy_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(value)
    if isinstance(value, set):
        return set(value)
    names = _attributes(value)
    if names is None:
        return value
    twin = object.__new__(type(value))
    for name in names:
        setattr(twin, name, copy_of(getattr(value, name)))
    return twin


def canonical(value: Any, unordered: frozenset[str]) -> Any:
    """Return a hashable form, equal for machines that behave the same. `unordered` names the unordered channels."""
    if isinstance(value, Recording):
        return _canonical_recording(value, unordered)
    if isinstance(value, dict):
        return tuple((key, canonical(value[key], unordered)) for key in sorted(value))
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, set):
        return frozenset(value)
    names = _attributes(value)
    if names is None:
        return value
    return tuple(canonical(getattr(value, name), unordered) for name in names if name not in _CONSTANT)


def _canonical_recording(recording: Recording, unordered: frozenset[str]) -> Any:
    frames = tuple(
        (channel, frozenset(items) if channel in unordered else tuple(items))
        for channel, items in sorted(recording.frames.items())
    )
    return (
        recording.snapshot,
        tuple(sorted(recording.sent.items())),
        tuple(sorted(recording.received.items())),
        frozenset(recording.pending),
        tuple(sorted(recording.expected.items())),
        frames,
    )


def _attributes(value: Any) -> list[str] | None:
    """Return the attribute names of an object with state; None for a plain value."""
    if isinstance(value, Endpoint):
        return sorted(value.__dict__)
    for kind in (Incoming, Outgoing, Recording):
        if isinstance(value, kind):
            return list(kind.__slots__)
    return None
