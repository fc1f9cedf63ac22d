"""The heartbeat of a node: its measurements, sent to the coordinator every half second."""

import os
import time
from collections.abc import Mapping
from typing import Protocol

from strobe.plain_text import shortened
from strobe.protocol.values.bounds import TEXT_MAX
from strobe.runtime.links.outgoing_link import OutgoingLink
from strobe.runtime.messages.control import ChannelReport, Heartbeat
from strobe.runtime.node.application import Application
from strobe.runtime.node.timeline import Timeline
from strobe.runtime.node_watchdog import NodeWatchdog
from strobe.runtime.program.shared_parts import SharedParts
from strobe.runtime.retry import RetryLoop

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MeasuredHost(Protocol):
    """What a heartbeat reports of a host."""

    name: str
    epoch: int
    application: Application
    timeline: Timeline | None
    retry: RetryLoop
    rejected: Mapping[str, int]
    claims: int
    watchdog: NodeWatchdog
    parts: SharedParts


def measure(host: MeasuredHost) -> Heartbeat:
    """Return the current measurements of the node."""
    timeline = host.timeline
    # During a restore there is no position: reporting one would look like a jump.
    epoch, position = (host.epoch, host.application.position) if timeline is not None else (0, 0)
    # Of its program, the process reports its share, so that the sum over all processes is right.
    programs = host.parts.processes
    common = (host.name, epoch, position, time.process_time() / programs, _memory_bytes() // programs)
    rejected, blocked = dict(host.rejected), host.watchdog.blocked
    if timeline is None:
        return Heartbeat(
            *common, {}, {}, rejected, waiting=_shortened(host.retry.waiting), claims=host.claims, blocked=blocked
        )
    incoming_links = timeline.channels.incoming_links.values()
    return Heartbeat(
        *common,
        _outgoing(timeline),
        {channel: incoming.count for channel, incoming in timeline.protocol.incoming.items()},
        rejected,
        timeline.recordings.bytes,
        timeline.recordings.spilled_bytes,
        len(timeline.captures.open),
        unreadable={
            incoming_link.channel: _shortened(incoming_link.unreadable)
            for incoming_link in incoming_links
            if incoming_link.unreadable
        },
        waiting_bytes={
            incoming_link.channel: incoming_link.waiting_bytes
            for incoming_link in incoming_links
            if incoming_link.waiting_bytes
        },
        held_back=_shortened("; ".join(timeline.scheduler.held_back.values())),
        claims=host.claims,
        blocked=blocked,
    )


def _outgoing(timeline: Timeline) -> dict[str, ChannelReport]:
    counts = timeline.protocol.outgoing
    return {
        channel: _report(counts[channel].count, outgoing_link, timeline.outbox.is_full(channel))
        for channel, outgoing_link in timeline.outbox.outgoing_links.items()
        if channel in counts
    }


def _report(sent: int, outgoing_link: OutgoingLink, full: bool) -> ChannelReport:
    refused = _shortened(outgoing_link.refusal.reason) if outgoing_link.refusal is not None else ""
    backlog_bytes, waiting_s, connected = outgoing_link.backlog_bytes, outgoing_link.waiting_s, outgoing_link.connected
    return ChannelReport(sent, backlog_bytes, waiting_s, connected, outgoing_link.reconnects, refused, full)


def _shortened(text: str) -> str:
    return shortened(text, TEXT_MAX)


def _memory_bytes() -> int:
    """Return the resident memory of this program; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 -- read twice a second
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
