"""The hash fold over sorted frames gives the same result for any batch boundaries."""

import random

import pyarrow as pa
import pytest
from tests.spark.generate import good_snapshots

from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.frames import body_count, extend_all, seed_hash
from strobe.spark.checks.channel_hashes import ANNOUNCED, EXTENDED_HASH, extend_sorted
from strobe.spark.schema import columns as c


def frames_of(snapshot: Snapshot) -> list[dict[str, object]]:
    """The rows that Spark passes to the fold: sorted by channel and frame number."""
    return [
        {
            c.SNAPSHOT_ID: str(snapshot.id),
            c.CHANNEL: channel.id,
            c.KIND: channel.kind,
            c.RECEIVED_COUNT: snapshot.fragments[channel.target].received[channel.id].count,
            c.FRAME: place,
            c.FIRST_ORDINAL: item.frame.first_ordinal,
            c.MESSAGE_COUNT: item.frame.count,
            c.CONSUMED: item.consumed,
            c.HASH: channel.hash,
            c.UNUSED_HASH: seed_hash(channel.id, channel.incarnation, channel.hash),
            c.RECEIVED_HASH: snapshot.fragments[channel.target].received[channel.id].hash,
            c.BYTES: item.frame.body,
        }
        for channel in sorted(snapshot.view.channels, key=lambda channel: channel.id)
        for place, item in enumerate(snapshot.fragments[channel.target].in_flight[channel.id])
    ]


def schema() -> pa.Schema:
    """The Arrow schema of `channel_frames` joined with `frontiers`."""
    types = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "binary": pa.binary()}
    names = frames_of(next(s for s in good_snapshots(5, 50) if s.in_flight_messages))[0]
    return pa.schema([(name, types[(c.CHANNEL_FRAMES | c.FRONTIER_DETAILS)[name]]) for name in names])


def in_batches(rows: list[dict[str, object]], rng: random.Random) -> list[pa.RecordBatch]:
    batches, start = [], 0
    while start < len(rows):
        end = start + rng.randint(1, 4)
        batches.append(pa.RecordBatch.from_pylist(rows[start:end], schema()))
        start = end
    return batches


@pytest.mark.parametrize("seed", range(20))
def test_a_hash_continues_across_batches_and_restarts_per_channel(seed: int) -> None:
    rows = [row for snapshot in good_snapshots(seed, 20) for row in frames_of(snapshot)]
    folded = [row for batch in extend_sorted(iter(in_batches(rows, random.Random(seed)))) for row in batch.to_pylist()]
    assert len(folded) == len(rows)
    for row, result in zip(rows, folded, strict=True):
        same = [r for r in rows if (r[c.SNAPSHOT_ID], r[c.CHANNEL]) == (row[c.SNAPSHOT_ID], row[c.CHANNEL])]
        before = [(r[c.FIRST_ORDINAL], r[c.MESSAGE_COUNT], r[c.BYTES]) for r in same if r[c.FRAME] <= row[c.FRAME]]
        expected = extend_all(row[c.KIND], row[c.UNUSED_HASH], row[c.RECEIVED_HASH], before, row[c.HASH])
        assert result[EXTENDED_HASH] == expected
        assert result[ANNOUNCED] == body_count(row[c.BYTES])


def test_no_frames_give_no_rows() -> None:
    assert list(extend_sorted(iter(()))) == []
