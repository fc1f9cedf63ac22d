"""Where the segments of a checkpoint begin and end: that depends on its position alone (S1)."""

from collections.abc import Iterator, Sequence

MERGED = 16
"""This number of segments become one."""
EVERY_MAX = 1 << 16
"""The most entries of a segment before it is merged. By this, a checkpoint has as many segments as its position needs,
and a position that no log comes to is refused."""


def stretches(position: int, every: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of the segments of a checkpoint: as many long ones as there are, then short ones."""
    start = 0
    for length in (every * MERGED, every):
        while start + length <= position:
            yield start, start + length
            start += length


def check_stretches(found: Sequence[tuple[int, int]], position: int, every: int) -> None:
    """Raise ValueError if these are not the stretches of a checkpoint at `position`."""
    if not 1 <= every <= EVERY_MAX or position < every or position % every:
        raise ValueError(f"there is no checkpoint at {position} if there is one every {every} entries")
    long = every * MERGED
    # Counted first: a position may be anything.
    if len(found) != position // long + position % long // every or list(found) != list(stretches(position, every)):
        raise ValueError("its segments are not those of its position")
