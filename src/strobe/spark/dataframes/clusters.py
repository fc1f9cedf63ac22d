"""Spark sessions: embedded in this program, on a cluster, or behind a Spark Connect server (D6).

The same code runs everywhere. For a cluster or a server the package is shipped (shipping.py), so Strobe need not be
installed there.
"""

import importlib.util
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from strobe.errors import MissingExtra, TransportError, UsageError
from strobe.spark.dataframes.data_source import StrobeSource
from strobe.spark.session.embedded import STREAMING, local_session, start
from strobe.spark.session.java import require_java
from strobe.spark.session.shipping import ShipsPackages, ship

MASTER_PORT, CONNECT_PORT = 7077, 15002
"""The default ports of Spark's own programs."""
REACH_TIMEOUT_S = 10.0
SHUFFLE_PARTITIONS = 16


class CarriedSource(ShipsPackages, StrobeSource):
    """`format("strobe")`, for clusters on which Strobe is not installed."""


def session_for(
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    app_name: str = "strobe",
) -> SparkSession:
    """Return a session on the cluster at `master`, behind the server at `remote`, or else the embedded one.

    `conf` are Spark settings for a cluster; a server has its own.
    """
    if master and remote:
        raise UsageError("a session is on a cluster (master) or behind a Connect server (remote): give one of them")
    if remote:
        if conf:
            raise UsageError("Spark settings are for a cluster; a Connect server has its own: leave them out")
        return remote_session(remote)
    if master and not master.startswith("local"):
        return cluster_session(master, conf or {}, app_name)
    if master and master != "local[*]":
        raise UsageError(f"{master}: without a master, Spark runs in this program, on all cores: leave it out")
    if conf:
        raise UsageError("Spark settings are for a cluster; give its master, or leave the settings out")
    return local_session(app_name)


def cluster_session(master: str, conf: Mapping[str, str], app_name: str = "strobe") -> SparkSession:
    """Return a session with this program as its driver and the executors of the cluster at `master`."""
    if SparkContext._active_spark_context is None:
        require_java()
        if master.startswith("spark://"):
            _require_one_of(master, list(_addresses(master, MASTER_PORT)), "the Spark master")
        # The driver's own Python workers use this interpreter; PYSPARK_PYTHON is for the executors.
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        start(lambda scratch: SparkConf().setAll(list(cluster_settings(master, conf, app_name, scratch).items())))
    return _equipped(SparkSession.builder.getOrCreate())


def cluster_settings(master: str, conf: Mapping[str, str], app_name: str, scratch: Path) -> dict[str, str]:
    """Every setting of a session on a cluster, with its reason; `conf` overrides them."""
    return {
        "spark.app.name": app_name,
        "spark.master": master,
        # No progress bar over the output of the command line.
        "spark.ui.showConsoleProgress": "false",
        # Leave no files in the current directory.
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        # The same timestamps on every machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # The default of 200 is too many tasks for a few small snapshots; see Sizing in docs/spark.md.
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        **STREAMING,
        **conf,
    }


def remote_session(url: str) -> SparkSession:
    """Return a session behind the Spark Connect server at `url` (sc://host:port)."""
    missing = [name for name in ("grpc", "grpc_status", "google.rpc", "zstandard") if not _is_installed(name)]
    if missing:
        raise MissingExtra("connect", "a session behind a Spark Connect server")
    if not url.startswith("sc://"):
        example = f"sc://host:{CONNECT_PORT}"
        raise UsageError(f"{_shown(url)}: the address of a Spark Connect server begins with sc://, as in {example}")
    _require_one_of(url, list(_addresses(url, CONNECT_PORT)), "the Spark Connect server")
    spark = SparkSession.builder.remote(url).getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for name, value in STREAMING.items():
        spark.conf.set(name, value)
    return _equipped(spark)


def _equipped(spark: SparkSession) -> SparkSession:
    """Give the session what it needs of Strobe. Data sources found by Spark itself run only on the driver's Python."""
    ship(spark)
    spark.dataSource.register(CarriedSource)
    return spark


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _addresses(url: str, port_default: int) -> Iterator[tuple[str, int]]:
    """Yield the addresses of a URL. That of a master may have several, of which one is the leader."""
    scheme, _, rest = url.partition("://")
    for address in rest.split("/")[0].split(";")[0].split(","):
        try:
            parts = urlsplit(f"{scheme}://{address}")
            host, port = parts.hostname, parts.port or port_default
        except ValueError as error:
            raise UsageError(f"{_shown(url)}: {_shown(address)!r} is no host and port") from error
        if not host:
            raise UsageError(f"{_shown(url)}: names no host; write {scheme}://host:{port_default}")
        yield host, port


def _require_one_of(url: str, addresses: list[tuple[str, int]], who: str) -> None:
    """Raise TransportError if nothing listens there: Spark itself would retry for minutes."""
    problem: OSError | None = None
    for address in addresses:
        try:
            socket.create_connection(address, REACH_TIMEOUT_S).close()
        except OSError as error:
            problem = error
        else:
            return
    reason = f"cannot be reached ({problem}); is it running, and is the address right?"
    raise TransportError(f"{who} at {_shown(url)} {reason}")


def _shown(url: str) -> str:
    """Return an address without secrets: a token follows a semicolon, a password precedes an @."""
    scheme, mark, rest = url.partition(";")[0].rpartition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
