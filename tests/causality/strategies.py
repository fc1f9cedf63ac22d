"""Random traces: valid ones of every shape, and valid ones with one line changed."""

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from strobe.causality.cuts import channel_contents
from strobe.causality.trace import Trace, parse_trace
from strobe.causality.trace_lines import (
    Internal,
    Line,
    Receive,
    Record,
    Send,
    TraceHeader,
    TraceStart,
    encode_header,
    encode_lines,
    header_of,
)
from strobe.protocol.values.view import ChannelSpec, View

PROCESSES = ("a", "b", "c")


class Run(msgspec.Struct):
    """A run in progress: the messages in the channels, and the lines so far."""

    header: TraceHeader
    lines: list[Line]
    in_flight: dict[str, list[int]]
    sent: dict[str, int]
    positions: dict[str, int]

    @classmethod
    def begin(cls, header: TraceHeader) -> "Run":
        channels = [channel.id for channel in header.channels]
        return cls(
            header, [], {c: [] for c in channels}, dict.fromkeys(channels, 0), dict.fromkeys(header.processes, 0)
        )

    def receivable(self, process: str) -> list[tuple[str, int]]:
        """The messages that `process` could receive next."""
        found: list[tuple[str, int]] = []
        for channel in self.header.channels:
            if channel.target == process:
                queue = self.in_flight[channel.id]
                found += [(channel.id, ordinal) for ordinal in (queue[:1] if channel.kind == "fifo" else queue)]
        return found

    def event(
        self,
        process: str,
        received: tuple[str, int] | None,
        channels: Sequence[str],
        alone: bool = False,
        further: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Add an event. `alone` omits the internal line, as in traces that contain only messages.

        With `further`, it receives more than one message, as in traces from other systems.
        """
        self.positions[process] += 1
        position = self.positions[process]
        if received is not None:
            for message in (received, *further):
                self.in_flight[message[0]].remove(message[1])
                self.lines.append(Receive(process, position, *message))
        elif not alone:
            self.lines.append(Internal(process, position, "start" if position == 1 else "tick"))
        for channel in channels:
            self.sent[channel] += 1
            self.in_flight[channel].append(self.sent[channel])
            self.lines.append(Send(process, position, channel, self.sent[channel]))

    def record(self, process: str, snapshot_id: str) -> None:
        self.lines.append(Record(process, self.positions[process], snapshot_id))


@st.composite
def headers(draw: st.DrawFn) -> TraceHeader:
    """Up to three processes; any channels, self-loops and two between the same pair included."""
    processes = PROCESSES[: draw(st.sampled_from([3, 2, 1]))]
    ends = draw(st.lists(st.tuples(st.sampled_from(processes), st.sampled_from(processes)), min_size=1, max_size=5))
    if len(processes) > 1:
        ends.append(("a", "b"))
    kinds = st.sampled_from(["fifo", "unordered"])
    channels = [ChannelSpec(f"{s}->{t}#{n}", s, t, draw(kinds)) for n, (s, t) in enumerate(ends)]
    return header_of(View(1, processes, tuple(channels)))


@st.composite
def runs(draw: st.DrawFn, events_max: int = 12) -> Run:
    """A run in the order in which it happened, with records of snapshots at random moments."""
    run = Run.begin(draw(headers()))
    for _ in range(draw(st.sampled_from([0, 4, events_max, events_max]))):
        receives = [(process, message) for process in run.header.processes for message in run.receivable(process)]
        others = [(process, None) for process in run.header.processes]
        process, received = draw(st.sampled_from(receives if receives and draw(st.booleans()) else others))
        outgoing = [channel.id for channel in run.header.channels if channel.source == process]
        sends = (
            draw(st.lists(st.sampled_from(outgoing), min_size=draw(st.integers(0, 1)), max_size=3)) if outgoing else []
        )
        others = [message for message in run.receivable(process) if received is None or message[0] != received[0]]
        further = others[:1] if received is not None and draw(st.integers(0, 3)) == 3 else []
        alone = received is None and bool(sends) and draw(st.booleans())
        run.event(process, received, sends, alone, further)
        if draw(st.integers(0, 3)) == 3:
            run.record(draw(st.sampled_from(run.header.processes)), f"s{len(run.lines)}")
    return run


@st.composite
def traces(draw: st.DrawFn, events_max: int = 12) -> Trace:
    """A valid trace. The lines of different processes are interleaved as they happened, or in any other order."""
    run = draw(runs(events_max))
    lines = draw(interleavings(run.lines)) if draw(st.booleans()) else run.lines
    return Trace(run.header, lines)


@st.composite
def interleavings(draw: st.DrawFn, lines: list[Line]) -> list[Line]:
    """`lines` in any order that keeps the lines of each process in order."""
    queues = {process: [line for line in lines if line.process == process] for process in PROCESSES}
    mixed: list[Line] = []
    while any(queues.values()):
        process = draw(st.sampled_from([process for process, queue in queues.items() if queue]))
        mixed.append(queues[process].pop(0))
    return mixed


@st.composite
def cuts(draw: st.DrawFn, trace: Trace) -> dict[str, int]:
    """Any cut, consistent or not."""
    return {process: draw(st.integers(0, trace.event_count(process))) for process in trace.processes}


@st.composite
def inconsistent_cuts(draw: st.DrawFn) -> tuple[Trace, dict[str, int]]:
    """A trace, and a cut of it in which b has received a message that a had not sent."""
    run = draw(runs().filter(lambda run: "b" in run.header.processes))
    channel = run.header.channels[-1]
    run.event(channel.source, None, [channel.id])
    for ordinal in list(run.in_flight[channel.id]):
        run.event(channel.target, (channel.id, ordinal), [])
    trace = Trace(run.header, run.lines)
    cut = draw(cuts(trace))
    sent_in = trace.sent_in(channel.id, run.sent[channel.id])
    cut |= {channel.source: draw(st.integers(0, sent_in.position - 1)), channel.target: run.positions[channel.target]}
    return trace, cut


@st.composite
def changed_lines(draw: st.DrawFn, lines: list[Line]) -> list[Line]:
    """`lines` with one line dropped, doubled, moved or changed; valid or not."""
    place = draw(st.integers(0, len(lines) - 1))
    line, rest = lines[place], lines[:place] + lines[place + 1 :]
    match draw(st.sampled_from(["drop", "double", "move", "process", "position", "channel", "ordinal"])):
        case "drop":
            return rest
        case "double":
            return [*lines[:place], line, *lines[place:]]
        case "move":
            to = draw(st.integers(0, len(rest)))
            return [*rest[:to], line, *rest[to:]]
        case "process":
            line = msgspec.structs.replace(line, process=draw(st.sampled_from([*PROCESSES, "z"])))
        case "position":
            line = msgspec.structs.replace(line, position=max(1, line.position + draw(st.integers(-2, 2))))
        case "channel" if isinstance(line, Send | Receive):
            channels = sorted({other.channel for other in lines if isinstance(other, Send | Receive)})
            line = msgspec.structs.replace(line, channel=draw(st.sampled_from([*channels, "z"])))
        case "ordinal" if isinstance(line, Send | Receive):
            line = msgspec.structs.replace(line, ordinal=max(1, line.ordinal + draw(st.integers(-2, 2))))
    return [*lines[:place], line, *lines[place + 1 :]]


def cut_off(trace: Trace, cut: dict[str, int]) -> Trace:
    """Return the part of `trace` after a consistent cut."""
    contents = channel_contents(trace, cut)
    sent = {
        channel: sum(trace.tables.position[line] <= cut[trace.channels[channel].source] for line in table.sends)
        for channel, table in zip(trace.channels, trace.tables.channels, strict=True)
    }
    flying = {channel: tuple((ordinal, 1) for ordinal in ordinals) for channel, ordinals in contents.items()}
    start = TraceStart(dict(cut), sent, flying)
    behind = [
        line
        for line in trace.lines()
        if line.position > cut[line.process] or (isinstance(line, Record) and line.position == cut[line.process])
    ]
    header = msgspec.structs.replace(trace.header, start=start)
    return parse_trace((encode_header(header) + encode_lines(behind)).splitlines(keepends=True))
