"""One embedded Spark session for all tests that need one, because starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.support.object_server import ObjectServer

from strobe.spark import local_session, stop_local_session


@pytest.fixture(scope="session")
def spark(objects: ObjectServer) -> Iterator[SparkSession]:
    """Starts after the object store: workers take its credentials from the environment at the start of Spark."""
    yield local_session("strobe-tests")
    stop_local_session()
