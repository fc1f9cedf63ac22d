"""The last page of docs/guide runs as written, in the Spark session that all tests share."""

import pytest
from pyspark.sql import SparkSession
from tests.guide.pages import PAGES, Reader
from tests.spark import conftest

spark = conftest.spark


def test_the_spark_page_runs_as_written(spark: SparkSession, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    for earlier in PAGES[:-1]:
        reader.write_files(earlier)
    reader.follow(PAGES[-1])
