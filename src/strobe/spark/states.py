"""The states of processes as rows of Arrow. They are read when they are asked for, and apart from everything else.

A state is one row; a keyed one is a row for each key.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from blake3 import blake3

from strobe.keyed_state import Key
from strobe.protocol.fragment import KEYED, MSGPACK, LocalState, Snapshot
from strobe.spark import columns as c
from strobe.spark.parts import Row
from strobe.spark.payloads import JSON, to_json
from strobe.storage.segments import keyed_items

STATES = pa.schema(
    [
        (c.SNAPSHOT_ID, pa.string()),
        (c.PROCESS, pa.string()),
        (c.KEY, pa.string()),
        (c.POSITION, pa.int64()),
        (c.ENCODING, pa.string()),
        (c.STATE_HASH, pa.binary()),
        (JSON, pa.string()),
        (c.BYTES, pa.binary()),
    ]
)

BATCH_BYTES_MAX = 8 << 20
"""A batch is handed over when it has grown past this; one state that is larger by itself is a batch of its own."""
BATCH_ROWS_MAX = 20_000


def state_rows(snapshot_id: str, process: str, state: LocalState) -> Iterator[Row]:
    """Yield the state of one process. A keyed one that is not what it says is one more row, without a key."""
    row = {c.SNAPSHOT_ID: snapshot_id, c.PROCESS: process, c.POSITION: state.position, c.ENCODING: state.encoding}
    if state.encoding != KEYED:
        yield row | _value(state.data, state.encoding == MSGPACK)
        return
    try:
        for key, value in keyed_items(state):
            yield row | {c.KEY: key_text(key)} | _value(value, True)
    except ValueError:
        yield row | _value(bytes(state.data), False)


def key_text(key: Key) -> str:
    """Return a key as people ask for it: text as it is, a number in decimal, bytes in hexadecimal."""
    return key.hex() if isinstance(key, bytes) else str(key)


def _value(data: bytes, plain: bool) -> Row:
    return {
        c.STATE_HASH: blake3(data).digest(),
        JSON: to_json(data) if plain else None,
        # Beside the JSON, because Spark may still refuse that: for its size, or for two keys that print the same.
        c.BYTES: data,
    }


def states_of(snapshots: Iterable[Snapshot]) -> Iterator[Row]:
    """Yield the states of snapshots in memory."""
    for snapshot in snapshots:
        for process, fragment in snapshot.fragments.items():
            if fragment.state is not None:
                yield from state_rows(str(snapshot.id), process, fragment.state)


def state_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Gather states into batches of bounded size."""
    waiting: list[Row] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += len(row[c.BYTES])
        if size > BATCH_BYTES_MAX or len(waiting) >= BATCH_ROWS_MAX:
            yield pa.RecordBatch.from_pylist(waiting, STATES)
            waiting, size = [], 0
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, STATES)
