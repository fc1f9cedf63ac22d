"""Imports a vector-clock log as a trace: what one host knows of another, it has received in a message.

A clock shows what an event knew, not which messages there were. If an event knows more of a host than the event before
it did, some message brought that knowledge. Knowledge that another message already brought needs no message, as in
ShiViz. So the trace has the fewest messages that explain the clocks: happens-before is exactly that of the log, and so
are cuts and their consistency. Messages that were never received, or brought nothing new, are neither in the log nor in
the trace.
"""

from collections.abc import Iterable, Mapping

import msgspec

from strobe.causality.trace import Trace
from strobe.causality.trace_lines import VERSION, Internal, Line, Receive, Send, TraceHeader, check_header
from strobe.errors import UsageError
from strobe.protocol import ChannelSpec
from strobe.protocol.values.frames import UNORDERED
from strobe.traces.clock_logs.checking import ClockLogInvalid, check, read_clocks
from strobe.traces.clock_logs.parsing import Event, Execution, counted_alone
from strobe.traces.descriptions import EVENT_FIELD, LINE_FIELD


def import_log(
    execution: Execution, name: str, renamed: Mapping[str, str] | None = None
) -> tuple[TraceHeader, list[Line]]:
    """Return the trace of one execution of a log; raise ClockLogInvalid if its clocks are impossible.

    Hosts in `renamed` get their new names.
    """
    events, wrong = read_clocks(execution)
    impossible = check(events, wrong)
    if impossible:
        raise ClockLogInvalid(name, tuple(impossible))
    if renamed:
        events = _with_new_names(events, renamed, name)
    by_tick = {(event.logged.host, event.tick): event for event in events}
    hosts = tuple(dict.fromkeys(event.logged.host for event in events))
    messages = _messages(events, by_tick)
    channels = tuple(ChannelSpec(f"{s}->{t}", s, t, UNORDERED) for s, t in dict.fromkeys(m[:2] for m in messages))
    header = TraceHeader(VERSION, hosts, channels)
    try:
        check_header(header)
    except UsageError as error:
        raise UsageError(f"{name} cannot become a trace: {error}; --rename OLD=NEW gives a host another name") from None
    return header, _lines(events, messages)


def to_trace(execution: Execution, name: str) -> Trace:
    """Return the same as a trace in memory."""
    header, lines = import_log(execution, name)
    return Trace(header, lines, name)


def _with_new_names(events: list[Event], renamed: Mapping[str, str], name: str) -> list[Event]:
    hosts = dict.fromkeys(event.logged.host for event in events)
    old_names: dict[str, str] = {}
    for host in hosts:
        other = old_names.setdefault(renamed.get(host, host), host)
        if other != host:
            raise UsageError(f"{name}: two hosts would be called {renamed.get(host, host)!r}: {other!r} and {host!r}")
    new_names = {host: new for new, host in old_names.items()}
    return [
        msgspec.structs.replace(
            event,
            logged=msgspec.structs.replace(event.logged, host=new_names[event.logged.host]),
            clock={new_names[host]: count for host, count in event.clock.items()},
        )
        for event in events
    ]


def parents(event: Event, before: Event | None, by_tick: "dict[tuple[str, int], Event]") -> list[Event]:
    """Return the events that `event` received from directly: those newly known, without those that others brought."""
    known = counted_alone(event, before)
    if event.clock == known:
        return []
    news = [by_tick[host, count] for host, count in event.clock.items() if count > known.get(host, 0)]
    if len(news) < 2:
        return news
    direct: list[Event] = []
    for one in sorted(news, key=lambda one: -one.total):  # an event that knows more than another is not known by it
        if not any(_knows(other, one) for other in direct):
            direct.append(one)
    chosen = set(map(id, direct))
    return [one for one in news if id(one) in chosen]


def _knows(event: Event, other: Event) -> bool:
    return event.clock.get(other.logged.host, 0) >= other.tick


def _messages(
    events: Iterable[Event], by_tick: "dict[tuple[str, int], Event]"
) -> "dict[tuple[str, str, int], tuple[int, int]]":
    """Return by source, target and the source's event: the ordinal on its channel, and the target's event.

    A host learns of another host's events in their order, so ordinals count up at both ends.
    """
    messages: dict[tuple[str, str, int], tuple[int, int]] = {}
    ordinals: dict[tuple[str, str], int] = {}
    for event in sorted(events, key=lambda event: event.tick):
        host = event.logged.host
        for parent in parents(event, by_tick.get((host, event.tick - 1)), by_tick):
            channel = parent.logged.host, host
            ordinals[channel] = ordinals.get(channel, 0) + 1
            messages[(*channel, parent.tick)] = ordinals[channel], event.tick
    return messages


def _lines(events: Iterable[Event], messages: "dict[tuple[str, str, int], tuple[int, int]]") -> list[Line]:
    """Return the lines of all events, each after those it knows of: its clock counts more than theirs."""
    receives: dict[tuple[str, int], list[tuple[str, int]]] = {}
    sends: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for (source, target, sent_in), (ordinal, received_in) in messages.items():
        sends.setdefault((source, sent_in), []).append((f"{source}->{target}", ordinal))
        receives.setdefault((target, received_in), []).append((f"{source}->{target}", ordinal))
    lines: list[Line] = []
    for event in sorted(events, key=lambda event: (event.total, event.logged.line)):
        host, tick = event.logged.host, event.tick
        fields = {LINE_FIELD: event.logged.line, EVENT_FIELD: event.logged.event, **event.logged.fields}
        payload = msgspec.Raw(msgspec.json.encode(fields))
        received = receives.get((host, tick), [])
        if received:
            lines.append(Receive(host, tick, *received[0], payload=payload))
            lines += [Receive(host, tick, *further) for further in received[1:]]
        else:
            lines.append(Internal(host, tick, event.logged.event or None, payload=payload))
        lines += [Send(host, tick, *message) for message in sends.get((host, tick), [])]
    return lines
