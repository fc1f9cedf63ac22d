"""What an Examiner finds in a store, without Spark: it gets the whole log as one batch, in the pipeline's form."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from strobe.spark.checks.snapshot_checker import COMMITS, Examination, Examiner
from strobe.storage import Store
from strobe.storage.log.follower import Followed, Follower

DRIFT_WINDOW = 3


def entries_of(store: Store) -> list[Followed]:
    follower = Follower(store.url)
    return follower.between(0, follower.advance())


def examined(
    store: Store,
    spoil: Callable[[Examiner], None] = lambda examiner: None,
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
    examiner = Examiner(Examination(store.url, store.header.store, DRIFT_WINDOW))
    spoil(examiner)
    return examiner.examine(pa.RecordBatch.from_pylist(rows, schema=COMMITS)).to_pylist()
