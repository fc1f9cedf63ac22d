"""A second, deliberately naive implementation of the definitions, to check the real one against.

Events are (process, position) pairs in plain sets; every answer is found by exhaustive search.
"""

from itertools import product

from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Internal, Line, Receive, Record, Send, TraceHeader

Event = tuple[str, int]


def events_of(trace: Trace) -> set[Event]:
    return {(line.process, line.position) for line in trace.lines() if not isinstance(line, Record)}


def happens_before(trace: Trace) -> set[tuple[Event, Event]]:
    """Return all pairs e -> f, by the three rules of the definition."""
    events, lines = events_of(trace), list(trace.lines())
    pairs = {(e, f) for e in events for f in events if e[0] == f[0] and e[1] < f[1]}
    sent_in = {(line.channel, line.ordinal): (line.process, line.position) for line in lines if isinstance(line, Send)}
    for line in lines:
        if isinstance(line, Receive):
            pairs.add((sent_in[line.channel, line.ordinal], (line.process, line.position)))
    while more := {(e, g) for e, f in pairs for f2, g in pairs if f == f2} - pairs:
        pairs |= more
    return pairs


def events_in(trace: Trace, cut: dict[str, int]) -> set[Event]:
    return {event for event in events_of(trace) if event[1] <= cut[event[0]]}


def is_closed(pairs: set[tuple[Event, Event]], inside: set[Event]) -> bool:
    return all(e in inside for e, f in pairs if f in inside)


def channel_state(trace: Trace, cut: dict[str, int]) -> dict[str, list[int]]:
    inside = [line for line in trace.lines() if line.position <= cut[line.process]]
    state: dict[str, list[int]] = {}
    for channel in trace.channels:
        sent = {line.ordinal for line in inside if isinstance(line, Send) and line.channel == channel}
        received = {line.ordinal for line in inside if isinstance(line, Receive) and line.channel == channel}
        state[channel] = sorted(sent - received)
    return state


def consistent_cuts_below(trace: Trace, upper: dict[str, int]) -> list[dict[str, int]]:
    pairs = happens_before(trace)
    candidates = (
        dict(zip(upper, positions, strict=True)) for positions in product(*(range(n + 1) for n in upper.values()))
    )
    return [cut for cut in candidates if is_closed(pairs, events_in(trace, cut))]


def is_valid(header: TraceHeader, lines: list[Line]) -> bool:
    """Return whether the processes, each following its own lines, can run to their end on the header's channels."""
    if any(line.process not in header.processes for line in lines):
        return False
    scripts = {process: _script(lines, process) for process in header.processes}
    return all(script is not None for script in scripts.values()) and _runs_to_end(header, scripts)


def _script(lines: list[Line], process: str) -> list[list[Line]] | None:
    """Return the events of `process`, each a list of lines, or None if they are wrongly numbered or malformed."""
    events: list[list[Line]] = []
    records: list[Record] = []
    for line in (line for line in lines if line.process == process):
        if isinstance(line, Record):
            records.append(line)
        elif line.position == len(events) and (isinstance(line, Send) or _receives_on(events[-1], line)):
            events[-1].append(line)
        elif line.position == len(events) + 1:
            events.append([line])
        else:
            return None
    positions = [record.position for record in records]
    twice = len({record.snapshot_id for record in records}) < len(records)
    if twice or positions != sorted(positions) or max(positions, default=0) > len(events):
        return None
    return events


def _receives_on(event: list[Line], line: Line) -> bool:
    return isinstance(line, Receive) and isinstance(event[-1], Receive)


def _runs_to_end(header: TraceHeader, scripts: dict[str, list[list[Line]]]) -> bool:
    queues: dict[str, list[int]] = {channel.id: [] for channel in header.channels}
    sent = dict.fromkeys(queues, 0)
    scripts = {process: list(events) for process, events in scripts.items()}
    progress = True
    while progress:
        progress = False
        for process, events in scripts.items():
            while events:
                # On copies: an event that cannot run to its end must have no effect.
                tried = {channel: list(queue) for channel, queue in queues.items()}, dict(sent)
                if not _step(header, process, events[0], *tried):
                    break
                queues, sent = tried
                events.pop(0)
                progress = True
    return not any(scripts.values())


def _step(
    header: TraceHeader, process: str, event: list[Line], queues: dict[str, list[int]], sent: dict[str, int]
) -> bool:
    """Run one event; return False if it cannot run now, or ever."""
    channels = {channel.id: channel for channel in header.channels}
    for line in event:
        if isinstance(line, Internal):
            continue
        if line.channel not in channels:
            return False
        channel = channels[line.channel]
        queue = queues[line.channel]
        if isinstance(line, Receive):
            if channel.target != process or line.ordinal not in (queue[:1] if channel.kind == "fifo" else queue):
                return False
            queue.remove(line.ordinal)
        elif channel.source != process or line.ordinal != sent[line.channel] + 1:
            return False
        else:
            sent[line.channel] += 1
            queue.append(line.ordinal)
    return True
