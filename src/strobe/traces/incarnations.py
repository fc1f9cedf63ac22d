"""Names the incarnations of a process that left and rejoined in one epoch. In the trace each is its own process.

Every incarnation counts its events from 1, and has channels of its own. The first has the name of the process, the
others are called `NAME#2`, `NAME#3`, like reopened channels.

A snapshot is recorded by one incarnation. Its cut has all events of the earlier incarnations, and no event of the later
ones. Records state that too, because a cut needs a record of every process.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from math import nan

from msgspec.structs import replace

from strobe.causality.trace_tables import RECORD, Columns
from strobe.protocol import ChannelSpec
from strobe.traces.columns import ProcessLines
from strobe.traces.segments import TraceSegment

Traces = dict[str, list[TraceSegment]]


def name_incarnations(found: Iterable[list[TraceSegment]]) -> tuple[Traces, list[list[str]]]:
    """Return the segments of each incarnation by its name, and the names of processes with several, in their order."""
    incarnations: dict[str, list[list[TraceSegment]]] = {}
    for segments in sorted(found, key=lambda segments: segments[0].header.joined):
        incarnations.setdefault(segments[0].header.process, []).append(segments)
    named = {process: _names(process, len(some), incarnations) for process, some in sorted(incarnations.items())}
    ends = {
        (channel.id, process): name
        for process, some in incarnations.items()
        for name, segments in zip(named[process], some, strict=True)
        for channel in segments[-1].header.channels
    }
    traces = {
        name: [_of_incarnation(segment, name, ends) for segment in segments]
        for process, names in named.items()
        for name, segments in zip(names, incarnations[process], strict=True)
    }
    return traces, [names for names in named.values() if len(names) > 1]


def with_records(
    several: list[list[str]], lines: Mapping[str, ProcessLines], ends: Mapping[str, int], whole: Iterable[str]
) -> Iterator[Columns]:
    """Yield the lines of each process up to its end; the traces of the processes in `whole` are complete."""
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for names in several:
        recorded = [lines[name].recorded(ends[name]) for name in names]
        for number, name in enumerate(names):
            before[name] = [snapshot for some in recorded[:number] for snapshot in some]
            after[name] = [snapshot for some in recorded[number + 1 :] for snapshot in some]
    known = set(whole)
    for name, own in lines.items():
        yield _records(name, 0, before.get(name, []))
        yield own.columns(ends[name])
        yield _records(name, ends[name], after.get(name, []) if name in known else [])


def _names(process: str, count: int, taken: Mapping[str, object]) -> list[str]:
    names = [process]
    for number in range(2, count + 1):
        name = f"{process}#{number}"
        while name in taken:
            name += "#"
        names.append(name)
    return names


def _of_incarnation(segment: TraceSegment, name: str, ends: Mapping[tuple[str, str], str]) -> TraceSegment:
    """Return `segment` with the names of incarnations, also at the other ends of its channels."""

    def end(channel: ChannelSpec, process: str) -> str:
        return ends.get((channel.id, process), process)

    channels = tuple(
        replace(channel, source=end(channel, channel.source), target=end(channel, channel.target))
        for channel in segment.header.channels
    )
    return replace(segment, header=replace(segment.header, process=name, channels=channels))


def _records(process: str, position: int, snapshots: list[str]) -> Columns:
    count = len(snapshots)
    numbers = array("q", range(count))
    positions, none, at = array("q", [position] * count), array("q", [0] * count), array("d", [nan] * count)
    return Columns(process, bytes([RECORD]) * count, positions, numbers, none, at, {}, (), (), snapshots)
