"""The rows of each table for one snapshot, column by column.

Rows are yielded as one chunk for each column, with their size in bytes. `process` selects the rows of one process, if
the table has that column.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from strobe.spark.rows.committed_snapshot import CommittedSnapshot, epoch_of
from strobe.spark.rows.declarations import activity, declared_references, declared_waits
from strobe.spark.rows.frontier_arrays import view_columns
from strobe.spark.rows.frontiers import counts, frontier_details, frontiers, hashes
from strobe.spark.rows.states import channel_messages, process_states
from strobe.spark.schema.arrow import Rows


def snapshots(snapshot: CommittedSnapshot) -> Rows:
    row: list[Any] = [
        snapshot.id,
        snapshot.log_position,
        snapshot.parent,
        snapshot.protocol,
        snapshot.initiators,
        snapshot.view.number,
        epoch_of(snapshot),
        snapshot.started_us,
        snapshot.completed_us,
        snapshot.state_bytes,
        snapshot.in_flight_bytes,
    ]
    yield [[value] for value in row], 0


def channel_frames(snapshot: CommittedSnapshot, process: str | None) -> Rows:
    for receiver, channels in snapshot.frames():
        if process in (None, receiver):
            for channel, items in channels.items():
                if items:
                    count = len(items)
                    frames = [item.frame for item in items]
                    bodies = [frame.body for frame in frames]
                    yield (
                        [
                            [snapshot.id] * count,
                            [channel] * count,
                            list(range(count)),
                            [frame.first_ordinal for frame in frames],
                            [frame.count for frame in frames],
                            [item.consumed for item in items],
                            bodies,
                            [receiver] * count,
                        ],
                        sum(map(len, bodies)),
                    )


def view_processes(snapshot: CommittedSnapshot, process: str | None) -> Rows:
    names = [name for name in snapshot.view.processes if process in (None, name)]
    yield [[snapshot.id] * len(names), names], 0


def view_channels(snapshot: CommittedSnapshot) -> Rows:
    view = view_columns[snapshot.view]
    if len(view.channel):
        yield (
            [
                pa.repeat(snapshot.id, len(view.channel)),
                view.channel,
                view.source,
                view.target,
                view.kind,
                view.incarnation,
                view.hash,
                view.unused_hash,
            ],
            0,
        )


def fragments(snapshot: CommittedSnapshot, process: str | None) -> Rows:
    """`process` is the key of the fragment in the snapshot, `recorded_by` its own label; a proof compares them."""
    for name, part in snapshot.recorded.items():
        if process in (None, name):
            yield [[snapshot.id], [name], [part.by], [part.snapshot], [part.view]], 0


def channel_ends(snapshot: CommittedSnapshot, process: str | None) -> Rows:
    """The two ends of each channel as a process recorded them; NULL for an end that it did not record."""
    for name, part in snapshot.recorded.items():
        channels = list(dict.fromkeys((*part.sent, *part.received, *part.in_flight)))
        if channels and process in (None, name):
            sent = [part.sent.get(channel) for channel in channels]
            received = [part.received.get(channel) for channel in channels]
            yield (
                [
                    pa.repeat(snapshot.id, len(channels)),
                    pa.repeat(name, len(channels)),
                    pa.array(channels, pa.string()),
                    counts(sent),
                    hashes(sent),
                    counts(received),
                    hashes(received),
                    pa.array([part.in_flight.get(channel) for channel in channels], pa.int64()),
                ],
                0,
            )


def rows_of(table: str, snapshot: CommittedSnapshot, process: str | None) -> Rows:
    """Yield the rows of `table` for `snapshot`; those of one process, if the table has processes."""
    return ROWS_OF_PROCESSES[table](snapshot, process) if table in ROWS_OF_PROCESSES else ROWS[table](snapshot)


ROWS: dict[str, Callable[[CommittedSnapshot], Rows]] = {
    "snapshots": snapshots,
    "frontiers": frontiers,
    "frontier_details": frontier_details,
    "channel_messages": channel_messages,
    "view_channels": view_channels,
}
ROWS_OF_PROCESSES: dict[str, Callable[[CommittedSnapshot, str | None], Rows]] = {
    "process_states": process_states,
    "channel_frames": channel_frames,
    "view_processes": view_processes,
    "fragments": fragments,
    "channel_ends": channel_ends,
    "activity": activity,
    "declared_waits": declared_waits,
    "declared_references": declared_references,
}
"""The functions for the tables that have a column `process`."""
