"""Finds where a trace of several processes can start: at the beginning, or at a cut that all of them have (R4).

The oldest segments of a process may have been deleted. A trace of all processes must start at one consistent cut, with
the channel contents there. Segments begin at recordings for snapshots, so the cut of a snapshot works if every process
has such a segment. If a process has none, either its whole trace is after the cut, because it joined later, or nothing
is, because it had left. The counts of its channels decide which.
"""

from collections.abc import Container, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from strobe.causality.trace_lines import TraceStart
from strobe.errors import UsageError
from strobe.protocol import ChannelSpec
from strobe.protocol.values.ids import is_named
from strobe.traces.segments import CLOSED, Counts, Received, TraceSegment

NONE_RECEIVED = Received()


class Side(NamedTuple):
    """The counts of one process at the cut; its events after the cut are in `segments`."""

    segments: Sequence[TraceSegment]
    counts: Counts


class Start(NamedTuple):
    """A consistent cut to start at."""

    snapshot: str | None
    sides: dict[str, Side]
    lines: int


def choose_start(
    traces: dict[str, list[TraceSegment]],
    channels: dict[str, ChannelSpec],
    lines_max: int,
    since: str | None = None,
    among: Container[str] | None = None,
) -> Start:
    """Return the earliest start with at most `lines_max` lines after it, or else the latest start.

    With `since`, the start at that snapshot; with `among`, the beginning or one of these.
    """
    latest: Start | None = None
    starts = list(_starts(traces, channels))
    named = {start.snapshot for start in starts if since is not None and is_named(start.snapshot, since)}
    if len(named) > 1:
        raise UsageError(f"{since} may be any of {', '.join(sorted(map(str, named)))}; give the whole id")
    for start in reversed(starts):
        if since is not None and start.snapshot not in named:
            continue
        if among is not None and start.snapshot is not None and start.snapshot not in among:
            continue
        if latest is not None and start.lines > lines_max:
            break
        latest = start
    if latest is None:
        wanted = f"snapshot {since}" if since is not None else "a snapshot"
        processes = ", ".join(traces)
        raise UsageError(
            f"there is no cut to begin at: the traces of {processes} no longer have {wanted} in common; "
            "record with a larger trace_bytes_max, or take snapshots more often"
        )
    return latest


def to_trace_start(start: Start, channels: dict[str, ChannelSpec]) -> TraceStart:
    """Return `start` in the form of a trace header."""
    sent = {name: start.sides[spec.source].counts.sent.get(name, 0) for name, spec in channels.items()}
    in_flight = {
        name: _missing(start.sides[spec.target].counts.received.get(name, NONE_RECEIVED), sent[name])
        for name, spec in channels.items()
    }
    return TraceStart(
        positions={process: side.counts.position for process, side in start.sides.items() if side.counts.position},
        sent={name: count for name, count in sent.items() if count},
        in_flight={name: runs for name, runs in in_flight.items() if runs},
        snapshot=start.snapshot,
    )


def _starts(traces: dict[str, list[TraceSegment]], channels: dict[str, ChannelSpec]) -> Iterator[Start]:
    """Yield every consistent start, in chronological order."""
    begins = {
        process: {segment.header.snapshot: place for place, segment in enumerate(segments)}
        for process, segments in traces.items()
    }
    left = {process: _lines_from(segments) for process, segments in traces.items()}
    snapshots = {snapshot for places in begins.values() for snapshot in places if snapshot is not None}
    for snapshot in (None, *sorted(snapshots)):
        sides: dict[str, Side] = {}
        for process, segments in traces.items():
            place = begins[process].get(snapshot) if snapshot is not None else None
            if place is not None:
                sides[process] = _side(segments, place)
        for process, segments in traces.items():
            if process not in sides and (side := _whole_or_gone(segments, sides, channels)) is not None:
                sides[process] = side
        if len(sides) == len(traces) and _consistent(sides, channels):
            yield Start(snapshot, sides, sum(left[name][len(side.segments)] for name, side in sides.items()))


def _lines_from(segments: list[TraceSegment]) -> list[int]:
    """Return how many lines the last 0, 1, 2, ... segments have."""
    return list(accumulate((segment.header.lines for segment in reversed(segments)), initial=0))


def _side(segments: list[TraceSegment], place: int) -> Side:
    return Side(segments[place:], segments[place].header.begin)


def _whole_or_gone(
    segments: list[TraceSegment], sides: dict[str, Side], channels: dict[str, ChannelSpec]
) -> Side | None:
    """Return the side of a process without a recording at the cut: its whole trace, or nothing if it had left."""
    first = segments[0].header
    # If the size limit removed an incarnation's trace, one segment is left that begins where the trace ended.
    if first.segment == 1 and first.snapshot is None and not first.begin.position:
        whole = _side(segments, 0)
        if _consistent(sides | {first.process: whole}, channels):
            return whole
    last = segments[-1].header
    if last.reason != CLOSED or not any(side.counts.position for side in sides.values()):
        return None
    gone = Side((), last.end)
    return gone if _consistent(sides | {first.process: gone}, channels) else None


def _consistent(sides: dict[str, Side], channels: dict[str, ChannelSpec]) -> bool:
    """Whether every received message was sent, on the channels between these processes."""
    for name, spec in channels.items():
        if spec.source in sides and spec.target in sides:
            received = sides[spec.target].counts.received.get(name, NONE_RECEIVED)
            highest = max((first + count - 1 for first, count in received.ahead), default=received.below)
            if highest > sides[spec.source].counts.sent.get(name, 0):
                return False
    return True


def _missing(received: Received, sent: int) -> tuple[tuple[int, int], ...]:
    """Return the messages sent and not received, as runs (first, count)."""
    runs: list[tuple[int, int]] = []
    following = received.below + 1
    for first, count in (*received.ahead, (sent + 1, 0)):
        if first > following:
            runs.append((following, first - following))
        following = first + count
    return tuple(runs)
