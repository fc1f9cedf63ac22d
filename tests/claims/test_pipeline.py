"""D2, G1 and S4: the streaming pipeline on Spark, used through the Python API."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark import conftest
from tests.spark.pipelines import judge_once, reasons, verdicts
from tests.spark.stores import damage
from tests.storage.samples import commit, sample

from strobe.spark.pipeline.invariants import read_invariants
from strobe.storage import Store
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.manifests import blobs_of

spark = conftest.spark

CONSERVED = """-- name: conserved
SELECT snapshot_id, sum(amount) AS total
FROM (
    SELECT snapshot_id, state:balance::bigint AS amount FROM process_states
    UNION ALL SELECT snapshot_id, -try_variant_get(payload, '$.amount', 'bigint') FROM channel_messages
)
GROUP BY snapshot_id HAVING sum(amount) <> 50
"""
NOTHING_LOST = '''
from strobe.spark import invariant

@invariant
def nothing_lost(tables):
    """What was sent is received or in flight."""
    return tables.frontiers.where("sent_count < received_count")
'''


def id_of(counter: int) -> str:
    return f"000001-{counter:08d}-coordinator"


@pytest.fixture(scope="module")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of two runs: three snapshots, one of them damaged; then one more, under another rule."""
    root = tmp_path_factory.mktemp("claims")
    (root / "rules").mkdir()
    (root / "rules" / "conserved.sql").write_text(CONSERVED)
    (root / "rules" / "lost.py").write_text(NOTHING_LOST)
    rules = tuple(read_invariants(root / "rules"))
    store = Store.create(root / "store")
    for counter in range(1, 4):
        commit(store, sample(counter))
    damage(Path(store.url) / blob_name(next(iter(blobs_of(store.list()[1][2])))))
    judge_once(spark, store.url, root / "to", invariants=rules, drift_window=2)
    commit(store, sample(4))
    (root / "rules" / "conserved.sql").write_text(CONSERVED.replace("<> 50", "= 50"))
    judge_once(spark, store.url, root / "to", invariants=tuple(read_invariants(root / "rules")), drift_window=2)
    return root / "to"


def test_D2_a_stream_verifies_each_snapshot_once_and_quarantines(judged: Path) -> None:
    found = verdicts(judged)
    assert [found[id_of(counter), "proof"] for counter in range(1, 5)] == ["holds", "error", "holds", "holds"]
    assert [snapshot_id for snapshot_id, _ in reasons(judged, "quarantine", "uri")] == [id_of(2)]
    assert len(found) == 4 * 5


def test_G1_invariants_over_process_and_channel_state_are_sql_and_python(judged: Path) -> None:
    found, texts = verdicts(judged), reasons(judged)
    assert [found[id_of(counter), "conserved"] for counter in (1, 3, 4)] == ["holds", "holds", "violated"]
    assert texts[id_of(4), "conserved"] == "1 violating row: total 50"
    assert [found[id_of(counter), "nothing-lost"] for counter in (1, 3, 4)] == ["holds"] * 3


def test_S4_invariants_come_after_checksums_and_proof(judged: Path) -> None:
    assert verdicts(judged)[id_of(2), "conserved"] == "error"
    assert reasons(judged)[id_of(2), "conserved"] == "not checked: the snapshot could not be read"
