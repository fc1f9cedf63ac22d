"""What a SnapshotChecker finds in a store, without Spark: it gets the whole log as one batch, as in the pipeline."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from strobe.spark.checks.snapshot_checker import COMMIT_BATCH, Examination, SnapshotChecker
from strobe.storage import Store
from strobe.storage.log.follower import Followed, Follower

DRIFT_WINDOW = 3


def entries_of(store: Store) -> list[Followed]:
    follower = Follower(store.url)
    return follower.between(0, follower.advance())


def examined(
    store: Store,
    spoil: Callable[[SnapshotChecker], None] = lambda checker: None,
    entries: list[Followed] | None = None,
) -> list[dict[str, Any]]:
    entries = entries_of(store) if entries is None else entries
    positions = [entry.position for entry in entries]
    rows = [
        {
            "log_position": entry.position,
            "snapshot_id": entry.snapshot_id,
            "problem": entry.problem,
            "history": positions[:n],
        }
        for n, entry in enumerate(entries)
    ]
    checker = SnapshotChecker(Examination(store.url, store.header.store, DRIFT_WINDOW))
    spoil(checker)
    return checker.examine(pa.RecordBatch.from_pylist(rows, schema=COMMIT_BATCH)).to_pylist()
