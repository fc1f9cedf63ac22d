"""Cuts, consistent cuts and the state of channels at them, exactly (M3).

A *cut* gives for each process how many of its events are in it: the events with a position up to that number. It is
*consistent* when it is closed under happens-before: with an event, it contains everything that happened before that
event.

Within a process a cut is always closed, so only messages matter: a cut is consistent exactly when every message
received in it was sent in it. A message received in the cut and sent outside it is an *orphan*. The ordinals of a
channel count up in the sender's order, so orphans need no search. If s messages of a channel were sent in the cut, the
orphans are the messages received in it with ordinals above s. A fifo channel has none exactly when
`received count <= sent count`.

The *channel state* of a consistent cut is exactly the messages sent in it and not received in it.

Consistent cuts are closed under union and intersection. Hence below any cut there is exactly one greatest consistent
cut: the union of all consistent ones below it.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from strobe.causality.trace import EventRef, Trace
from strobe.causality.trace_tables import ChannelLines
from strobe.errors import SnapshotIncomplete, SnapshotNotFound, StrobeError, UsageError

Cut = Mapping[str, int]

HOLDS = "holds"
VIOLATED = "violated"
UNDECIDED = "undecided"

_ORPHANS_PRINTED_MAX = 10


class Orphan(msgspec.Struct, frozen=True):
    """A message that was received in a cut and sent outside it."""

    channel: str
    ordinal: int
    sent_in: EventRef
    received_in: EventRef

    def __str__(self) -> str:
        return (
            f"message {self.ordinal} of {self.channel} is received in the cut ({self.received_in}) "
            f"but sent outside it ({self.sent_in})"
        )


class InconsistentCut(StrobeError):
    """An operation that needs a consistent cut was given a cut with `orphans`."""

    def __init__(self, cut: Cut, orphans: tuple[Orphan, ...]) -> None:
        super().__init__(cut, orphans)
        self.cut = cut
        self.orphans = orphans

    def __str__(self) -> str:
        cut = ", ".join(f"{process}: {position}" for process, position in self.cut.items())
        lines = [f"the cut ({cut}) is not consistent:"]
        lines += [f"  {orphan}" for orphan in self.orphans[:_ORPHANS_PRINTED_MAX]]
        if len(self.orphans) > _ORPHANS_PRINTED_MAX:
            lines.append(f"  and {len(self.orphans) - _ORPHANS_PRINTED_MAX} more")
        return "\n".join(lines)


class CutVerdict(msgspec.Struct, frozen=True):
    """The verdict on one snapshot's cut: consistent (`holds`), inconsistent (`violated`), or incomplete.

    `missing` are the processes without a record. A cut with orphans between the other processes is still violated.
    """

    snapshot_id: str
    verdict: str
    cut: dict[str, int]
    orphans: tuple[Orphan, ...] = ()
    missing: tuple[str, ...] = ()


def is_consistent(trace: Trace, cut: Cut) -> bool:
    return next(_orphans(trace, check_cut(trace, cut)), None) is None


def violating_messages(trace: Trace, cut: Cut) -> list[Orphan]:
    """Return every orphan of `cut`."""
    return list(_orphans(trace, check_cut(trace, cut)))


def require_consistent(trace: Trace, cut: Cut) -> dict[str, int]:
    """Return `cut`, checked; raise InconsistentCut if it has orphans."""
    checked = check_cut(trace, cut)
    orphans = tuple(_orphans(trace, checked))
    if orphans:
        raise InconsistentCut(checked, orphans)
    return checked


def channel_contents(trace: Trace, cut: Cut) -> dict[str, list[int]]:
    """Return for every channel the ordinals of the messages in flight at a consistent cut, in order."""
    positions = require_consistent(trace, cut)
    contents: dict[str, list[int]] = {}
    for channel, table in _channels(trace):
        spec = trace.channels[channel]
        sent = _sent(trace, table, positions[spec.source])
        received = _count(trace, table.receives, positions[spec.target])
        if table.fifo:
            contents[channel] = list(range(table.received_base + received + 1, sent + 1))
        else:
            arrived = {trace.tables.ordinal[line] for line in table.receives[:received]}
            there = (*table.pending(), *range(table.base + 1, sent + 1))
            contents[channel] = [ordinal for ordinal in there if ordinal not in arrived]
    return contents


def latest_consistent_cut(trace: Trace, upper: Cut) -> dict[str, int]:
    """Return the greatest consistent cut with no position above that in `upper`.

    Each process is moved back to before its first orphan, until there are no orphans. No step moves back further than
    necessary: each dropped event has a cause outside `upper`, or a cause that was dropped before.
    """
    positions = check_cut(trace, upper)
    outgoing: dict[str, list[tuple[str, ChannelLines]]] = {process: [] for process in trace.processes}
    for channel, table in _channels(trace):
        spec = trace.channels[channel]
        outgoing[spec.source].append((spec.target, table))
    shortened = list(trace.processes)
    while shortened:
        process = shortened.pop()
        for target, table in outgoing[process]:
            sent = _sent(trace, table, positions[process])
            place = _first_beyond(trace, table, sent)
            if place < len(table.receives) and trace.tables.position[table.receives[place]] <= positions[target]:
                positions[target] = trace.tables.position[table.receives[place]] - 1
                shortened.append(target)
    return positions


def cut_of(trace: Trace, snapshot_id: str) -> dict[str, int]:
    """Return the cut that was recorded for a snapshot."""
    if snapshot_id not in trace.snapshots():
        raise SnapshotNotFound(snapshot_id, f"{trace.name} has no record of it")
    recorded = trace.records()[snapshot_id]
    missing = [process for process in trace.processes if process not in recorded]
    if missing:
        raise SnapshotIncomplete(snapshot_id, f"{trace.name} has no record of it by {', '.join(missing)}")
    return {process: recorded[process] for process in trace.processes}


def check_cuts(trace: Trace) -> list[CutVerdict]:
    """Return a verdict on every snapshot recorded in a trace."""
    verdicts: list[CutVerdict] = []
    for snapshot_id, cut in trace.records().items():
        orphans = tuple(_orphans(trace, cut))
        missing = tuple(process for process in trace.processes if process not in cut)
        verdict = VIOLATED if orphans else UNDECIDED if missing else HOLDS
        verdicts.append(CutVerdict(snapshot_id, verdict, cut, orphans, missing))
    return verdicts


def check_cut(trace: Trace, cut: Cut) -> dict[str, int]:
    """Return `cut` in the order of the header's processes; raise UsageError if it is not a cut of `trace`."""
    trace.check()
    for process in cut:
        trace.process_number(process)
    for process in trace.processes:
        if process not in cut:
            raise UsageError(f"the cut does not name the process {process}; give a number of events for each process")
        count, before = trace.event_count(process), trace.first_count(process)
        if not before <= cut[process] <= count:
            first = f" and {trace.name} begins after {before} of them" if before else ""
            raise UsageError(
                f"the cut has {cut[process]} events of {process}, which has {count}{first}; give a number up to that"
            )
    return {process: cut[process] for process in trace.processes}


