"""Reads the trace segments of live processes, one directory for each, as one trace (docs/trace.md).

The trace starts at the beginning, or at the oldest snapshot that all processes still have segments for. If that would
be too many lines, it starts at a later one.

The last events of a process that is running, or was killed, are not on disk. Events of other processes that depend on
them are left out: the trace ends at the latest consistent cut of what is known.
"""

from bisect import bisect_left
from collections.abc import Container
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from strobe.causality.trace import Trace
from strobe.causality.trace_lines import VERSION, TraceHeader, check_header
from strobe.causality.trace_tables import FindPlace
from strobe.errors import UsageError
from strobe.protocol import ChannelSpec
from strobe.traces.columns import ProcessLines
from strobe.traces.incarnations import name_incarnations, with_records
from strobe.traces.segments import CLOSED, TraceSegment, read_segment, segments_in
from strobe.traces.start import Start, choose_start, to_trace_start

LINES_MAX = 10_000_000


class LiveTrace(msgspec.Struct, frozen=True):
    """A trace read from segments. `left_out` counts the events at the end that depend on unknown events."""

    trace: Trace
    epoch: int
    level: str
    left_out: dict[str, int]


def read_live_trace(
    directory: str | Path,
    since: str | None = None,
    among: Container[str] | None = None,
    lines_max: int = LINES_MAX,
) -> LiveTrace:
    """Return the trace in `directory`, which is that of one epoch.

    With `since` it begins at the cut of that snapshot; with `among`, at the beginning or at one of these snapshots.
    """
    place = _epoch_directory(Path(directory))
    traces, several = name_incarnations(_find_segments(place))
    channels: dict[str, ChannelSpec] = {}
    for segments in traces.values():
        channels |= {spec.id: spec for spec in segments[-1].header.channels}
    start = choose_start(traces, channels, lines_max, since, among)
    lives = {later: first for first, *others in several for later in others}
    specs, begin = tuple(channels.values()), to_trace_start(start, channels)
    header = TraceHeader(VERSION, tuple(traces), specs, start=begin, lives=lives)
    check_header(header)
    lines = {process: ProcessLines(process, side.segments) for process, side in start.sides.items()}
    ends, left_out = _find_ends(start, lines, channels)
    whole = (process for process in traces if _is_closed(traces[process][-1]) and process not in left_out)
    columns = with_records(several, lines, ends, whole)
    trace = Trace(header, (), str(place), columns, _place_finder(traces))
    newest = next(iter(traces.values()))[-1].header
    return LiveTrace(trace, newest.epoch, newest.level, left_out)


def epochs_in(directory: str | Path) -> list[Path]:
    """Return the directories of epochs in `directory`, oldest first; none if it is itself that of an epoch."""
    return sorted(path for path in Path(directory).glob("epoch-*") if path.is_dir())


def _epoch_directory(directory: Path) -> Path:
    """Return `directory`, or the one epoch in it."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory; give that of an epoch: STORE/run/trace/epoch-NNNNNN")
    epochs = epochs_in(directory)
    if len(epochs) > 1:
        raise UsageError(f"{directory} has several epochs; name one of: {', '.join(str(path) for path in epochs)}")
    return epochs[0] if epochs else directory


def _find_segments(place: Path) -> list[list[TraceSegment]]:
    """Return the segments of each process, in order, without gaps."""
    traces: list[list[TraceSegment]] = []
    for path in sorted(path for path in place.iterdir() if path.is_dir()):
        segments = [read_segment(file) for file in segments_in(path)]
        for before, segment in pairwise(segments):
            expected = before.header.segment + 1
            if segment.header.segment != expected or segment.header.begin != before.header.end:
                raise UsageError(
                    f"segment {expected:06}.parquet of process {segment.header.process} is missing in {path}; "
                    "put it back, or remove those before it"
                )
        if segments:
            traces.append(segments)
    if not traces:
        raise UsageError(f"{place} has no segments of a trace; give the directory of an epoch: run/trace/epoch-NNNNNN")
    _require_all(place, traces)
    return traces


def _require_all(place: Path, traces: list[list[TraceSegment]]) -> None:
    named = {process for segments in traces for process in segments[-1].header.processes}
    for process in sorted(named - {segments[0].header.process for segments in traces}):
        raise UsageError(f"{place} has no segments of process {process}; put them back, or wait until it writes one")


def _find_ends(
    start: Start, lines: dict[str, ProcessLines], channels: dict[str, ChannelSpec]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the last usable event of each process, and how many events after it are left out.

    The events left out depend on messages whose send is unknown, because the trace of the sender ends too early.
    """
    known = {process: own.last_position(start.sides[process].counts.position) for process, own in lines.items()}
    ends = dict(known)
    unsure = [process for process, side in start.sides.items() if side.segments and not _is_closed(side.segments[-1])]
    while unsure:
        source = unsure.pop()
        for name, spec in channels.items():
            if spec.source != source:
                continue
            base = start.sides[source].counts.sent.get(name, 0)
            sent = base + int(np.searchsorted(lines[source].sends(name), ends[source], "right"))
            positions, highest = lines[spec.target].receives(name)
            place = int(np.searchsorted(highest, sent, "right"))
            if place < len(positions) and positions[place] <= ends[spec.target]:
                ends[spec.target] = int(positions[place]) - 1
                unsure.append(spec.target)
    return ends, {process: known[process] - ends[process] for process in known if ends[process] < known[process]}


def _is_closed(segment: TraceSegment) -> bool:
    return segment.header.reason == CLOSED


def _place_finder(traces: dict[str, list[TraceSegment]]) -> FindPlace:
    """Return a function that names the segment of an event."""
    ends = {process: [segment.header.end.position for segment in segments] for process, segments in traces.items()}

    def find_place(process: str, position: int) -> str:
        segments = traces[process]
        path = segments[min(bisect_left(ends[process], position), len(segments) - 1)].path
        return f"{path.parent.name}/{path.name}"

    return find_place
