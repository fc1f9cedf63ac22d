"""The states of processes as rows of Arrow. They are read when they are asked for, and apart from everything else."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from blake3 import blake3

from strobe.protocol.fragment import MSGPACK, LocalState, Snapshot
from strobe.spark import columns as c
from strobe.spark.parts import Row
from strobe.spark.payloads import JSON, to_json

STATES = pa.schema(
    [
        (c.SNAPSHOT_ID, pa.string()),
        (c.PROCESS, pa.string()),
        (c.POSITION, pa.int64()),
        (c.ENCODING, pa.string()),
        (c.STATE_HASH, pa.binary()),
        (JSON, pa.string()),
        (c.BYTES, pa.binary()),
    ]
)

BATCH_BYTES_MAX = 8 << 20
"""A batch is handed over when it has grown past this; one state that is larger by itself is a batch of its own."""


def state_row(snapshot_id: str, process: str, state: LocalState) -> Row:
    return {
        c.SNAPSHOT_ID: snapshot_id,
        c.PROCESS: process,
        c.POSITION: state.position,
        c.ENCODING: state.encoding,
        c.STATE_HASH: blake3(state.data).digest(),
        JSON: to_json(state.data) if state.encoding == MSGPACK else None,
        # Beside the JSON, because Spark may still refuse that: for its size, or for two keys that print the same.
        c.BYTES: state.data,
    }


def states_of(snapshots: Iterable[Snapshot]) -> Iterator[Row]:
    """Yield the states of snapshots in memory."""
    for snapshot in snapshots:
        for process, fragment in snapshot.fragments.items():
            if fragment.state is not None:
                yield state_row(str(snapshot.id), process, fragment.state)


def state_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Gather states into batches of bounded size."""
    waiting: list[Row] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += len(row[c.BYTES])
        if size > BATCH_BYTES_MAX:
            yield pa.RecordBatch.from_pylist(waiting, STATES)
            waiting, size = [], 0
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, STATES)
