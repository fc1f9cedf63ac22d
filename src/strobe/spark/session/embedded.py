"""The embedded Spark session: one for each Python process, started on first use, silent, and stopped at exit.

Everything else in `strobe.spark` works with any session, so it also runs on a cluster.
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from strobe.errors import MissingComponent
from strobe.spark.session.java import require_java

_LOG_LINES_SHOWN = 8
_EXIT_TIMEOUT_S = 20
_JAVA = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    # Spark checks for NULL before it reads a value; Arrow would check that, and bounds, again for every value.
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)

STREAMING = {
    # By default, streams poll 100 times a second; the log is polled 10 times a second.
    "spark.sql.streaming.pollingDelay": "100ms",
    # Stopping a stream waits for its batch, by default without limit. Alerts may take 30 s.
    "spark.sql.streaming.stopTimeout": "40s",
    # Off by default; then Spark also refuses format("strobe") with the option pushFilters.
    "spark.sql.python.filterPushdown.enabled": "true",
}
"""Settings of every session that follows a store."""

_scratch: Path | None = None


def local_session(app_name: str = "strobe", *, long_running: bool = False) -> SparkSession:
    """Return the session in use, or start an embedded one; raise MissingComponent if that is impossible.

    A `long_running` session takes longer to warm up, and then processes rows about twice as fast.
    """
    if SparkContext._active_spark_context is None:
        require_java()
        # Workers must use this interpreter and its packages; the one on the PATH may be another.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # Otherwise Spark looks up the host name, and warns if it resolves to a loopback address.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        start(lambda scratch: _configured(settings(app_name, scratch, long_running)), own_packages=True)
    return SparkSession.builder.getOrCreate()


def stop_local_session() -> None:
    """Stop the embedded session and its Java process, and remove its scratch directory. Safe to call twice."""
    global _scratch
    if _scratch is None:
        return
    atexit.unregister(stop_local_session)
    # Java may have ended already, for example out of memory: then there is nothing to stop.
    with suppress(Py4JError, OSError):
        if SparkContext._active_spark_context is not None:
            SparkSession.builder.getOrCreate().stop()
    SparkContext._active_spark_context = None
    _end_java()
    shutil.rmtree(_scratch, ignore_errors=True)
    _scratch = None


def settings(app_name: str, scratch: Path, long_running: bool = False) -> dict[str, str]:
    """Every setting of the embedded session, with its reason."""
    cores = os.cpu_count() or 1
    return {
        "spark.app.name": app_name,
        "spark.master": f"local[{cores}]",
        # A frame or a state is one value, copied a few times; the default of 1 GB is too small for large ones.
        "spark.driver.memory": "2g",
        # Snapshots on one machine are small: more partitions than cores would only add tasks.
        "spark.sql.shuffle.partitions": str(cores),
        # No web UI, no port, and no progress bar over the output of the command line.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Not reachable from the network.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Leave no files in the current directory.
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        # The same timestamps on every machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **STREAMING,
        # Queries take seconds, and Java spends most of them on warming up: the quick compiler halves that time. Heavy
        # work (reading, hashing) runs in the Python workers. A long-running session gains from the full compiler.
        "spark.driver.extraJavaOptions": " ".join((*_JAVA, *(() if long_running else ("-XX:TieredStopAtLevel=1",)))),
    }


def _configured(chosen: dict[str, str]) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(list(chosen.items()))


def start(configured: Callable[[Path], SparkConf], *, own_packages: bool = False) -> None:
    """Start Java and Spark as `configured` for a scratch directory, which is removed when they end.

    With `own_packages`, workers import the same Spark package as this program.
    """
    scratch = Path(tempfile.mkdtemp(prefix="strobe-spark-"))
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        conf = configured(scratch)
        with _home_without_archives(scratch / "home") if own_packages else nullcontext():
            gateway = _gateway(conf, scratch / "spark.log")
        SparkContext(conf=conf, gateway=gateway)
        if threading.current_thread() is threading.main_thread():
            # Spark's own handler calls Java in the middle of another call, and fails with a traceback.
            signal.signal(signal.SIGINT, interrupt)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    global _scratch
    _scratch = scratch
    atexit.register(stop_local_session)


@contextmanager
def _home_without_archives(home: Path) -> Iterator[None]:
    """Let Java find Spark in `home`, which has all of Spark except the archives of its Python packages.

    Spark puts the archives before the installed packages, which are the same. Python keeps no
    compiled code for archives, so each process would compile what it imports: half of the start-up work of a query.
    """
    if "SPARK_HOME" in os.environ:
        yield  # the user's own Spark, which may have only the archives
        return
    link_home(home)
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def link_home(home: Path) -> None:
    """Make the directory `home` with all of Spark except the archives of its Python packages."""
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "python":
            (home / part.name).symlink_to(part)


def _gateway(conf: SparkConf, log: Path) -> Any:
    """Start the Java side with its output in a file: it prints warnings before its logging can be configured."""
    if SparkContext._gateway is not None:
        return SparkContext._gateway
    with log.open("wb") as output:
        try:
            return launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        except (PySparkRuntimeError, OSError) as error:
            raise MissingComponent(f"Spark did not start. The end of its log:\n{_end_of(log)}") from error


def _end_of(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-_LOG_LINES_SHOWN:])


def _end_java() -> None:
    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return  # not started here
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(_EXIT_TIMEOUT_S)
    except TimeoutExpired:
        process.kill()
        process.wait()
