"""`strobe pipeline run`: its table, JSON document, exit codes and refusals."""

import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cli.command_line import refused, run
from tests.spark import conftest
from tests.spark.pipelines import CONSERVATION
from tests.spark.stores import damage
from tests.storage.samples import commit, sample

from strobe.cli import main
from strobe.spark.dataframes import clusters
from strobe.storage import Store
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.manifests import blobs_of
from strobe.storage.files.layout import HEADER

spark = conftest.spark


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> None:
    """Let commands find the session that all tests share."""


@pytest.fixture
def store(tmp_path):
    store = Store.create(tmp_path / "store")
    for counter in range(1, 4):
        commit(store, sample(counter))
    return store


@pytest.fixture
def rules(tmp_path):
    directory = tmp_path / "rules"
    directory.mkdir()
    (directory / "conservation.sql").write_text(CONSERVATION)
    return directory


def words(store, tmp_path, *more):
    return ["pipeline", "run", "--store", store.url, "--to", tmp_path / "to", "--once", *more]


def test_the_exit_code_is_0_if_all_hold_and_1_otherwise(store, tmp_path, rules):
    result = run(*words(store, tmp_path, "--invariants", rules, "--check", "deadlock"))
    assert result.code == 0, result
    lines = [line.split() for line in result.out.splitlines() if line]
    assert lines[0] == ["check", "holds", "violated", "undecided", "error"]
    assert ["proof", "3", "0", "0", "0"] in lines
    assert ["conservation", "3", "0", "0", "0"] in lines
    assert ["deadlock", "0", "0", "3", "0"] in lines  # no process declares anything
    assert result.out.splitlines()[-1] == "3 snapshots judged, 15 verdicts: none is violated, 9 undecided"
    assert result.err == ""
    commit(store, sample(4, balance=99))
    commit(store, sample(5))
    damage(tmp_path / "store" / blob_name(next(iter(blobs_of(store.list()[4][2])))))
    result = run(*words(store, tmp_path, "--invariants", rules, "--json"))
    assert result.code == 1
    document = result.document
    assert (document["snapshots"], document["verdicts"], document["holds"]) == (2, 8, False)
    assert document["checks"]["conservation"] == {"violated": 1, "error": 1}
    assert document["descriptions"] == {"conservation": "The balances of a sample are 150 in all."}
    assert document["checks"]["proof"] == {"holds": 1, "error": 1}
    assert [row["snapshot_id"] for row in document["quarantine"]] == ["000001-00000005-coordinator"]
    assert {row["check"] for row in document["failing"]} == {"conservation", "proof"}
    assert document["totals"]["conservation"] == {"holds": 3, "violated": 1, "error": 1}
    commit(store, sample(6, balance=99))
    result = run(*words(store, tmp_path, "--invariants", rules))
    assert result.code == 1
    lines = [line for line in result.out.splitlines() if line.startswith(("conservation:", "000001-"))]
    assert lines[0] == "conservation: The balances of a sample are 150 in all."
    assert lines[1].startswith("000001-00000006-coordinator conservation: violated, ")
    result = run(*words(store, tmp_path, "--invariants", rules))
    assert result.code == 0, "nothing is new"
    assert result.out.splitlines()[-1] == "with those of earlier runs: 27 verdicts, 4 not good"


def test_the_example_of_the_page_judges_a_simulated_bank(tmp_path, monkeypatch):
    """docs/pipeline.md; the last line runs in this process, which has a Spark session already."""
    root = Path(__file__).parents[3]
    (example,) = re.findall(r"^```sh\n(strobe simulate.*?)^```$", (root / "docs/pipeline.md").read_text(), re.S | re.M)
    *before, last = example.strip().splitlines()
    (tmp_path / "examples").symlink_to(root / "examples")
    monkeypatch.chdir(tmp_path)
    subprocess.run(["bash", "-ec", "\n".join(before)], check=True, capture_output=True)
    program, *words = last.split()
    assert program == "strobe"
    result = run(*words)
    assert result.code == 0, result
    assert re.search(r" verdicts: none is violated, \d+ undecided\n$", result.out)


def test_bad_input_is_refused_before_spark_starts(store, tmp_path, rules, monkeypatch):
    monkeypatch.setattr(clusters, "session_for", lambda *_: pytest.fail("Spark starts"))
    refused(run(*words(store, tmp_path, "--invariants", tmp_path / "nowhere")), "is not a directory", "*.sql")
    refused(run(*words(store, tmp_path, "--alert-command", "no-such-program")), "no program")
    refused(run(*words(store, tmp_path, "--alert-webhook", "ftp://x")), "is not a URL")
    refused(run(*words(store, tmp_path, "--drift-window", "1")), "compares a snapshot with nothing")
    to_objects = ["pipeline", "run", "--store", store.url, "--to", "s3://bucket/verdicts", "--remote", "sc://host"]
    refused(run(*to_objects), "a Spark Connect server judges on its own machine")
    refused(run(*words(store, tmp_path, "--view", tmp_path / "view.json")), "--keys")
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "thesis.txt").write_text("mine")
    refused(run(*words(store, tmp_path)), "holds other files")


