"""Recorded runs, for tests."""

import pyarrow as pa
from msgspec.structs import replace
from tests.simulation.systems import players

from strobe.causality.trace import Trace, parse_trace
from strobe.protocol import ChannelSpec
from strobe.protocol.process.first_view import first_view
from strobe.runtime.tracing.recorder import Tracer
from strobe.runtime.tracing.segment_writer import TraceWriter
from strobe.simulation.faults import Faults
from strobe.simulation.recorder import Recorder
from strobe.simulation.world import World
from strobe.traces.rows import SCHEMA
from strobe.traces.segments import read_segment, write_segment

PROTOCOLS = ("chandy-lamport", "lai-yang")


def simulate(shape="complete", protocol="chandy-lamport", *, level="ordinals", store=None, snapshots=4) -> Trace:
    """Return the trace of a simulated run with delays, crashes and several initiators."""
    system = players(shape, protocol, snapshots=True)
    recorder = Recorder(first_view(system), 3, level)
    faults = Faults.parse("delays,crashes,initiators")
    World(system, 3, faults=faults, recorder=recorder, store=store).run(snapshots)
    return parse_trace(recorder.text().splitlines(keepends=True))


def spoil(file, change) -> None:
    """Change the rows of a segment, and leave its header as it is."""
    segment = read_segment(file)
    rows = segment.rows().to_pylist()
    change(rows)
    lines = sum(row["count"] for row in rows)
    write_segment(file, replace(segment.header, lines=lines), pa.Table.from_pylist(rows, schema=SCHEMA))


def open_tracer(directory, process, *channels, epoch=1, level="ordinals", bytes_max=1 << 30, begun=None, kind="fifo"):
    tracer = Tracer(TraceWriter(directory, process, epoch, level, bytes_max), full=level == "full", begun=begun)
    specs = [ChannelSpec(channel, *channel.split("->"), kind) for channel in channels]
    ends = sorted({process, *(end for spec in specs for end in (spec.source, spec.target))})
    tracer.set_channels(ends, specs, tuple(channels), tuple(channels), lambda: 7)
    return tracer


def system(protocol):
    return players("complete", protocol, snapshots=True)
