"""The running hash of each channel, extended by its in-flight frames in Python workers, because SQL cannot compute it.

Spark groups and sorts the frames. A batch may end in the middle of a channel. Only one hash is kept at a time, so
memory does not grow with the number of frames. (`applyInArrow`, one call per channel, takes sixteen times as long.)
The bytes of a frame are dropped here: later checks need only its hash and the message count that its body announces.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from strobe.protocol.values.frames import body_count, extend_all
from strobe.spark.schema import columns as c

EXTENDED_HASH = "extended_hash"
ANNOUNCED = "announced"

_KEPT = (c.SNAPSHOT_ID, c.CHANNEL, c.KIND, c.RECEIVED_COUNT, c.FRAME, c.FIRST_ORDINAL, c.MESSAGE_COUNT, c.CONSUMED)
HASHED_FRAMES = pa.schema(
    [
        (c.SNAPSHOT_ID, pa.string()),
        (c.CHANNEL, pa.string()),
        (c.KIND, pa.string()),
        (c.RECEIVED_COUNT, pa.int64()),
        (c.FRAME, pa.int64()),
        (c.FIRST_ORDINAL, pa.int64()),
        (c.MESSAGE_COUNT, pa.int32()),
        (c.CONSUMED, pa.int32()),
        (ANNOUNCED, pa.int64()),
        (EXTENDED_HASH, pa.binary()),
    ]
)


def hashed_frames(frames: DataFrame) -> DataFrame:
    """Return each frame with the receiver's hash, extended by this frame and all earlier ones.

    `frames` are the rows of channel_frames, joined with the frontiers of their channels.
    """
    return (
        frames.select(*_KEPT, c.HASH, c.UNUSED_HASH, c.RECEIVED_HASH, c.BYTES)
        .repartition(c.SNAPSHOT_ID, c.CHANNEL)
        .sortWithinPartitions(c.SNAPSHOT_ID, c.CHANNEL, c.FRAME)
        .mapInArrow(extend_sorted, from_arrow_schema(HASHED_FRAMES))
    )


def extend_sorted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replace the bytes of frames sorted by channel with their announced message count and the hash so far."""
    current: tuple[str, str] | None = None
    extended = b""
    for batch in batches:
        announced: list[int | None] = []
        hashes: list[bytes] = []
        for row in batch.to_pylist():
            if (row[c.SNAPSHOT_ID], row[c.CHANNEL]) != current:
                current, extended = (row[c.SNAPSHOT_ID], row[c.CHANNEL]), row[c.RECEIVED_HASH]
            frame = row[c.FIRST_ORDINAL], row[c.MESSAGE_COUNT], row[c.BYTES]
            extended = extend_all(row[c.KIND], row[c.UNUSED_HASH], extended, [frame], row[c.HASH])
            announced.append(body_count(row[c.BYTES]))
            hashes.append(extended)
        columns = [
            *(batch.column(name) for name in _KEPT),
            pa.array(announced, pa.int64()),
            pa.array(hashes, pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=HASHED_FRAMES)
