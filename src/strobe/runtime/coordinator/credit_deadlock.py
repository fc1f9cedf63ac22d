"""Finds channels that wait for credit, and credit deadlocks, from the senders' heartbeats.

A process that cannot send is given nothing more to receive, so it grants no credit either. In a cycle of such processes
nothing moves. Whether this happens depends on the window sizes; it is reported with a way out.

Waiting for credit alone is not a deadlock. A sender with room left continues. If the sent messages have not reached the
target, the network is the cause.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from strobe.protocol import ChannelSpec, View
from strobe.runtime.messages.control import Heartbeat

WAITING_S_MIN = 3.0
"""A channel that waits for credit longer than this is reported."""


def waiting_channels(
    view: View, heartbeats: Mapping[str, Heartbeat], after_s: float = WAITING_S_MIN
) -> list[tuple[ChannelSpec, float]]:
    """Return the channels whose sender has waited for credit for longer than `after_s`, and for how long."""
    found = []
    for channel in view.channels:
        heartbeat = heartbeats.get(channel.source)
        report = heartbeat.outgoing.get(channel.id) if heartbeat is not None else None
        if report is not None and report.waiting_s > after_s:
            found.append((channel, report.waiting_s))
    return found


def held_back(channel: ChannelSpec, heartbeats: Mapping[str, Heartbeat]) -> bool:
    """Return whether the source of `channel` has stopped because the target does not consume what arrived on it."""
    source, target = heartbeats.get(channel.source), heartbeats.get(channel.target)
    report = source.outgoing.get(channel.id) if source is not None else None
    if report is None or target is None:
        return False
    return report.full and report.connected and target.waiting_bytes.get(channel.id, 0) > 0


def credit_cycles(waiting: Iterable[ChannelSpec]) -> list[tuple[ChannelSpec, ...]]:
    """Return cycles that cover every process in a cycle; each is a shortest one through a process not yet covered."""
    outgoing: dict[str, list[ChannelSpec]] = {}
    for channel in waiting:
        outgoing.setdefault(channel.source, []).append(channel)
    cycles: list[tuple[ChannelSpec, ...]] = []
    covered: set[str] = set()
    for process in sorted(outgoing):
        if process in covered:
            continue
        cycle = _back_to(process, outgoing)
        if cycle:
            cycles.append(cycle)
            covered.update(channel.source for channel in cycle)
    return cycles


def _back_to(start: str, outgoing: Mapping[str, list[ChannelSpec]]) -> tuple[ChannelSpec, ...]:
    """Return the shortest path from `start` back to itself; empty if there is none."""
    ways: dict[str, tuple[ChannelSpec, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        process = queue.popleft()
        for channel in outgoing.get(process, ()):
            way = (*ways[process], channel)
            if channel.target == start:
                return way
            if channel.target not in ways:
                ways[channel.target] = way
                queue.append(channel.target)
    return ()


def describe_cycle(cycle: tuple[ChannelSpec, ...]) -> str:
    """Describe the deadlock and what to do about it."""
    ring = " -> ".join((*(channel.source for channel in cycle), cycle[0].source))
    names = ", ".join(channel.id for channel in cycle)
    return (
        f"{ring} all wait for credit (channels {names}): each sends more than it receives, so none can continue; raise "
        "window_bytes and backlog_bytes_max under [node], let them send less for each message, or roll back with "
        "`strobe restore`"
    )
