"""Carries out the effects that the protocol of one process returns."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from strobe.protocol import Endpoint
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
from strobe.runtime.links.codec import marker_frame, view_frame
from strobe.runtime.links.outgoing_link import OutgoingLink
from strobe.runtime.node.alignment import Alignment
from strobe.runtime.node.application import Application
from strobe.runtime.node.captures import Captures
from strobe.runtime.node.channels import Channels
from strobe.runtime.node.external_io import STAGE_AGAIN_S, ExternalIO
from strobe.user_code import RAISED, explain, is_failure

logger = logging.getLogger("strobe.node")


class Effects:
    """Applies effects to the parts of one timeline. `send` reaches the coordinator.

    `departed` is called after the last event of a process that leaves.
    """

    def __init__(
        self,
        protocol: Endpoint,
        application: Application,
        links: dict[str, OutgoingLink],
        channels: Channels,
        external_io: ExternalIO,
        captures: Captures,
        barriers: Alignment,
        send: Callable[[msgspec.Struct], None],
        departed: Callable[[], None],
    ) -> None:
        self._protocol = protocol
        self._application = application
        self._links = links
        self._channels = channels
        self._external_io = external_io
        self._captures = captures
        self._barriers = barriers
        self._send = send
        self._departed = departed
        self._staging: asyncio.Task[None] | None = None

    def carry_out(self, effects: list[Effect], messages: list[Any] | None = None) -> None:
        """Carry out `effects` in order; `messages` are those of a frame to deliver, if already unpacked."""
        for place, effect in enumerate(effects, 1):
            self._carry_out(effect, messages, place == len(effects))

    def close(self) -> None:
        """Report nothing more."""
        if self._staging is not None:
            self._staging.cancel()

    def _carry_out(self, effect: Effect, messages: list[Any] | None, is_last: bool) -> None:
        match effect:
            case DeliverFrame():
                # Delivery may pause only if no effect follows it: later effects need the frame fully received.
                self._application.deliver(effect.channel, effect.frame, effect.consumed, messages, may_pause=is_last)
            case RecordState():
                self._captures.record(effect.snapshot)
            case SendMarker():
                self._links[effect.channel].write(marker_frame(effect.marker))
            case SendView():
                self._send_view(effect)
            case FinishFragment():
                self._captures.finish(effect.fragment)
            case DropRecording():
                self._captures.drop(effect.snapshot)
            case ReportSentCounts():
                self._send(SentCountsArrived(effect.snapshot, self._protocol.process, effect.counts))
            case ReportDrained():
                self._channels.open()
                self._report_drained(effect.view)
            case PrepareDeparture():
                self._external_io.stop()
                self._application.leave(self._departed)
            case SendBarrier():
                self._links[effect.channel].overtake(effect.marker)
            case HoldChannel():
                self._barriers.hold(effect.channel, effect.snapshot)
            case ResumeChannel():
                self._barriers.resume(effect.channel)
            case SetAlignmentTimer():
                self._barriers.time(effect.snapshot)
            case SendFrame():
                raise AssertionError("the outbox numbers what is sent, without an event")
            case _:
                assert_never(effect)

    def _send_view(self, effect: SendView) -> None:
        self._channels.open()
        self._links[effect.channel].write(view_frame(effect.view, effect.sent_count))
        if effect.channel not in self._protocol.outgoing:
            self._channels.end(effect.channel)

    def _report_drained(self, view: int) -> None:
        process = self._protocol.process
        _, sinks = self._external_io.positions()
        if process in self._protocol.view.processes or not sinks:
            self._send(Drained(process, view))
        else:
            self.close()
            self._staging = asyncio.get_running_loop().create_task(self._report_staged(view, sinks))

    async def _report_staged(self, view: int, sinks: dict[str, int]) -> None:
        """Make the last output durable, then report the process as drained. Retry while the disk is full (R2)."""
        process = self._protocol.process
        while True:
            try:
                await self._external_io.prepare(sinks)
            except RAISED as error:  # the sink may be the user's own
                if not is_failure(error, awaited=True):
                    raise
                logger.warning("process %s cannot leave yet: %s", process, explain(error))
                await asyncio.sleep(STAGE_AGAIN_S)
            else:
                self._send(Drained(process, view, sinks))
                return
