"""What a node says about itself every half second, for the coordinator and for people."""

import os
import time
from typing import TYPE_CHECKING

from strobe.plain_text import shortened
from strobe.protocol.values.bounds import TEXT_MAX
from strobe.runtime.links.outgoing_link import Outlet
from strobe.runtime.messages.control import ChannelReport, Heartbeat

if TYPE_CHECKING:
    from strobe.runtime.node.host import Host
    from strobe.runtime.node.timeline import Timeline

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def measure(host: "Host") -> Heartbeat:
    """Return the node as it is now."""
    timeline = host.timeline
    # While it is being restored it has no position: to say one would look like a leap.
    epoch, position = (host.epoch, host.application.position) if timeline is not None else (0, 0)
    common = (host.name, epoch, position, time.process_time(), _memory_bytes())
    rejected = dict(host.rejected)
    if timeline is None:
        return Heartbeat(*common, {}, {}, rejected, waiting=_shortened(host.patience.waiting), claims=host.claims)
    return Heartbeat(
        *common,
        _outgoing(timeline),
        {channel: incoming.count for channel, incoming in timeline.protocol.incoming.items()},
        rejected,
        timeline.recordings.bytes,
        timeline.recordings.spilled_bytes,
        len(timeline.captures.open),
        unreadable={
            inlet.channel: _shortened(inlet.unreadable) for inlet in timeline.inlets.values() if inlet.unreadable
        },
        waiting_bytes={inlet.channel: inlet.waiting_bytes for inlet in timeline.inlets.values() if inlet.waiting_bytes},
        held_back=_shortened("; ".join(timeline.boundary.held_back.values())),
        claims=host.claims,
    )


def _outgoing(timeline: "Timeline") -> dict[str, ChannelReport]:
    counts = timeline.protocol.outgoing
    return {
        channel: _report(counts[channel].count, outlet, timeline.outbox.is_full(channel))
        for channel, outlet in timeline.outbox.outlets.items()
        if channel in counts
    }


def _report(sent: int, outlet: Outlet, full: bool) -> ChannelReport:
    refused = _shortened(outlet.refusal.reason) if outlet.refusal is not None else ""
    backlog_bytes, waiting_s, connected = outlet.backlog_bytes, outlet.waiting_s, outlet.connected
    return ChannelReport(sent, backlog_bytes, waiting_s, connected, outlet.reconnects, refused, full)


def _shortened(text: str) -> str:
    return shortened(text, TEXT_MAX)


def _memory_bytes() -> int:
    """Return what this program occupies, where the system tells."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 -- read twice a second
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
