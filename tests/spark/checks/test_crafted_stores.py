"""Crafted stores in a Spark session: each is read completely, and every crafted snapshot is named (E14)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.pipelines import judge_once, reasons, verdicts
from tests.spark.stores import store_with
from tests.storage.crafting import ENTRY, chained, documents_of
from tests.storage.samples import sample
from tests.support.mutating import DEEP

from strobe.errors import StrobeError
from strobe.storage import Store

Manifest = dict[str, Any]


def without_record(manifest: Manifest) -> None:
    del manifest["processes"]["a"]["sent"]["a->b"]


def nested(manifest: Manifest) -> None:
    manifest["another"] = DEEP


def beyond_64_bits(manifest: Manifest) -> None:
    manifest["processes"]["a"]["position"] = 2**64


def beyond_the_calendar(manifest: Manifest) -> None:
    manifest["started_us"] = manifest["completed_us"] = 2**63 - 1


def beyond_all_memory(manifest: Manifest) -> None:
    manifest["processes"]["a"]["state"]["bytes"] = 2**62


CRAFTED: list[Callable[[Manifest], None]] = [
    without_record,
    nested,
    beyond_64_bits,
    beyond_the_calendar,
    beyond_all_memory,
]
FIFO, LINK, DEVICE, GOOD = range(len(CRAFTED), len(CRAFTED) + 4)
UNREADABLE = {CRAFTED.index(nested), CRAFTED.index(beyond_64_bits)}
"""Snapshots whose log entry cannot be read."""
SPOILED = {CRAFTED.index(beyond_all_memory), FIFO, LINK, DEVICE}
"""Snapshots of which one state cannot be read."""
NUMBERS = {str(sample(number + 1).id): number for number in range(GOOD + 1)}


def craft(root: Path) -> Store:
    """Make a store in which every snapshot but the last is crafted, each in a different way."""
    store = store_with(root, [sample(counter + 1) for counter in range(GOOD + 1)])
    documents = {2 * number + 1: document for number, document in enumerate(documents_of(root)[1::2])}
    for number, change in enumerate(CRAFTED):
        change(documents[2 * number + 1]["entry"]["manifest"])
    chained(root, 1, documents)
    for number, target in ((FIFO, None), (LINK, root / "strobe.json"), (DEVICE, Path("/dev/zero"))):
        ref = documents[2 * number + 1]["entry"]["manifest"]["processes"]["a"]["state"]
        replace(root / "blobs" / f"{ref['begin']:020d}" / ref["blake3"], target)
    return store


def replace(path: Path, target: Path | None) -> None:
    path.unlink()
    if target is None:
        os.mkfifo(path)
    else:
        path.symlink_to(target)


def numbers_in(spark: SparkSession, store: Store, table: str, verify: str) -> set[int]:
    """Return the numbers of the snapshots that have rows in a table of the store."""
    read = spark.read.format("strobe").option("path", store.url).option("table", table).option("verify", verify)
    return {NUMBERS[row[0]] for row in read.load().select("snapshot_id").collect()}


def test_E14_crafted_snapshots_are_named_by_tables_and_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    """E14: a crafted snapshot does not keep others from being read, proved or judged; no worker hangs or dies."""
    store, to = craft(tmp_path / "store"), tmp_path / "to"
    everything = set(range(GOOD + 1))
    errors = everything - {CRAFTED.index(without_record), GOOD}
    readable = everything - UNREADABLE
    assert numbers_in(spark, store, "process_states", "snapshot") == everything - errors
    assert numbers_in(spark, store, "reading_errors", "snapshot") == errors
    assert numbers_in(spark, store, "channel_messages", "read") == readable
    assert numbers_in(spark, store, "process_states", "read") == readable - SPOILED
    judge_once(spark, store.url, to, drift_window=0)
    proofs = {NUMBERS[name]: verdict for (name, _), verdict in verdicts(to).items()}
    expected = dict.fromkeys(UNREADABLE | SPOILED, "error") | {CRAFTED.index(without_record): "violated"}
    assert proofs == dict.fromkeys(everything, "holds") | expected
    quarantined = reasons(to, "quarantine", "uri")
    assert {NUMBERS[str(name)] for name, _ in quarantined} == UNREADABLE | SPOILED
    found = {NUMBERS[str(name)]: f"{uri} {reason}" for (name, uri), reason in quarantined.items()}
    assert f"{ENTRY.format(2 * CRAFTED.index(nested) + 1)} its checksum holds" in found[CRAFTED.index(nested)]
    assert "is a FIFO, but must be a regular file" in found[FIFO]
    assert "is a symbolic link, but must be a regular file" in found[DEVICE]


def test_E14_a_fifo_as_a_log_entry_is_quarantined_alone(spark: SparkSession, tmp_path: Path) -> None:
    """E14: it is treated like any other entry that cannot be read."""
    store, to = store_with(tmp_path / "store", [sample(1), sample(2), sample(3)]), tmp_path / "to"
    replace(tmp_path / "store" / ENTRY.format(3), None)
    judge_once(spark, store.url, to, drift_window=0)
    assert {NUMBERS[name] for (name, _) in verdicts(to)} == {0, 2}
    ((_, uri), reason), *others = reasons(to, "quarantine", "uri").items()
    assert not others
    assert uri.endswith(ENTRY.format(3))
    assert "is a FIFO, but must be a regular file" in reason
    assert numbers_in(spark, store, "snapshots", "read") == {0, 2}


def test_E14_a_file_far_beyond_the_log_is_named_and_nothing_waits(spark: SparkSession, tmp_path: Path) -> None:
    """E14: the positions in between are not tried one by one."""
    store = store_with(tmp_path / "store", [sample(1), sample(2)])
    (tmp_path / "store" / ENTRY.format(900_000_000_000)).write_bytes(b"")
    with pytest.raises(PySparkException, match="entries 4 to 899,999,999,999 are missing, though"):
        numbers_in(spark, store, "snapshots", "read")
    with pytest.raises(StrobeError, match="entries 4 to 899,999,999,999 are missing, though"):
        judge_once(spark, store.url, tmp_path / "to", drift_window=0)
