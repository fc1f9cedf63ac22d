"""The proof of every snapshot (P1), recomputed as a DataFrame program.

`strobe.causality.proof` stays the definition: this program has the same checks, subjects and messages. It takes a table
of snapshots instead of one. For each channel of the view, with the counts and hashes that its two ends recorded and the
frames recorded as in flight,

    received + messages in flight = sent     and     received hash extended by the frames = sent hash.

If nothing is in flight, the second is an equality of columns, and no Python runs. The program makes as few passes over
the tables as possible, because a shuffle of small data costs more than the work on it.

This is the way to prove all snapshots of a store in one query, to join the violations with other tables, and to prove a
snapshot too large for one worker: Spark divides its channels. The pipeline proves snapshots as they come instead, each
in one worker by the definition itself (snapshot_checker.py): a batch of small snapshots is not worth a shuffle.
"""

from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from strobe.protocol.values.frames import FIFO
from strobe.spark.checks.channel_hashes import ANNOUNCED, EXTENDED_HASH, hashed_frames
from strobe.spark.dataframes.store import Tables
from strobe.spark.dataframes.store import tables as tables_of_store
from strobe.spark.schema import columns as c
from strobe.spark.session.embedded import local_session

SELF_CONSISTENT = "self-consistent, signer unknown"
"""All that a proof without signatures shows."""

_FINDINGS = "findings"
_MESSAGES = "messages"
_CHANNEL_KEY = [c.SNAPSHOT_ID, c.CHANNEL]


class VerdictRow(msgspec.Struct, frozen=True):
    """The result of the proof of one snapshot. `verdict` is holds, violated or error; `reason` explains it."""

    snapshot_id: str
    verdict: str
    reason: str

    @property
    def holds(self) -> bool:
        return self.verdict == c.HOLDS


def verdicts(url: str | Path, spark: SparkSession | None = None) -> list[VerdictRow]:
    """Verify every committed snapshot of the store at `url`, oldest first.

    Uses the session `spark`, else this program's active session, else an embedded one.
    """
    found = tables_of_store(spark or local_session(), url)
    try:
        rows = verify_proofs(found).select(c.SNAPSHOT_ID, c.VERDICT, c.REASON).collect()
    finally:
        found.unpersist()
    return sorted((VerdictRow(*row) for row in rows), key=lambda row: row.snapshot_id)


def verify_proofs(tables: Tables) -> DataFrame:
    """Return the verdict on every committed snapshot: `holds`, `violated`, or `error` if it cannot be read."""
    return verdicts_from(tables, proof_violations(tables))


def proof_violations(tables: Tables) -> DataFrame:
    """Return one row for each violation: the rule (`check`), the channel or process, and the problem."""
    frames = examined_frames(tables.frontier_details, tables.channel_frames)
    found = (
        missing_fragments(tables.view_processes, tables.fragments),
        strange_fragments(tables.fragments, tables.view_processes, tables.snapshots),
        strange_channels(tables.channel_ends, tables.view_channels),
        wrong_channels(tables.frontier_details, frames, tables.fragments),
    )
    return reduce(DataFrame.union, found).select(*c.VIOLATIONS)


def verdicts_from(tables: Tables, violations: DataFrame) -> DataFrame:
    """Return one verdict for each snapshot: whether it has violations, or could not be read at all."""
    problem = sf.variant_get(c.DETAIL, "$.problem", "string")
    line = sf.format_string("%s: %s [%s]", c.SUBJECT, problem, c.CHECK)
    reasons = violations.groupBy(c.SNAPSHOT_ID).agg(
        sf.array_join(sf.array_sort(sf.collect_list(line)), "; ").alias(c.REASON)
    )
    check = sf.lit(c.PROOF).alias(c.CHECK)
    read = tables.snapshots.join(reasons, c.SNAPSHOT_ID, "left").select(
        c.SNAPSHOT_ID,
        check,
        sf.when(sf.col(c.REASON).isNull(), c.HOLDS).otherwise(c.VIOLATED).alias(c.VERDICT),
        sf.coalesce(c.REASON, sf.lit(SELF_CONSISTENT)).alias(c.REASON),
    )
    # A damaged log entry may have been a commit with an unknown snapshot id: its file name is used instead.
    who = sf.coalesce(c.SNAPSHOT_ID, c.URI).alias(c.SNAPSHOT_ID)
    unread = tables.reading_errors.select(who, check, sf.lit(c.ERROR).alias(c.VERDICT), c.REASON)
    return read.union(unread)


def missing_fragments(view_processes: DataFrame, fragments: DataFrame) -> DataFrame:
    missing = view_processes.join(fragments, [c.SNAPSHOT_ID, c.PROCESS], "left_anti")
    return _violations(missing, c.PROCESS, _finding("membership", "is in the view but has no fragment"))


