"""The embedded session: missing requirements are named; it prints nothing and leaves nothing behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.spark.generate import good_snapshots
from tests.spark.stores import store_with

from strobe.errors import MissingComponent
from strobe.spark.session.java import require_java

LEFT_BEHIND_TIMEOUT_S = 30


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_importing_strobe_imports_no_spark() -> None:
    code = "import sys, strobe; print(sorted({'pyspark', 'pyarrow', 'pandas', 'numpy'} & sys.modules.keys()))"
    assert python(code).stdout == "[]\n"


@pytest.mark.parametrize("module", ["pyspark", "pyarrow"])
def test_without_the_extra_the_error_names_it(module: str) -> None:
    answer = python(f"import sys; sys.modules[{module!r}] = None; import strobe.spark")
    assert "strobe.errors.MissingExtra" in answer.stderr
    assert "pip install 'strobe-snapshots[spark]'" in answer.stderr


def fake_java(home: Path, script: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019' >&2; exit 1", "is 11"),
        ("echo 'module jdk.incubator.vector not found' >&2; exit 1", "jdk.incubator.vector"),
    ],
)
def test_a_java_that_spark_cannot_use_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, problem: str
) -> None:
    fake_java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingComponent) as error:
        require_java()
    assert problem in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "apt install openjdk-17-jre-headless" in str(error.value)
    assert error.value.exit_code == 3


@pytest.mark.parametrize("home", ["", "nowhere"])
def test_without_java_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", home and str(tmp_path / home))
    with pytest.raises(MissingComponent, match="needs Java, and none was found: install a Java runtime"):
        require_java()


def processes_of(session: int) -> list[str]:
    """Return the names of a session's processes from /proc, including daemons that have left the process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue  # it has ended in between
        if int(rest.split()[3]) == session:
            found.append(name)
    return found


PROGRAM = """
import os, sys
import pyarrow, pyspark
from strobe.spark import *

def where(batches):
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"path": [pyspark.__file__]})

spark = local_session()
print(tables(spark, sys.argv[1]).snapshots.count())
found = spark.range(1, numPartitions=1).mapInArrow(where, "path string").collect()
print([row.path for row in found] == [pyspark.__file__])
print(os.environ.get("SPARK_HOME"))
"""


def test_it_is_silent_and_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    """Its workers import Spark from where the program does: they would compile the archive inside pyspark again."""
    store = store_with(tmp_path / "store", good_snapshots(11, 2))
    here, scratch = tmp_path / "here", tmp_path / "scratch"
    here.mkdir()
    scratch.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, store.url],
        cwd=here,
        env={**environment, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    output, errors = process.communicate()
    assert (output, errors) == ("2\nTrue\nNone\n", "")
    deadline = time.monotonic() + LEFT_BEHIND_TIMEOUT_S
    while (left := processes_of(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)  # the workers end when they notice that Java has ended
    assert left == []
    assert list(here.iterdir()) == []
    assert list(scratch.iterdir()) == []
