"""Where Spark looks for data sources by itself: packages called pyspark_…; this one makes `format("strobe")` known."""

from strobe.spark.dataframes.data_source import StrobeSource as DefaultSource

__all__ = ["DefaultSource"]
