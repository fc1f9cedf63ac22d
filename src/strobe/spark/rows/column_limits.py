"""Whether a snapshot can be stored in columns: all of its bytes are valid, and its numbers fit."""

from collections.abc import Iterator

from strobe.errors import SnapshotError
from strobe.protocol.values.view import View
from strobe.spark.rows.committed_snapshot import CommittedSnapshot, epoch_of
from strobe.storage.entries.commit_decoder import OncePerObject

COUNT_MAX = 1 << 62
"""Ordinals, counts and their sums fit a `bigint`; real values are far smaller."""
MESSAGES_MAX = (1 << 31) - 1
"""Messages of one frame: an `int`."""


def require_readable(snapshot: CommittedSnapshot) -> None:
    """Read all of `snapshot`; raise SnapshotError or StoreError for a wrong byte or a number that fits no column."""
    snapshot.verify_states()
    require_fit(snapshot)


def require_fit(snapshot: CommittedSnapshot) -> None:
    """Raise SnapshotError if a number fits no column; this reads the frames."""
    for what, value, value_max in _numbers(snapshot):
        if not 0 <= value <= value_max:
            raise SnapshotError(snapshot.id, f"{what} is {value}, and its column holds 0 to {value_max}")


def _numbers(snapshot: CommittedSnapshot) -> Iterator[tuple[str, int, int]]:
    """Yield (name, value, largest value that fits) of the numbers that the format does not limit.

    There can be thousands of counts: they are skipped if the smallest and the largest fit.
    """
    yield "the number of the view", snapshot.view.number, COUNT_MAX
    yield "the epoch", epoch_of(snapshot), COUNT_MAX
    yield "the time at which it started", snapshot.started_us, COUNT_MAX
    yield "the time at which it was complete", snapshot.completed_us, COUNT_MAX
    for channel, incarnation in _reopened[snapshot.view]:
        yield f"the incarnation of channel {channel}", incarnation, COUNT_MAX
    for process, recorded in snapshot.recorded.items():
        yield f"the view recorded by {process}", recorded.view, COUNT_MAX
    for ends in (snapshot.sent, snapshot.received):
        if ends.counts.size and not (ends.counts.min() >= 0 and ends.counts.max() <= COUNT_MAX):
            for name, count in zip(ends.names.channels, ends.counts.tolist(), strict=True):
                yield f"a count of channel {name}", count, COUNT_MAX
    for process, position in snapshot.positions():
        yield f"the position of {process}", position, COUNT_MAX
    for _, channels in snapshot.frames():
        for name, items in channels.items() if any(channels.values()) else ():
            for item in items:
                yield f"a first ordinal of channel {name}", item.frame.first_ordinal, COUNT_MAX
                yield f"a message count of channel {name}", item.frame.count, MESSAGES_MAX
                yield f"a consumed count of channel {name}", item.consumed, MESSAGES_MAX


def _find_reopened(view: View) -> list[tuple[str, int]]:
    return [(channel.id, channel.incarnation) for channel in view.channels if channel.incarnation != 1]


_reopened = OncePerObject(_find_reopened)
