"""How the entries of a log are shared out among tasks: even in bytes, and none so small that starting it costs more."""

from collections.abc import Iterator

from strobe.storage.following import Followed

GROUP_BYTES_MIN = 32 << 10
GROUP_BYTES_MAX = 16 << 20


def grouped(entries: list[Followed], groups_wanted: int) -> Iterator[list[Followed]]:
    """Yield consecutive entries in `groups_wanted` groups: fewer where there is little, more where there is much."""
    total = sum(entry.bytes for entry in entries)
    size = min(max(-(-total // groups_wanted), GROUP_BYTES_MIN), GROUP_BYTES_MAX)
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
