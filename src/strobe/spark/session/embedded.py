"""The embedded Spark session: one for each Python process, started when first asked for, silent, and gone at exit.

Everything else in `strobe.spark` takes a session as it comes, so it runs on a cluster as well.
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
    # Spark asks whether a value is there before it reads it; Arrow would check that, and bounds, for every value again.
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)

STREAMING = {
    # Streams ask what is new 100 times a second by default, of a log that is looked at 10 times a second.
    "spark.sql.streaming.pollingDelay": "100ms",
    # Who stops a stream waits for its batch, and by default for ever. Alerts may take 30 s.
    "spark.sql.streaming.stopTimeout": "40s",
    # Off by default, and then even one who asks format("strobe") for it by its option is refused.
    "spark.sql.python.filterPushdown.enabled": "true",
}
"""What every session wants that follows a store, wherever it runs."""

_scratch: Path | None = None


def local_session(app_name: str = "strobe", *, long_running: bool = False) -> SparkSession:
    """Return the session in use, or start an embedded one; raise MissingComponent where that cannot be.

    One that is `long_running` takes longer to warm up, and then goes through rows about twice as fast.
    """
    if SparkContext._active_spark_context is None:
        require_java()
        # Workers must be this interpreter, with these packages; the one on the PATH may be another.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # Spark would look up the name of the host, and warn where it means a loopback address.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        start(lambda scratch: _configured(settings(app_name, scratch, long_running)), own_packages=True)
    return SparkSession.builder.getOrCreate()


def stop_local_session() -> None:
    """End the embedded session and its Java process, and remove its scratch directory. Safe to call twice."""
    global _scratch
    if _scratch is None:
        return
    atexit.unregister(stop_local_session)
    # Java may be gone before us, for want of memory, say: then there is nothing left to stop.
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
        # A frame or a state is one value, copied a few times on its way; 1 GB, the default, is little for large ones.
        "spark.driver.memory": "2g",
        # Snapshots on one machine are small data: more partitions than cores would only be more tasks.
        "spark.sql.shuffle.partitions": str(cores),
        # No page, no port, no bar that draws over what the command line prints.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Nobody else on the network has business with it.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Nothing is left in the directory that the user happens to be in.
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        # The same timestamps on every machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **STREAMING,
        # Queries here take seconds, and most of the Java side of that is warming up: the quick compiler halves it.
        # What is heavy (reading, hashing) runs in the Python workers. Work of hours is worth the thorough one.
        "spark.driver.extraJavaOptions": " ".join((*_JAVA, *(() if long_running else ("-XX:TieredStopAtLevel=1",)))),
    }


def _configured(chosen: dict[str, str]) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(list(chosen.items()))


def start(configured: Callable[[Path], SparkConf], *, own_packages: bool = False) -> None:
    """Start Java and Spark as `configured` for a scratch directory, which goes when they end.

    With `own_packages`, workers import Spark where this program does.
    """
    scratch = Path(tempfile.mkdtemp(prefix="strobe-spark-"))
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        conf = configured(scratch)
        with _home_without_archives(scratch / "home") if own_packages else nullcontext():
            gateway = _gateway(conf, scratch / "spark.log")
        SparkContext(conf=conf, gateway=gateway)
        if threading.current_thread() is threading.main_thread():
            # Spark's own handler talks to Java in the middle of another call, and fails with a traceback.
            signal.signal(signal.SIGINT, interrupt)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    global _scratch
    _scratch = scratch
    atexit.register(stop_local_session)


@contextmanager
def _home_without_archives(home: Path) -> Iterator[None]:
    """Let Java find Spark in `home`, which has all of it but the archives of its Python packages.

    Spark puts those before the packages that are installed, which are the same. What is imported from an archive is
    compiled by each process anew, and a query starts several: that would be half of what they do.
    """
    if "SPARK_HOME" in os.environ:
        yield  # a Spark of the user's choice, whose archives may be all that there is
        return
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "python":
            (home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _gateway(conf: SparkConf, log: Path) -> Any:
    """Start the Java side with its output in a file: it warns there before its logging can be told not to."""
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
        return  # somebody else's, who ends it
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(_EXIT_TIMEOUT_S)
    except TimeoutExpired:
        process.kill()
        process.wait()
