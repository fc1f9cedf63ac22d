"""D6: the same pipeline on a standalone cluster and behind a Spark Connect server, both without Strobe."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark import conftest
from tests.spark.clusters import QUICK_JAVA, bare_python, connect_server, standalone_cluster
from tests.spark.pipelines import CONSERVATION, ROOT, judge_once, run_module, written
from tests.spark.stores import damage
from tests.storage.samples import commit, declaring, sample

from strobe.declarations import Declared, Waits
from strobe.spark.pipeline.invariants import read_invariants
from strobe.storage import Store
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.manifests import blobs_of
from strobe.storage.inspection.keys import create_keys

spark = conftest.spark

PYTHON_INVARIANT = '''
from strobe.spark import invariant

@invariant
def no_debt(tables):
    """No balance is below zero."""
    return tables.process_states.where("state:balance::bigint < 0")
'''
TWICE = """
import sys
from strobe.cli import main
from strobe.storage import Store
from tests.storage.samples import commit, sample
store, counter, *words = sys.argv[1:]
codes = [main(words)]
commit(Store.open(store), sample(int(counter)))
codes.append(main(words))
sys.exit(codes != [1, 1])
"""
SNAPSHOTS = 20
# One of the snapshots is damaged, and one has 1 less.
COUNTED = {
    "snapshots": SNAPSHOTS - 1,
    "process_states": 3 * (SNAPSHOTS - 1),
    "balances": 150 * (SNAPSHOTS - 1) - 1,
    "channel_messages": 5 * (SNAPSHOTS - 1),
    "events": 0,
    "proofs holds": SNAPSHOTS - 1,
    "proofs error": 1,
}
# A small cluster on one machine.
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store for two tasks: good snapshots, one that breaks an invariant, a deadlock, and one with a damaged blob."""
    store = Store.create(tmp_path / "store")
    for counter in range(1, SNAPSHOTS + 1):
        snapshot = sample(counter, **({"balance": 99} if counter == 4 else {}))
        commit(store, declaring(snapshot, a=Declared(Waits.all("a"))) if counter == 5 else snapshot)
    damage(tmp_path / "store" / blob_name(next(iter(blobs_of(store.list()[5][2])))))
    return store


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "conservation.sql").write_text(CONSERVATION)
    (tmp_path / "rules" / "debt.py").write_text(PYTHON_INVARIANT)
    return tmp_path / "rules"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("python"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Iterator[str]:
    """The address of a Connect server."""
    with connect_server(tmp_path_factory.mktemp("server"), python) as url:
        yield url


@pytest.fixture
def command(store: Store, rules: Path, tmp_path: Path) -> list[str]:
    words = ["--store", store.url, "--invariants", str(rules), "--to", str(tmp_path / "there")]
    return ["pipeline", "run", *words, "--once", "--json", "--check", "deadlock"]


def assert_same_as_local(spark: SparkSession, store: Store, rules: Path, tmp_path: Path) -> None:
    judge_once(spark, store.url, tmp_path / "here", invariants=tuple(read_invariants(rules)), predicates=("deadlock",))
    here = written(tmp_path / "here")
    assert written(tmp_path / "there") == here
    assert len(here["verdicts"]) == len(store.list()) * 6
    assert here["violations"]
    assert here["quarantine"]


def test_D6_a_standalone_cluster_gives_the_same_verdicts_and_resumes(
    spark: SparkSession, store: Store, rules: Path, command: list[str], python: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    with standalone_cluster(tmp_path, python) as url:
        words = [sys.executable, "-c", TWICE, store.url, str(SNAPSHOTS + 1), *command, *settings, "--master", url]
        answer = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    first, end = json.JSONDecoder().raw_decode(answer.stdout)
    assert [first["snapshots"], json.loads(answer.stdout[end:])["snapshots"]] == [SNAPSHOTS, 1]
    assert_same_as_local(spark, store, rules, tmp_path)


def test_D6_a_connect_server_gives_the_same_verdicts_and_tables(
    spark: SparkSession, store: Store, rules: Path, command: list[str], server: str, tmp_path: Path
) -> None:
    program = ["tests.spark.session_program", store.url, json.dumps({"remote": server})]
    answer = run_module([*program, *command, "--remote", server], dict(os.environ))
    assert answer.returncode == 1, answer.stderr
    counted, _, document = answer.stdout.partition("\n")
    assert json.loads(counted) == COUNTED
    assert json.loads(document)["snapshots"] == SNAPSHOTS
    assert_same_as_local(spark, store, rules, tmp_path)


def test_signatures_the_workers_cannot_check_are_reported_first(store: Store, server: str, tmp_path: Path) -> None:
    """D6, P1: `cryptography` is not sent to workers, so a Python without it would fail on every snapshot."""
    create_keys(tmp_path / "keys", ["a", "b", "c"])
    words = ["--store", store.url, "--to", str(tmp_path / "to"), "--once", "--keys", str(tmp_path / "keys")]
    answer = run_module(["strobe", "pipeline", "run", *words, "--remote", server], dict(os.environ))
    assert answer.returncode == 3, answer.stderr
    line = " ".join(answer.stderr.split())
    assert line.startswith("error: the Python of the workers has no 'cryptography', which signatures are checked with")
    assert not (tmp_path / "to" / "verdicts").exists()
