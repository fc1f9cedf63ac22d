"""An archive of the classes that Spark loads, so that each Java of the tests starts in half of the time.

`python -m tests.spark.class_archive` writes it (tools/setup does); `environment()` has the settings that make Java and
Spark use it. Java reads an archive only if it finds the same classes in the same place: hence one Spark home for all.
"""

import os
import shutil
import tempfile
from pathlib import Path

DIRECTORY = Path(__file__).parents[2] / ".venv" / "spark"
HOME = DIRECTORY / "home"
ARCHIVE = DIRECTORY / "classes.jsa"
# Checking the byte code of all of Spark is a fifth of what each Java does, and shows nothing about Strobe.
UNCHECKED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
# A Java that cannot use the archive works without it, and says nothing.
USED = f"-XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:disable -Xlog:all=error:stderr"


def environment() -> dict[str, str]:
    """Return the environment variables for every Java that a test starts."""
    if not ARCHIVE.exists():
        return {"JDK_JAVA_OPTIONS": UNCHECKED}
    return {"JDK_JAVA_OPTIONS": f"{UNCHECKED} {USED}", "SPARK_HOME": str(HOME)}


def _write() -> None:
    from strobe.spark.session.embedded import link_home

    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir()
    link_home(HOME)
    unfinished = ARCHIVE.with_suffix(".unfinished")
    os.environ["SPARK_HOME"] = str(HOME)
    os.environ["JDK_JAVA_OPTIONS"] = f"{UNCHECKED} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    with tempfile.TemporaryDirectory() as scratch:
        _load_classes(Path(scratch))
    unfinished.rename(ARCHIVE)


def _load_classes(scratch: Path) -> None:
    """Do what tests do, in one session: tables, the pipeline with SQL, and workers."""
    from tests.spark.pipelines import CONSERVATION, judge_once
    from tests.spark.session_program import counts
    from tests.storage.samples import commit, sample

    from strobe.spark import local_session, stop_local_session
    from strobe.spark.pipeline.invariants import read_invariants
    from strobe.storage import Store

    store = Store.create(scratch / "store")
    for counter in range(1, 4):
        commit(store, sample(counter))
    (scratch / "rules").mkdir()
    (scratch / "rules" / "conservation.sql").write_text(CONSERVATION)
    spark = local_session("class-archive")
    counts(spark, store.url)
    judge_once(spark, store.url, scratch / "to", invariants=tuple(read_invariants(scratch / "rules")))
    stop_local_session()


if __name__ == "__main__":
    _write()
