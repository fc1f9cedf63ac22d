"""How the commits of a log are divided among tasks: evenly by bytes, and never into tasks too small to be worthwhile.

A task costs tenths of a second of worker time besides reading. A lost task is restarted from its beginning.
"""

from collections.abc import Iterator

from strobe.storage.log.follower import Followed

GROUP_BYTES_MIN = 32 << 10
"""Bytes of entries and their blobs: about eight snapshots of four processes with small states."""
GROUP_BYTES_MAX = 256 << 20


def grouped(entries: list[Followed], groups_wanted: int) -> Iterator[list[Followed]]:
    """Yield consecutive entries in `groups_wanted` groups: fewer for little data, a multiple of it for much data."""
    total = sum(entry.bytes for entry in entries)
    times = total // (groups_wanted * GROUP_BYTES_MAX) + 1
    size = max(-(-total // (groups_wanted * times)), GROUP_BYTES_MIN)
    group: list[Followed] = []
    gathered = 0
    for entry in entries:
        group.append(entry)
        gathered += entry.bytes
        if gathered >= size:
            yield group
            group, gathered = [], 0
    if group:
        yield group
