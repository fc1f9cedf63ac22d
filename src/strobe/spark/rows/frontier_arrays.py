"""The frontiers that all processes of a snapshot recorded at one side of their channels, as arrays.

A snapshot has thousands of them, and tables have thousands of snapshots. So there are few passes over them, and each is
one vectorized call. The names, and the index of each channel of the view, are nearly always those of an earlier
snapshot of the view, and are computed once.
"""

from binascii import unhexlify
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strobe.protocol.values.frames import can_hash, seed_hash
from strobe.protocol.values.view import ChannelSpec, View
from strobe.spark.rows.encoded_frontiers import Layout
from strobe.storage.entries.commit_decoder import EncodedEnds, OncePerObject

VIEWS_KEPT = 16
"""How many views a worker caches: a system rarely changes its view, and stores do not share views."""
_KNOWN_MAX = 64
_count = attrgetter("count")
_hash = attrgetter("hash")


class End(Protocol):
    """A frontier; its hash is bytes, or hexadecimal as in manifests."""

    @property
    def count(self) -> int: ...
    @property
    def hash(self) -> bytes | str: ...


Parts = Mapping[str, Mapping[str, Any]]
"""The recorded channel ends of each process."""
Wanted = list[tuple[str, str]]
"""The channels of a view, each with the process at one side of it."""


class ViewColumns:
    """The channels of a view, in its order: columns that all its snapshots share, built once."""

    def __init__(self, view: View) -> None:
        channels = view.channels
        self.senders = [(channel.id, channel.source) for channel in channels]
        self.receivers = [(channel.id, channel.target) for channel in channels]
        self.channel = pa.array([channel.id for channel in channels], pa.string())
        self.source = pa.array([channel.source for channel in channels], pa.string())
        self.target = pa.array([channel.target for channel in channels], pa.string())
        self.kind = pa.array([channel.kind for channel in channels], pa.string())
        self.incarnation = pa.array([channel.incarnation for channel in channels], pa.int64())
        self.hash = pa.array([channel.hash for channel in channels], pa.string())
        self.unused_hash = pa.array([_unused_hash(channel) for channel in channels], pa.binary())


def _unused_hash(channel: ChannelSpec) -> bytes | None:
    if not can_hash(channel.kind, channel.hash):
        return None
    return seed_hash(channel.id, channel.incarnation, channel.hash)


view_columns = OncePerObject(ViewColumns, VIEWS_KEPT)
"""The columns of a view."""


class RecordedChannels:
    """The channels that each process recorded, and the indexes of the `wanted` ones: -1 if not recorded."""

    def __init__(self, parts: Parts, wanted: Wanted) -> None:
        self.wanted = wanted
        self.channels = list(chain.from_iterable(parts.values()))
        self._processes, self._sizes = list(parts), [len(part) for part in parts.values()]
        pairs = ((channel, process) for process, part in parts.items() for channel in part)
        places = {pair: place for place, pair in enumerate(pairs)}
        self.places: npt.NDArray[np.int64] = np.array([places.get(pair, -1) for pair in wanted], np.int64)
        self.all_there = bool((self.places >= 0).all())
        encoded = all(isinstance(part, EncodedEnds) for part in parts.values())
        self._layout = Layout(list(parts.values())) if encoded else None

    def are_of(self, parts: Parts) -> bool:
        """Return whether `parts` has these names, in this order."""
        return (
            self._processes == list(parts)
            and self._sizes == [len(part) for part in parts.values()]
            and self.channels == list(chain.from_iterable(parts.values()))
        )

    def read(self, parts: Parts) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]] | None:
        """Return counts and hashes from the bytes of `parts`; None if the names differ or it is already decoded."""
        if self._layout is None or self._processes != list(parts):
            return None
        encoded = [part.raw for part in parts.values() if isinstance(part, EncodedEnds)]
        return self._layout.read(encoded)


class FrontierArrays:
    """The ends in `parts`, one process after the other: their `counts`, and their hashes."""

    def __init__(self, parts: Parts, wanted: Wanted) -> None:
        self._values: list[Any] = []
        self._table: npt.NDArray[np.uint8] | None = None
        known = _known.get(id(wanted))
        if known is not None and known.wanted is wanted and (read := known.read(parts)) is not None:
            self.names = known
            self.counts, self._table = read
            return
        self.names = _names(parts, wanted)
        self._values = list(chain.from_iterable(part.values() for part in parts.values()))
        self.counts = _as_array(list(map(_count, self._values)))

    def hash_table(self) -> npt.NDArray[np.uint8] | None:
        """The hashes as rows of bytes; None if their lengths differ."""
        if self._table is None:
            self._table = _table(list(map(_hash, self._values)))
        return self._table

    def hashes(self) -> list[bytes]:
        """The hashes as a list."""
        return [*map(hash_bytes, self._values)] if self._values else [row.tobytes() for row in self._rows()]

    def _rows(self) -> Sequence[npt.NDArray[np.uint8]]:
        return [] if self._table is None else list(self._table)


_known: dict[int, RecordedChannels] = {}


def _names(parts: Parts, wanted: Wanted) -> RecordedChannels:
    known = _known.get(id(wanted))
    if known is not None and known.wanted is wanted and known.are_of(parts):
        return known
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    found = _known[id(wanted)] = RecordedChannels(parts, wanted)
    return found


def _as_array(counts: list[int]) -> npt.NDArray[Any]:
    try:
        return np.array(counts, np.int64)
    except OverflowError:
        return np.array(counts, object)


def _table(hashes: list[Any]) -> npt.NDArray[np.uint8] | None:
    lengths = set(map(len, hashes))
    if len(lengths) != 1 or lengths == {0}:
        return None
    try:
        joined = unhexlify("".join(hashes)) if isinstance(hashes[0], str) else b"".join(hashes)
    except ValueError:  # an invalid digit: decoding one by one finds which hash has it
        return None
    return np.frombuffer(joined, np.uint8).reshape(len(hashes), -1)


def hash_bytes(end: End) -> bytes:
    """Return the hash of one end."""
    return bytes.fromhex(end.hash) if isinstance(end.hash, str) else end.hash
