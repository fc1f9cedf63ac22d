"""Real clusters for tests: a standalone one of a master and two workers, and a Spark Connect server.

They are separate Java processes on loopback. Their Python has the packages that Spark needs, but neither Strobe nor its
dependencies. They end with the `with` block.
"""

import os
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

PYSPARK = Path(pyspark.__file__).parent
SPARK_HOME = Path(os.environ.get("SPARK_HOME", PYSPARK))
STARTED_TIMEOUT_S = 120.0
# Nothing here runs long enough for the optimizing JIT compiler to pay off.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Strobe and its dependencies.
NOT_THERE = (
    "_editable_impl_strobe",
    "strobe_snapshots",
    "msgspec",
    "xxhash",
    "blake3",
    "obstore",
    "cryptography",
    "rich",
    "typer",
)


def bare_python(directory: Path) -> Path:
    """Return a Python like that of a cluster: with pyspark, pyarrow, numpy and grpc, but without Strobe."""
    venv.create(directory, with_pip=False)
    packages = next(directory.glob("lib/python*/site-packages"))
    for path in PYSPARK.parent.iterdir():
        if not path.name.startswith(NOT_THERE):
            (packages / path.name).symlink_to(path)
    python = directory / "bin" / "python"
    answer = subprocess.run([python, "-c", "import strobe"], capture_output=True, text=True, check=False)
    assert "No module named 'strobe'" in answer.stderr
    return python


@contextmanager
def standalone_cluster(directory: Path, python: Path) -> Iterator[str]:
    """Run a master and two workers; yield the address of the master."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    common = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        command = ["org.apache.spark.deploy.master.Master", *common, "--port", str(port)]
        stack.enter_context(_running(["spark-class", *command], directory / "master.log", python))
        _wait_for(port, directory / "master.log")
        for number in (1, 2):
            work = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work{number}"), master]
            command = ["org.apache.spark.deploy.worker.Worker", *common, *work]
            stack.enter_context(_running(["spark-class", *command], directory / f"worker{number}.log", python))
        yield master


@contextmanager
def connect_server(directory: Path, python: Path) -> Iterator[str]:
    """Run a Spark Connect server; yield its address."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    command = ["spark-submit", "--master", "local[2]", *options, *server]
    with _running(command, directory / "connect.log", python):
        _wait_for(port, directory / "connect.log")
        yield f"sc://127.0.0.1:{port}"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _running(command: list[str], log: Path, python: Path) -> Iterator[None]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)}
    environment["SPARK_DAEMON_JAVA_OPTS"] = QUICK_JAVA
    program = str(SPARK_HOME / "bin" / command[0])
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, *command[1:]], env=environment, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
    except BaseException:
        sys.stderr.write(f"{log.name}:\n{log.read_text('utf-8', 'replace')[-4000:]}")
        raise
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, log: Path) -> None:
    deadline = time.monotonic() + STARTED_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, log.read_text("utf-8", "replace")[-4000:]
            time.sleep(0.05)
        else:
            return
