"""The reaction of one process to one event: carries out its effects on its own state, and collects its output."""

from collections.abc import Hashable
from typing import TYPE_CHECKING

from strobe.protocol import Fragment, Frame
from strobe.protocol.process.effects import (
    DeliverFrame,
    DropRecording,
    Effect,
    FinishFragment,
    HoldChannel,
    RecordState,
    ReportSentCounts,
    ResumeChannel,
    SendBarrier,
    SendFrame,
    SendMarker,
    SetAlignmentTimer,
)
from strobe.protocol.process.events import BarrierArrived, Event, FrameReceived, MarkerReceived, SentCountRelayed
from strobe.simulation.explorer.states import Local

if TYPE_CHECKING:
    from strobe.simulation.explorer.space import Space


class Reaction:
    """Carries out effects on one local state, and collects its output."""

    def __init__(self, space: "Space", local: Local) -> None:
        self.space = space
        self.local = local
        self.puts: list[tuple[int, int]] = []
        self.orders: list[tuple[int, int]] = []
        self.fragments: list[tuple[int, int]] = []

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendFrame():
                    self._put(effect.channel, FrameReceived(effect.channel, effect.frame))
                case SendMarker():
                    self._put(effect.channel, MarkerReceived(effect.channel, effect.marker))
                case SendBarrier():
                    self._put(effect.channel, BarrierArrived(effect.channel, effect.marker, overtakes=True))
                case HoldChannel():
                    self.local.held |= {effect.channel}
                case ResumeChannel():
                    self.local.held -= {effect.channel}
                case SetAlignmentTimer():
                    if self.local.machine.process in (self.space.scenario.timeouts_at or self.space.processes):
                        self.local.timers |= {effect.snapshot}
                case DeliverFrame():
                    self._receive(effect.channel, effect.frame)
                case RecordState():
                    self.local.captured[effect.snapshot] = self.local.actual()
                case DropRecording():
                    self.local.captured.pop(effect.snapshot, None)
                case ReportSentCounts():
                    self._relay(effect)
                case FinishFragment():
                    self._finish(effect.fragment)
                case _:
                    raise AssertionError(f"{effect} is not explored")

    def _put(self, channel: str, item: Event) -> None:
        self.puts.append((self.space.channels.index(channel), self.space.items.number(item)))

    def _receive(self, channel: str, frame: Frame) -> None:
        ordinals = range(frame.first_ordinal, frame.first_ordinal + frame.count)
        self.local.received[channel] = self.local.received[channel] | frozenset(ordinals)

    def _relay(self, report: ReportSentCounts) -> None:
        """The coordinator passes each count on to the receiver of its channel."""
        for channel, count in report.counts.items():
            target = self.space.targets[self.space.channels.index(channel)]
            relayed = SentCountRelayed(report.snapshot, channel, count)
            self.orders.append((target, self.space.items.number(relayed)))

    def _finish(self, fragment: Fragment) -> None:
        actual = self.local.captured.pop(fragment.snapshot, None)
        slot = self.space.slot(self.space.ids.index(fragment.snapshot), self.space.processes.index(fragment.process))
        key = (slot, actual, _fragment_key(fragment, self.space.unordered))
        self.fragments.append((slot, self.space.fragments.number(key, (fragment, actual))))


def _fragment_key(fragment: Fragment, unordered: frozenset[str]) -> Hashable:
    frames = tuple(
        (channel, frozenset(items) if channel in unordered else items)
        for channel, items in sorted(fragment.in_flight.items())
    )
    return (tuple(sorted(fragment.sent.items())), tuple(sorted(fragment.received.items())), frames)
