"""Keyed states for tests."""

from typing import Any

import msgspec

from strobe import KeyedState
from strobe.keyed_state import Frozen


class Account(msgspec.Struct):
    """A value that can be changed in place."""

    balance: int
    notes: list[str] = []


def written(frozen: Frozen, since: int | None = None) -> bytes:
    return b"".join(frozen.slices(since))


def loaded(*segments: bytes, value_type: Any = Any) -> dict[Any, Any]:
    return dict(KeyedState.from_segments(segments, value_type))