def strange_fragments(fragments: DataFrame, view_processes: DataFrame, snapshots: DataFrame) -> DataFrame:
    """Fragments of an unknown process, of another process or snapshot, or recorded in another view."""
    known = view_processes.withColumn("known", sf.lit(True))
    labelled = fragments.join(known, [c.SNAPSHOT_ID, c.PROCESS], "left").join(snapshots, c.SNAPSHOT_ID)
    return _violations(
        labelled,
        c.PROCESS,
        sf.when(sf.col("known").isNull(), _finding("membership", "has a fragment but is not in the view")),
        sf.when(
            sf.col(c.RECORDED_BY) != sf.col(c.PROCESS),
            _finding("membership", "has the fragment of %s", c.RECORDED_BY),
        ),
        sf.when(
            sf.col(c.RECORDED_SNAPSHOT) != sf.col(c.SNAPSHOT_ID),
            _finding("membership", "has a fragment of the snapshot %s", c.RECORDED_SNAPSHOT),
        ),
        sf.when(
            sf.col(c.RECORDED_VIEW) != sf.col(c.VIEW_ID),
            _finding("membership", "recorded in view %s, the snapshot is of %s", c.RECORDED_VIEW, c.VIEW_ID),
        ),
    )


def strange_channels(channel_ends: DataFrame, view_channels: DataFrame) -> DataFrame:
    """Channel ends recorded by a process that does not have them in the view."""
    ends = channel_ends.join(view_channels, _CHANNEL_KEY, "left")
    received = sf.col(c.RECEIVED_COUNT).isNotNull() | sf.col(c.IN_FLIGHT_FRAMES).isNotNull()
    strange = (
        sf.col(c.SOURCE).isNull()
        | (sf.col(c.SENT_COUNT).isNotNull() & (sf.col(c.SOURCE) != sf.col(c.PROCESS)))
        | (received & (sf.col(c.TARGET) != sf.col(c.PROCESS)))
    )
    problem = "is recorded by %s, but is not its channel in the view"
    return _violations(ends.where(strange), c.CHANNEL, _finding("membership", problem, c.PROCESS))


def examined_frames(frontiers: DataFrame, channel_frames: DataFrame) -> DataFrame:
    """Each frame in flight with its findings: of the frame itself, and of its position in the sequence."""
    checkable = frontiers.where(_checkable())
    of_receivers = channel_frames.join(checkable, _CHANNEL_KEY).where(sf.col(c.PROCESS) == sf.col(c.TARGET))
    in_place = Window.partitionBy(*_CHANNEL_KEY).orderBy(c.FRAME)
    same_ordinal = Window.partitionBy(*_CHANNEL_KEY, c.FIRST_ORDINAL).orderBy(c.FRAME)
    following = sf.col(c.FIRST_ORDINAL) + sf.col(c.MESSAGE_COUNT)
    return (
        hashed_frames(of_receivers)
        .withColumns(
            {
                "due": sf.coalesce(sf.lag(following).over(in_place), sf.col(c.RECEIVED_COUNT) + 1),
                "repeated": sf.row_number().over(same_ordinal) > 1,
            }
        )
        .withColumn(_FINDINGS, _compact(*_frame_findings()))
    )


def wrong_channels(frontiers: DataFrame, frames: DataFrame, fragments: DataFrame) -> DataFrame:
    """Channels that were not recorded, and channels whose ends and frames do not match."""
    in_flight = frames.groupBy(*_CHANNEL_KEY).agg(
        sf.sum(sf.col(c.MESSAGE_COUNT) - sf.col(c.CONSUMED)).alias(_MESSAGES),
        sf.flatten(sf.collect_list(_FINDINGS)).alias(_FINDINGS),
        sf.max_by(EXTENDED_HASH, c.FRAME).alias(EXTENDED_HASH),
    )
    present = fragments.groupBy(c.SNAPSHOT_ID).agg(sf.collect_set(c.PROCESS).alias("present"))
    channels = (
        frontiers.join(in_flight, _CHANNEL_KEY, "left")
        .join(present, c.SNAPSHOT_ID)
        .withColumns(
            {
                # First of all, because the result of `size` for NULL depends on the session's settings.
                _FINDINGS: sf.coalesce(_FINDINGS, sf.array()),
                _MESSAGES: sf.coalesce(_MESSAGES, sf.lit(0)),
                EXTENDED_HASH: sf.coalesce(EXTENDED_HASH, c.RECEIVED_HASH),
            }
        )
    )
    found = _compact(_forgotten(), _uncheckable(), *_end_findings(), *_count_findings(), _hash_finding())
    return _about(channels, c.CHANNEL, sf.concat(_FINDINGS, found))


def _recorded() -> Column:
    """Whether both ends of the channel were recorded."""
    needed = (c.SENT_COUNT, c.RECEIVED_COUNT, c.IN_FLIGHT_FRAMES)
    return reduce(Column.__and__, (sf.col(name).isNotNull() for name in needed))


def _checkable() -> Column:
    """Whether the channel was recorded, with a valid hash algorithm."""
    return _recorded() & sf.col(c.UNUSED_HASH).isNotNull()