def _orphans(trace: Trace, positions: Cut) -> Iterator[Orphan]:
    """Yield the orphans on the channels whose two ends both have a position."""
    tables = trace.tables
    for channel, table in _channels(trace):
        spec = trace.channels[channel]
        if spec.source not in positions or spec.target not in positions:
            continue
        sent = _sent(trace, table, positions[spec.source])
        received = _count(trace, table.receives, positions[spec.target])
        for line in table.receives[_first_beyond(trace, table, sent) : received]:
            ordinal = tables.ordinal[line]
            if ordinal > sent:
                sending = table.send_of(ordinal)
                assert sending is not None, "a valid trace sends what it receives after its beginning"
                yield Orphan(channel, ordinal, trace.event_at(sending), trace.event_at(line))


def _channels(trace: Trace) -> Iterable[tuple[str, ChannelLines]]:
    return zip(trace.channels, trace.tables.channels, strict=True)


def _count(trace: Trace, lines: "array[int]", position: int) -> int:
    """Return how many of `lines` (of one process, in order) belong to its first `position` events."""
    return bisect_right(lines, position, key=trace.tables.position.__getitem__)


def _sent(trace: Trace, table: ChannelLines, position: int) -> int:
    """Return how many messages of a channel its source had sent after `position` events."""
    return table.base + _count(trace, table.sends, position)


def _first_beyond(trace: Trace, table: ChannelLines, ordinal: int) -> int:
    """Return the index, among the receives, of the first message above `ordinal`."""
    if table.fifo:
        return max(0, ordinal - table.received_base)
    return bisect_right(trace.tables.highest_received(table), ordinal)
