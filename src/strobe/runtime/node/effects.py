"""Carries out the effects that the protocol of one process returns."""

import asyncio
import logging
from typing import TYPE_CHECKING, assert_never

from strobe.protocol.coordinator.messages import Drained, SentCountsArrived
from strobe.protocol.process.effects import (
    DeliverFrame,
    DropRecording,
    Effect,
    FinishFragment,
    HoldChannel,
    PrepareDeparture,
    RecordState,
    ReportDrained,
    ReportSentCounts,
    ResumeChannel,
    SendBarrier,
    SendFrame,
    SendMarker,
    SendView,
    SetAlignmentTimer,
)
from strobe.protocol.process.events import DepartureReady
from strobe.runtime.links.codec import marker_frame, view_frame
from strobe.runtime.node.external_io import STAGE_AGAIN_S
from strobe.user_code import RAISED, explain, is_failure

if TYPE_CHECKING:
    from strobe.runtime.node.timeline import Timeline

logger = logging.getLogger("strobe.node")


class Effects:
    """Applies effects to one timeline."""

    def __init__(self, timeline: "Timeline") -> None:
        self._timeline = timeline
        self._staging: asyncio.Task[None] | None = None

    def carry_out(self, effects: list[Effect]) -> None:
        """Carry out `effects` in order."""
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        timeline = self._timeline
        match effect:
            case DeliverFrame():
                timeline.deliver(effect.channel, effect.frame, effect.consumed)
            case RecordState():
                timeline.captures.record(effect.snapshot)
            case SendMarker():
                timeline.outbox.outgoing_links[effect.channel].write(marker_frame(effect.marker))
            case SendView():
                self._send_view(effect)
            case FinishFragment():
                timeline.captures.finish(effect.fragment)
            case DropRecording():
                timeline.captures.drop(effect.snapshot)
            case ReportSentCounts():
                timeline.host.send(SentCountsArrived(effect.snapshot, timeline.name, effect.counts))
            case ReportDrained():
                timeline.open_channels()
                self._report_drained(effect.view)
            case PrepareDeparture():
                self._depart()
            case SendBarrier():
                timeline.outbox.outgoing_links[effect.channel].overtake(effect.marker)
            case HoldChannel():
                timeline.barriers.hold(effect.channel, effect.snapshot)
            case ResumeChannel():
                timeline.barriers.resume(effect.channel)
            case SetAlignmentTimer():
                timeline.barriers.time(effect.snapshot)
            case SendFrame():
                raise AssertionError("the outbox numbers what is sent, and tells no event")
            case _:
                assert_never(effect)

    def _send_view(self, effect: SendView) -> None:
        timeline = self._timeline
        timeline.open_channels()
        timeline.outbox.outgoing_links[effect.channel].write(view_frame(effect.view, effect.sent_count))
        if effect.channel not in timeline.protocol.outgoing:
            timeline.end_channel(effect.channel)

    def _depart(self) -> None:
        self._timeline.boundary.stop()
        self._timeline.application.leave(lambda: self._timeline.dispatch(DepartureReady()))

    def _report_drained(self, view: int) -> None:
        timeline = self._timeline
        _, sinks = timeline.boundary.positions()
        if timeline.name in timeline.protocol.view.processes or not sinks:
            timeline.host.send(Drained(timeline.name, view))
        else:
            self._staging = asyncio.get_running_loop().create_task(self._report_staged(view, sinks))

    async def _report_staged(self, view: int, sinks: dict[str, int]) -> None:
        """Make the last output durable, then report the process as drained. Retry while the disk is full (R2)."""
        timeline = self._timeline
        while not timeline.closed:
            try:
                await timeline.boundary.prepare(sinks)
            except RAISED as error:  # the sink may be the user's own
                if not is_failure(error, awaited=True):
                    raise
                logger.warning("process %s cannot leave yet: %s", timeline.name, explain(error))
                await asyncio.sleep(STAGE_AGAIN_S)
            else:
                timeline.host.send(Drained(timeline.name, view, sinks))
                return
