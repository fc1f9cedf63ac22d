"""The columns that all snapshots of a view share, built once."""

import pyarrow as pa

from strobe.protocol.values.frames import can_hash, seed_hash
from strobe.protocol.values.view import ChannelSpec, View
from strobe.storage.entries.commit_decoder import OncePerObject

VIEWS_KEPT = 16
"""How many views a worker caches: a system rarely changes its view, and stores do not share views."""


class ViewColumns:
    """The channels of a view, in its order."""

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
