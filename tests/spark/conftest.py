"""One embedded Spark session for all tests that want one: starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.support.object_server import ObjectServer

from strobe.spark import local_session, stop_local_session


@pytest.fixture(scope="session")
def spark(objects: ObjectServer) -> Iterator[SparkSession]:
    """Started when there is an object store: workers take its credentials from the environment that Spark began in."""
    yield local_session("strobe-tests")
    stop_local_session()
