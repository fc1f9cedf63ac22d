"""Retention: decides which complete snapshots are kept, and removes the others (E8).

Only globally complete snapshots are counted. The policy keeps the newest `keep_last` snapshots, and the newest one of
each of the last `keep_hourly` hours and `keep_daily` days (UTC) that have any. Always kept, whatever the numbers: the
newest complete snapshot, the pinned ones, and the one that the current epoch was restored from, until the epoch has a
complete one of its own. "Newest" means commit order, so a clock jump neither protects a snapshot permanently nor
removes one.

This module removes no blobs itself. `apply` logs a Remove for each snapshot, each decided on the log up to that entry,
and then runs garbage collection, which keeps the blobs that open snapshots share with their parents.
"""

from collections.abc import Iterable, Iterator

import msgspec

from strobe.errors import UsageError
from strobe.protocol.values.log_entries import Remove
from strobe.storage.entries.log_state import LogState
from strobe.storage.store.garbage_collection import Collected, collect
from strobe.storage.store.optimistic_append import append_when
from strobe.storage.store.store import Store

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
REASON = "retention"


class Protection(msgspec.Struct, frozen=True):
    """A reason why a complete snapshot may not be removed, and what would change that."""

    reason: str
    way_out: str


class RetentionPlan(msgspec.Struct, frozen=True):
    """The snapshots that retention would keep, with the reasons, and those it would remove, oldest first."""

    kept: dict[str, tuple[str, ...]]
    removed: tuple[str, ...]
    at_us: int


class RetentionResult(msgspec.Struct, frozen=True):
    """The snapshots and files that were removed, or would be."""

    removed: tuple[str, ...]
    collected: Collected


def plan(state: LogState, keep_last: int, keep_hourly: int, keep_daily: int, now_us: int) -> RetentionPlan:
    """Return the snapshots that these numbers keep and remove; if all are zero, everything is kept."""
    for name, number in (("last", keep_last), ("hourly", keep_hourly), ("daily", keep_daily)):
        if number < 0:
            raise UsageError(f"retention cannot keep {number} ({name}); give 0 or more, and 0 everywhere to keep all")
    newest_first = list(reversed(state.committed))
    kept: dict[str, list[str]] = {
        name: [protected.reason for protected in protections(state, name)] for name in newest_first
    }
    rules = [
        ("last", newest_first[:keep_last]),
        ("hour", _one_each(state, newest_first, HOUR_US, keep_hourly)),
        ("day", _one_each(state, newest_first, DAY_US, keep_daily)),
    ]
    if not (keep_last or keep_hourly or keep_daily):
        rules.append(("all", newest_first))
    for reason, names in rules:
        for name in names:
            kept[name].append(reason)
    return RetentionPlan(
        {name: tuple(kept[name]) for name in state.committed if kept[name]},
        tuple(name for name in state.committed if not kept[name]),
        now_us,
    )


def protections(state: LogState, snapshot: str) -> Iterator[Protection]:
    """Yield the reasons why the complete `snapshot` may not be removed now; nothing if it may."""
    if snapshot in state.pinned:
        yield Protection("pinned", f"unpin it first: strobe snapshot unpin {snapshot}")
    if snapshot == state.newest_complete:
        yield Protection("newest", "a crash would roll the system back to it; take another snapshot first")
    if snapshot == state.restored:
        problem = "the system was restored from it and has no newer snapshot to go back to; take another one first"
        yield Protection("restored", problem)


def apply(store: Store, planned: RetentionPlan, dry_run: bool = False) -> RetentionResult:
    """Log the removals that still apply and collect garbage; a dry run only returns what would be removed."""
    if dry_run:
        state = store.state()
        going = tuple(name for name in planned.removed if _may_go(state, name))
        entries = [Remove(name, REASON, planned.at_us) for name in going]
        return RetentionResult(going, collect(store, dry_run=True, previewed=state.preview(entries)))
    removed = tuple(name for name in planned.removed if remove(store, name, REASON, planned.at_us))
    return RetentionResult(removed, collect(store))


def remove(store: Store, snapshot: str, reason: str, at_us: int) -> bool:
    """Log the removal of a complete snapshot, unless it is gone or protected by then; return whether it was logged."""
    position = append_when(store, lambda state: Remove(snapshot, reason, at_us) if _may_go(state, snapshot) else None)
    return position is not None


def _may_go(state: LogState, snapshot: str) -> bool:
    return snapshot in state.committed and not any(protections(state, snapshot))


def _one_each(state: LogState, newest_first: Iterable[str], period_us: int, count: int) -> list[str]:
    """Return the newest snapshot of each of the last `count` periods that have any."""
    found: dict[int, str] = {}
    for name in newest_first:
        period = state.committed[name].started_us // period_us
        if period not in found and len(found) < count:
            found[period] = name
    return list(found.values())
