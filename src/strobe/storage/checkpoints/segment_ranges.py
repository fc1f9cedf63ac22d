"""The ranges of a checkpoint's segments, which depend only on its position (S1)."""

from collections.abc import Iterator, Sequence

MERGED = 16
"""The number of segments merged into one."""
EVERY_MAX = 1 << 16
"""Maximum number of entries of a segment before merging. It bounds the number of segments for a position, so that
impossible positions are refused."""


def stretches(position: int, every: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a checkpoint's segments: first the long ones, then the short ones."""
    start = 0
    for length in (every * MERGED, every):
        while start + length <= position:
            yield start, start + length
            start += length


def check_stretches(found: Sequence[tuple[int, int]], position: int, every: int) -> None:
    """Raise ValueError if these are not the segment ranges of a checkpoint at `position`."""
    if not 1 <= every <= EVERY_MAX or position < every or position % every:
        raise ValueError(f"there is no checkpoint at {position} if there is one every {every} entries")
    long = every * MERGED
    # Count first: an unchecked position may be huge.
    if len(found) != position // long + position % long // every or list(found) != list(stretches(position, every)):
        raise ValueError("its segments are not those of its position")
