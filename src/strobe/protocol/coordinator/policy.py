"""When to take snapshots: limits that prevent storms, and advice on the interval (E10)."""

import math

import msgspec

from strobe.errors import UsageError


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator goes by.

    `interval_us` between scheduled snapshots (0: only on demand). At least `pause_us_min` after the last beginning, and
    after the last outcome unless snapshots overlap, of which there are at most `overlapping_max`. A snapshot that has
    not completed after `timeout_us` is aborted, and retried after a back-off that doubles, `attempts_max` times in all.
    A process that makes the system roll back more than `rollbacks_max` times within `rollback_window_us` stops it (R1).
    """

    interval_us: int = 0
    pause_us_min: int = 0
    overlapping_max: int = 1
    timeout_us: int = 10_000_000
    attempts_max: int = 5
    backoff_us: int = 100_000
    backoff_us_max: int = 10_000_000
    rollbacks_max: int = 3
    rollback_window_us: int = 60_000_000

    def check(self) -> None:
        """Raise UsageError where a limit makes no sense."""
        if self.overlapping_max < 1 or self.attempts_max < 1 or self.timeout_us < 1:
            raise UsageError("a policy needs overlapping_max, attempts_max and timeout of at least 1")
        if self.rollbacks_max < 0:
            raise UsageError(f"a policy cannot have rollbacks_max = {self.rollbacks_max}; 0 means: stop at the first")
        for name in ("interval_us", "pause_us_min", "backoff_us", "backoff_us_max", "rollback_window_us"):
            if getattr(self, name) < 0:
                raise UsageError(f"a policy cannot have {name} = {getattr(self, name)}: times are not negative")

    def backoff_after(self, attempt: int) -> int:
        """Return how long to wait after `attempt` attempts have failed, in microseconds."""
        return min(self.backoff_us_max, self.backoff_us << min(attempt - 1, 32))


def advise_interval_s(snapshot_cost_s: float, mean_time_between_failures_s: float) -> float:
    """Return the interval that loses the least time to snapshots and to work redone after failures.

    Young's first-order optimum (1974), sqrt(2 * cost * MTBF), and never less than the cost itself. Where failures are
    as frequent as snapshots are long (cost >= MTBF / 2, where the approximation ends, after Daly 2006), it is the MTBF.
    """
    if not (snapshot_cost_s > 0 and mean_time_between_failures_s > 0):
        raise UsageError("the cost of a snapshot and the mean time between failures must both be above zero")
    if snapshot_cost_s >= mean_time_between_failures_s / 2:
        return max(snapshot_cost_s, mean_time_between_failures_s)
    return math.sqrt(2 * snapshot_cost_s * mean_time_between_failures_s)
