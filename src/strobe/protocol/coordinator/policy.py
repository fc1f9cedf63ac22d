"""When to take snapshots: rate limits, and advice on the interval (E10)."""

import math

import msgspec

from strobe.backoff import wait_after
from strobe.errors import UsageError


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that the coordinator applies.

    Scheduled snapshots begin every `interval_us` (0: only on demand). A snapshot begins at least `pause_us_min` after
    the last one began and, unless snapshots overlap, after the last one ended. At most `overlapping_max` overlap. A
    snapshot that has not completed after `timeout_us` is aborted, and retried with a back-off that doubles, for at most
    `attempts_max` attempts. A process that causes more than `rollbacks_max` rollbacks within `rollback_window_us` stops
    the system (R1). A planned restart that takes longer than `restart_timeout_us` counts as a crash (E11).
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
    restart_timeout_us: int = 300_000_000

    def check(self) -> None:
        """Raise UsageError if a limit makes no sense."""
        if self.overlapping_max < 1 or self.attempts_max < 1 or min(self.timeout_us, self.restart_timeout_us) < 1:
            raise UsageError("a policy needs overlapping_max, attempts_max, timeout and restart_timeout of at least 1")
        if self.rollbacks_max < 0:
            raise UsageError(f"a policy cannot have rollbacks_max = {self.rollbacks_max}; 0 means: stop at the first")
        for name in ("interval_us", "pause_us_min", "backoff_us", "backoff_us_max", "rollback_window_us"):
            if getattr(self, name) < 0:
                raise UsageError(f"a policy cannot have {name} = {getattr(self, name)}: times are not negative")

    def backoff_after(self, attempt: int) -> int:
        """Return the back-off after `attempt` failed attempts, in microseconds."""
        return wait_after(attempt, self.backoff_us, self.backoff_us_max)


def advise_interval_s(snapshot_cost_s: float, mean_time_between_failures_s: float) -> float:
    """Return the interval that loses the least time to snapshots and to work redone after failures.

    This is Young's first-order optimum (1974), sqrt(2 * cost * MTBF), and never less than the cost itself. If failures
    are as frequent as snapshots are long (cost >= MTBF / 2, where the approximation no longer holds, after Daly 2006),
    it is the MTBF.
    """
    if not (snapshot_cost_s > 0 and mean_time_between_failures_s > 0):
        raise UsageError("the cost of a snapshot and the mean time between failures must both be above zero")
    if snapshot_cost_s >= mean_time_between_failures_s / 2:
        return max(snapshot_cost_s, mean_time_between_failures_s)
    return math.sqrt(2 * snapshot_cost_s * mean_time_between_failures_s)