@pytest.mark.parametrize("once", [True, False])
def test_a_store_of_an_unknown_version_is_refused_before_spark_starts(store, tmp_path, monkeypatch, once):
    """docs/pipeline.md: the pipeline does not wait for such a store to be repaired."""
    monkeypatch.setattr(clusters, "session_for", lambda *_: pytest.fail("Spark starts"))
    header = tmp_path / "store" / HEADER
    header.write_bytes(header.read_bytes().replace(b'"version":1', b'"version":2'))
    command = [word for word in words(store, tmp_path) if once or word != "--once"]
    refused(run(*command), "has version 2 of the format, and this Strobe reads version 1")
    assert not (tmp_path / "to").exists()


def test_a_missing_store_is_a_usage_error_unless_it_is_awaited(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "session_for", lambda *_: pytest.fail("Spark starts"))
    result = run("pipeline", "run", "--store", tmp_path / "nowhere", "--to", tmp_path / "to", "--once")
    refused(result, "does not exist")


def test_a_wrong_invariant_is_bad_input(store, tmp_path, rules):
    (rules / "wrong.sql").write_text("SELECT snapshot_id\nFROM snapshots\nWHERE colour = 1")
    refused(run(*words(store, tmp_path, "--invariants", rules)), "wrong.sql:3:", "colour")


def test_the_help_shows_an_example():
    result = run("pipeline", "run", "--help")
    assert result.code == 0
    assert "deadlock|termination|garbage" in result.out
    assert "strobe pipeline run --store ./strobe-demo --invariants ./invariants --to ./verdicts --once" in result.out


class Terminal(io.StringIO):
    """A terminal that raises SIGINT (Ctrl-C) when a line has all of `awaited`."""

    def __init__(self, *awaited):
        super().__init__()
        self._awaited = awaited

    def isatty(self):
        return True

    def write(self, text):
        if self._awaited and all(part in text for part in self._awaited):
            self._awaited = ()
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def test_progress_shows_how_many_are_judged_and_how_many_are_left(store, tmp_path):
    """D2: snapshots judged by an earlier run do not count; judged plus remaining is the total."""
    assert run(*words(store, tmp_path)).code == 0
    for counter in range(4, 9):
        commit(store, sample(counter))
    on_terminal = [str(word) for word in words(store, tmp_path) if word != "--once"]
    terminal = Terminal("5 snapshots judged", " 0 behind")
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(terminal):
        assert main(on_terminal) == 130
    shown = re.findall(
        r"\x1b\[K(\d+) snapshots judged, (\d+) rows written, (\d+) behind; 0 do not hold", terminal.getvalue()
    )
    # It may finish before the log is first read.
    assert set(shown) <= {("0", "0", "0"), ("0", "0", "5"), ("5", "15", "0")}
    assert shown[-1] == ("5", "15", "0")
    assert "5 snapshots judged, 15 verdicts" in out.getvalue()


def test_a_second_interrupt_shows_no_stack_of_py4j():
    """py4j logs through the root logger, which prints records that no other handler takes."""
    code = (
        "import logging; from strobe.cli.pipeline import _quiet_logs; _quiet_logs(); logging.exception('while sending')"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stderr == ""


TALKATIVE = """
import pathlib
from strobe.spark import invariant

print("read by", __name__)

def through(batches):
    for batch in batches:
        print("in a worker")
        yield batch

@invariant
def talkative(tables):
    print("asked")
    mark = pathlib.Path({mark!r})
    mark.write_text(mark.read_text() + "x" if mark.exists() else "x")
    if len(mark.read_text()) == 2:  # the first time is before anything runs
        pathlib.Path({store!r}).rename({hidden!r})
    snapshots = tables.snapshots.select("snapshot_id")
    return snapshots.mapInArrow(through, snapshots.schema).where("false")
"""


def test_an_interrupt_ends_it_with_one_document_and_no_stack_trace(store, tmp_path):
    """D2: rules print, the store is away for a while in the middle of a batch; stdout has only the document."""
    hidden = tmp_path / "hidden"
    (tmp_path / "rules").mkdir()
    rule = TALKATIVE.format(mark=str(tmp_path / "mark"), store=store.url, hidden=str(hidden))
    (tmp_path / "rules" / "talkative.py").write_text(rule)
    command = [sys.executable, "-m", "strobe", *map(str, words(store, tmp_path, "--json"))]
    command.remove("--once")
    command += ["--invariants", str(tmp_path / "rules")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output = ""
    while "trying again" not in output:
        line = process.stderr.readline()
        assert line, output
        output += line
    hidden.rename(store.url)
    while process.poll() is None and len(list((tmp_path / "to" / "verdicts").glob("batch-*"))) < 1:
        time.sleep(0.05)  # poll, since it is another process
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, output + err
    document = json.loads(out)
    assert (document["snapshots"], document["holds"], document["interrupted"]) == (3, True, True)
    printed = ("read by invariants_talkative", "asked")
    lines = [line for line in (output + err).splitlines() if line not in printed]
    assert lines == [
        line for line in lines if line.startswith(f"store {store.url}") and line.endswith("; trying again")
    ]
    assert lines
