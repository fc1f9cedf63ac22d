"""One embedded Spark session for all tests that want one: starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from strobe.spark import local_session, stop_local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    yield local_session("strobe-tests")
    stop_local_session()
