"""The settings of a live system: the same names in system.toml, on the command line and in the API."""

import math

import msgspec

from strobe.errors import UsageError
from strobe.event_bound import EVENT_BYTES_MAX
from strobe.protocol import Policy

TRACES = ("off", "ordinals", "full")
MIB = 1 << 20


def _check(settings: msgspec.Struct, names: str, minimum: int, above: bool = False) -> None:
    """Raise UsageError if one of these settings is below its minimum, or infinite or NaN."""
    for name in names.split():
        value = getattr(settings, name)
        if not (minimum < value if above else minimum <= value) or value == math.inf:
            bound = f"above {minimum}" if above else f"at least {minimum}"
            raise UsageError(f"{name} = {value} makes no sense: it must be {bound}")


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[coordinator]`: its addresses, the snapshot schedule, and the reaction to failures.

    `listen` is for nodes, `api` for people and programs; port 0 is any free one. A snapshot is taken every `interval_s`
    (0: only on demand). A node that sends nothing for `silence_s` counts as failed. A node that causes more than
    `rollbacks_max` rollbacks within `rollback_window_s` is stopped, and the whole system with it. A planned restart
    that takes longer than `restart_timeout_s` counts as a crash (E11). What the system declares is judged on every
    snapshot in a separate process, in which one condition may take `verdict_timeout_s`, and which may use
    `verdict_bytes_max` of memory.
    """

    listen: str = "127.0.0.1:7400"
    api: str = "127.0.0.1:7480"
    interval_s: float = 1.0
    pause_s: float = 0.0
    overlapping_max: int = 1
    timeout_s: float = 10.0
    attempts_max: int = 5
    silence_s: float = 3.0
    rollbacks_max: int = 3
    rollback_window_s: float = 60.0
    restart_timeout_s: float = 300.0
    verdict_timeout_s: float = 10.0
    verdict_bytes_max: int = 4096 * MIB

    def policy(self) -> Policy:
        """Return the policy for `Lifecycle`; raise UsageError if a setting is invalid."""
        _check(self, "interval_s pause_s rollbacks_max rollback_window_s", 0)
        _check(self, "overlapping_max attempts_max verdict_bytes_max", 1)
        _check(self, "timeout_s silence_s restart_timeout_s verdict_timeout_s", 0, above=True)
        policy = Policy(
            interval_us=round(self.interval_s * 1e6),
            pause_us_min=round(self.pause_s * 1e6),
            overlapping_max=self.overlapping_max,
            timeout_us=round(self.timeout_s * 1e6),
            attempts_max=self.attempts_max,
            rollbacks_max=self.rollbacks_max,
            rollback_window_us=round(self.rollback_window_s * 1e6),
            restart_timeout_us=round(self.restart_timeout_s * 1e6),
        )
        policy.check()
        return policy


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[node]`: the same for every node of a system; the coordinator sends it to them.

    A frame is sealed at `frame_messages_max` messages or `frame_bytes_max` bytes, and at the latest once per event-loop
    iteration. A channel has `window_bytes` of credit. While `backlog_bytes_max` wait for credit on one of its channels,
    a process is given nothing more to receive. Recorded channel contents stay in memory up to `recording_bytes_max`,
    then go to disk up to `spill_bytes_max`, then the snapshot is aborted (E3). If a node does not learn a snapshot's
    outcome within `patience_s`, it frees what it holds for it (E7). Under aligned-then-unaligned, alignment that takes
    longer than `alignment_s` turns unaligned (V5). After messages have arrived, a node polls for `spin_s` before it
    sleeps (0: not at all). While a sink has `sink_bytes_max` of output in memory, its process is given nothing more
    until that is durable. A call of a handler, a source or a sink that takes longer than `blocked_s` is reported. A
    handler that sends, emits and sets timers for more than `event_bytes_max` in one event
    fails.
    """

    frame_messages_max: int = 256
    frame_bytes_max: int = 64 << 10
    window_bytes: int = 4 * MIB
    backlog_bytes_max: int = 1 * MIB
    message_bytes_max: int = 16 * MIB
    event_bytes_max: int = EVENT_BYTES_MAX
    recording_bytes_max: int = 64 * MIB
    spill_bytes_max: int = 1024 * MIB
    sink_bytes_max: int = 64 * MIB
    delta_chain_max: int = 8
    patience_s: float = 60.0
    alignment_s: float = 1.0
    heartbeat_s: float = 0.5
    blocked_s: float = 5.0
    spin_s: float = 100e-6
    trace: str = "off"
    trace_bytes_max: int = 256 * MIB

    def check(self) -> None:
        """Raise UsageError if a setting is invalid."""
        if self.trace not in TRACES:
            raise UsageError(f"there is no trace {self.trace!r}; choose one of: {', '.join(TRACES)}")
        _check(self, "frame_messages_max frame_bytes_max window_bytes message_bytes_max event_bytes_max", 1)
        _check(self, "sink_bytes_max trace_bytes_max", 1)
        _check(self, "backlog_bytes_max recording_bytes_max spill_bytes_max delta_chain_max spin_s alignment_s", 0)
        _check(self, "patience_s heartbeat_s blocked_s", 0, above=True)


def check_together(coordinator: CoordinatorSettings, node: NodeSettings) -> None:
    """Raise UsageError if settings contradict each other."""
    if coordinator.silence_s <= node.heartbeat_s:
        raise UsageError(
            f"silence_s = {coordinator.silence_s:g} is not more than heartbeat_s = {node.heartbeat_s:g}: every node"
            " would count as failed between two of its heartbeats; raise silence_s under [coordinator] to several times"
            " heartbeat_s, or lower heartbeat_s under [node]"
        )


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[retention]`: how many complete snapshots are kept: the newest, one per hour, one per day (E8). All 0: all."""

    keep_last: int = 0
    keep_hourly: int = 0
    keep_daily: int = 0

    def check(self) -> None:
        """Raise UsageError if a number is invalid."""
        _check(self, "keep_last keep_hourly keep_daily", 0)
