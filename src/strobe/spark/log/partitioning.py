"""How the commits of a log are shared out among tasks: even in bytes, and none so small that starting it costs more.

A task costs tenths of a second of a worker beside what it reads; one that is lost is done again from its beginning.
"""

from collections.abc import Iterator

from strobe.storage.log.follower import Followed

GROUP_BYTES_MIN = 32 << 10
"""Of entries and their blobs: about eight snapshots of four processes with small states."""
GROUP_BYTES_MAX = 256 << 20


def grouped(entries: list[Followed], groups_wanted: int) -> Iterator[list[Followed]]:
    """Yield consecutive entries in `groups_wanted` groups: fewer where there is little, times as many where much."""
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