def _forgotten() -> Column:
    """A channel that is missing in existing fragments of its processes. A missing fragment is reported separately."""
    who = sf.when(sf.col(c.SENT_COUNT).isNull(), sf.col(c.SOURCE)).otherwise(sf.col(c.TARGET))
    present = sf.array_contains("present", sf.col(c.SOURCE)) & sf.array_contains("present", sf.col(c.TARGET))
    return sf.when(~_recorded() & present, _finding("forgotten", "is in the view but not in the fragment of %s", who))


def _uncheckable() -> Column:
    problem = _finding("hash", "cannot be checked: no %s channel has the hash %s", c.KIND, c.HASH)
    return sf.when(_recorded() & ~_checkable(), problem)


def _end_findings() -> Iterator[Column]:
    """Wrong hashes of single ends: a wrong length, or not the initial hash although the channel is unused."""
    due = sf.length(c.UNUSED_HASH)
    for who, count, running in ((c.SOURCE, c.SENT_COUNT, c.SENT_HASH), (c.TARGET, c.RECEIVED_COUNT, c.RECEIVED_HASH)):
        yield sf.when(
            _checkable() & (sf.length(running) != due),
            _finding("hash", "%s has a hash of %s bytes, and %s gives %s", who, sf.length(running), c.HASH, due),
        ).when(
            _checkable() & (sf.col(count) == 0) & (sf.col(running) != sf.col(c.UNUSED_HASH)),
            _finding("hash", "%s counts no message, but its hash is not that of an unused channel", who),
        )


def _frame_findings() -> Iterator[Column]:
    fifo, place = sf.col(c.KIND) == FIFO, sf.col(c.FRAME)
    count, consumed = sf.col(c.MESSAGE_COUNT), sf.col(c.CONSUMED)
    first = sf.col(c.FIRST_ORDINAL) + consumed
    yield sf.when(
        fifo & (first != sf.col("due")), _finding("order", "message %s is in flight, but %s was expected", first, "due")
    )
    yield sf.when(~fifo & sf.col("repeated"), _finding("order", "message %s is in flight twice", first))
    yield sf.when(
        fifo & (consumed > 0) & (place > 0),
        _finding("frame", "in-flight frame %s cannot have messages consumed: it is not the first", place),
    )
    yield (
        sf.when(
            sf.col(c.FIRST_ORDINAL) < 1,
            _finding("frame", "in-flight frame %s cannot begin with message %s", place, c.FIRST_ORDINAL),
        )
        .when(
            consumed >= count,
            _finding("frame", "in-flight frame %s of %s messages cannot have %s consumed", place, count, consumed),
        )
        .when(
            ~sf.col(ANNOUNCED).eqNullSafe(count),
            _finding("frame", "in-flight frame %s claims %s messages, but its body has another number", place, count),
        )
    )


def _count_findings() -> Iterator[Column]:
    sent, received, messages = sf.col(c.SENT_COUNT), sf.col(c.RECEIVED_COUNT), sf.col(_MESSAGES)
    ahead = "%s had received %s messages, %s had sent %s: the cut is inconsistent"
    yield sf.when(_checkable() & (received > sent), _finding("cut", ahead, c.TARGET, received, c.SOURCE, sent))
    lost = sent - received - messages
    what = sf.when(lost > 0, sf.format_string("%s missing", lost)).otherwise(sf.format_string("%s too many", -lost))
    yield sf.when(
        _checkable() & (received <= sent) & (lost != 0),
        _finding("count", "%s sent, %s received, %s in flight: %s", sent, received, messages, what),
    )


def _hash_finding() -> Column:
    """Compared only if everything else holds: malformed or miscounted frames cannot have the right hash."""
    sound = sf.size(_FINDINGS) == 0
    counted = sf.col(c.RECEIVED_COUNT) + sf.col(_MESSAGES) == sf.col(c.SENT_COUNT)
    different = sf.col(EXTENDED_HASH) != sf.col(c.SENT_HASH)
    return sf.when(
        _checkable() & sound & counted & different,
        _finding("hash", "what was received and is in flight is not what %s sent", c.SOURCE),
    )


def _finding(check: str, problem: str, *values: Column | str) -> Column:
    text = sf.format_string(problem, *values) if values else sf.lit(problem)
    return sf.struct(
        sf.lit(check).alias(c.CHECK), sf.to_variant_object(sf.struct(text.alias("problem"))).alias(c.DETAIL)
    )


def _compact(*findings: Column) -> Column:
    return sf.array_compact(sf.array(*findings))


def _violations(rows: DataFrame, subject: str, *findings: Column) -> DataFrame:
    """Return a row about the column `subject` for each of `findings` that is not NULL."""
    return _about(rows, subject, _compact(*findings))


def _about(rows: DataFrame, subject: str, findings: Column) -> DataFrame:
    return rows.select(c.SNAPSHOT_ID, sf.col(subject).alias(c.SUBJECT), sf.inline(findings))
