"""Stable predicates over many snapshots at once, as DataFrame programs (D4, G2).

`strobe.causality.predicates` stays the definition. A fixed point is reached in rounds, each a Spark job over the
remaining rows. The number of rounds is the length of the longest chain of waits that ends, or of references.
"""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from strobe.spark.dataframes.by_position import SnapshotTables
from strobe.spark.dataframes.store import Tables
from strobe.spark.schema import columns as c

_TERM = [c.SNAPSHOT_ID, c.PROCESS, c.TERM]
_TARGET, _TARGET_TERM, _MEMBERS, _BLOCKED = "target", "target_term", "members", "blocked"


def deadlocked(tables: Tables | SnapshotTables, *, timeouts_end: bool = True) -> DataFrame:
    """Return the deadlocked processes of each snapshot, and the stuck processes that each of them waits for.

    With `timeouts_end` false, waits that time out count like the others. A process that is deadlocked only then is
    stuck until its time-out.
    """
    waits = tables.declared_waits.withColumns(
        {
            _TARGET: sf.coalesce(c.MEMBER, c.PROCESS),
            _TARGET_TERM: sf.coalesce(c.MEMBER_TERM, sf.lit(0)),
        }
    ).localCheckpoint()
    members = waits.where(~sf.col(c.MET))
    counted = waits.groupBy(*_TERM, c.ANY_SUFFICES, c.TIMES_OUT).agg(sf.count(sf.lit(1)).alias(_MEMBERS))
    candidates = counted.where(~sf.col(c.TIMES_OUT)) if timeouts_end else counted

    def still_stuck(stuck: DataFrame) -> DataFrame:
        """Keep the terms that cannot be met: one stuck member if all are needed, all stuck if any suffices."""
        blocked = _towards(members, stuck).groupBy(*_TERM).agg(sf.count(sf.lit(1)).alias(_BLOCKED))
        none_left = ~sf.col(c.ANY_SUFFICES) | (sf.col(_BLOCKED) == sf.col(_MEMBERS))
        return stuck.join(blocked, _TERM).where(none_left).drop(_BLOCKED)

    stuck = _fixed_point(candidates, still_stuck)
    processes = stuck.where(sf.col(c.TERM) == 0).select(c.SNAPSHOT_ID, c.PROCESS)
    in_vain = _towards(members.where(sf.col(c.MEMBER).isNotNull()), stuck).groupBy(c.SNAPSHOT_ID, c.PROCESS)
    waited_for = in_vain.agg(sf.array_sort(sf.collect_set(c.MEMBER)).alias(c.WAITS_FOR))
    return processes.join(waited_for, [c.SNAPSHOT_ID, c.PROCESS])


def terminated(tables: Tables | SnapshotTables) -> DataFrame:
    """Return the snapshots in which no process is active, no timer is pending and nothing is in flight."""
    quiet = ~sf.col(c.ACTIVE) & (sf.col(c.TIMERS) == 0) & (sf.col(c.IN_FLIGHT) == 0)
    return tables.activity.groupBy(c.SNAPSHOT_ID).agg(sf.bool_and(quiet).alias("quiet")).where("quiet").drop("quiet")


def garbage(tables: Tables | SnapshotTables) -> DataFrame:
    """Return the holders of declared references that can no longer be reached."""
    references = tables.declared_references.localCheckpoint()
    held = references.where(sf.col(c.HOLDER).isNotNull())
    edges = held.where(sf.col(c.NAME).isNotNull()).select(c.SNAPSHOT_ID, sf.col(c.HOLDER).alias(_TARGET), c.NAME)
    edges = edges.union(_sends_to(tables.view_channels, held)).localCheckpoint()
    awake = sf.col(c.ACTIVE) | (sf.col(c.TIMERS) > 0) | (sf.col(c.IN_FLIGHT) > 0)
    roots = tables.activity.where(awake).select(c.SNAPSHOT_ID, sf.col(c.PROCESS).alias(c.NAME))
    carried = references.where(sf.col(c.HOLDER).isNull()).select(c.SNAPSHOT_ID, c.NAME)
    reached = _reachable(roots.union(carried).distinct(), edges)
    things = held.select(c.SNAPSHOT_ID, sf.col(c.HOLDER).alias(c.NAME)).distinct()
    return things.join(reached, [c.SNAPSHOT_ID, c.NAME], "left_anti")


def _sends_to(channels: DataFrame, held: DataFrame) -> DataFrame:
    """Return the channels of processes that declare no references, as if the channels were references."""
    declaring = held.select(c.SNAPSHOT_ID, sf.col(c.PROCESS).alias(c.SOURCE)).distinct()
    silent = channels.join(declaring, [c.SNAPSHOT_ID, c.SOURCE], "left_anti")
    return silent.select(c.SNAPSHOT_ID, sf.col(c.SOURCE).alias(_TARGET), sf.col(c.TARGET).alias(c.NAME))


def _towards(members: DataFrame, stuck: DataFrame) -> DataFrame:
    """Return the members that are stuck themselves."""
    targets = stuck.select(c.SNAPSHOT_ID, sf.col(c.PROCESS).alias(_TARGET), sf.col(c.TERM).alias(_TARGET_TERM))
    return members.join(targets, [c.SNAPSHOT_ID, _TARGET, _TARGET_TERM], "left_semi")


def _fixed_point(rows: DataFrame, narrow: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Narrow `rows` until no row is removed. Each round is computed once, without recomputing earlier rounds."""
    rows = rows.localCheckpoint()
    count = rows.count()
    while count:
        rows = narrow(rows).localCheckpoint()
        before, count = count, rows.count()
        if count == before:
            break
    return rows


def _reachable(roots: DataFrame, edges: DataFrame) -> DataFrame:
    """Return the names that `edges` lead to from `roots`, including the roots."""
    reached = latest = roots.localCheckpoint()
    while not latest.isEmpty():
        sources = latest.withColumnRenamed(c.NAME, _TARGET)
        found = edges.join(sources, [c.SNAPSHOT_ID, _TARGET], "left_semi").select(c.SNAPSHOT_ID, c.NAME).distinct()
        latest = found.join(reached, [c.SNAPSHOT_ID, c.NAME], "left_anti").localCheckpoint()
        reached = reached.union(latest)
    return reached
