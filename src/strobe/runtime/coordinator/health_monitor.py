"""Periodic checks: silent nodes, channels that wait for credit, log entries by other writers."""

from collections.abc import Callable, Sequence

import msgspec

from strobe.protocol import ChannelSpec, Lifecycle
from strobe.runtime.coordinator.control_server import Connection
from strobe.runtime.coordinator.credit_deadlock import credit_cycles, describe_cycle, held_back, waiting_channels
from strobe.runtime.coordinator.node_sessions import NodeSessions
from strobe.runtime.event_log import WARNING, EventLog
from strobe.runtime.messages.api_documents import Trouble
from strobe.runtime.messages.control import Heartbeat

TICK_S = 0.25
POLL_S = 1.0


class HealthMonitor:
    """Runs the checks and keeps their last findings. Each finding is logged once until it clears."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        sessions: NodeSessions,
        log: EventLog,
        poll: Callable[[], None],
        now_s: Callable[[], float],
    ) -> None:
        self.sessions = sessions
        self._lifecycle = lifecycle
        self._members = sessions.members
        self._log = log
        self._poll = poll
        self._now_s = now_s
        self.cycles: list[tuple[ChannelSpec, ...]] = []
        self.slow: list[tuple[ChannelSpec, float]] = []
        self.cycles_found = 0
        self.trouble_times = TroubleTimes()
        self._looked_s: float | None = None
        self._began_s: float | None = None
        self._polled_s = 0.0

    def look(self) -> bool:
        """Run every check once; return whether the log was polled too."""
        now_s = self._now_s()
        self._excuse_silence(now_s)
        for member in self.sessions.members.silent(now_s):
            if isinstance(member.connection, Connection):  # the node may reconnect
                member.connection.abort(f"it sent nothing for {now_s - member.last_message_s:.1f} s")
        self._forget_leavers(now_s)
        self.sessions.address_books.send()
        self._look_at_credit()
        if now_s - self._polled_s < POLL_S:
            return False
        self._polled_s = now_s
        self._poll()
        return True

    def _excuse_silence(self, now_s: float) -> None:
        """Restart the silence timers if the coordinator itself was suspended: the nodes were not silent."""
        members = self._members
        if self._looked_s is not None and now_s - self._looked_s > max(members.silence_s / 2, 4 * TICK_S):
            for member in members.connected():
                member.last_message_s = now_s
        self._looked_s = now_s

    def _forget_leavers(self, now_s: float) -> None:
        """Forget leaving processes that have been silent for long enough: a former coordinator has dismissed them."""
        members, membership = self._members, self._lifecycle.membership
        self._began_s = now_s if self._began_s is None else self._began_s
        for process in list(membership.leaving):
            member = members.get(process)
            last_message_s = member.last_message_s if member is not None else self._began_s
            absent = member is None or not member.connected
            if absent and now_s - last_message_s >= members.silence_s and membership.gone(process):
                self.sessions.forget(process)
                self._log.emit("left", process=process)

    def _look_at_credit(self) -> None:
        heartbeats: dict[str, Heartbeat] = {}
        stopped: dict[str, Heartbeat] = {}
        for member in self._members.connected():
            if member.heartbeat is not None:
                heartbeats[member.process] = member.heartbeat
                if member.events_per_s == 0:
                    stopped[member.process] = member.heartbeat
        known = {channel.id for channel, _ in self.slow}
        self.slow = waiting_channels(self._lifecycle.view, heartbeats)
        cycles = credit_cycles(channel for channel, _ in self.slow if held_back(channel, stopped))
        for cycle in cycles:
            if cycle not in self.cycles:
                self.cycles_found += 1
                self._log.emit("credit deadlock", WARNING, problem=describe_cycle(cycle))
        self.cycles = cycles
        for channel, waiting_s in self.slow:
            if channel.id not in known:
                self._log.emit(
                    "slow channel", WARNING, channel=channel.id, waiting_s=round(waiting_s, 1), receiver=channel.target
                )


class TroubleTimes:
    """Since when each trouble of the status has lasted. It is forgotten once it is over."""

    def __init__(self) -> None:
        self._since_us: dict[str, int] = {}

    def dated(self, troubles: Sequence[Trouble], now_us: int) -> list[Trouble]:
        """Return all troubles that there are now, each with its beginning."""
        self._since_us = {one.matter: self._since_us.get(one.matter, now_us) for one in troubles}
        return [msgspec.structs.replace(one, since_us=self._since_us[one.matter]) for one in troubles]
