"""The types of tables for Spark and for Arrow, and the collection of columns into batches."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from strobe.spark.schema import columns as c
from strobe.spark.schema.variant_encoding import variant_array

BATCH_ROWS_MAX = 20_000
BATCH_BYTES_MAX = 8 << 20
"""A batch is yielded when it reaches either limit; chunks are never split."""

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
    "map<string,bigint>": MapType(StringType(), LongType()),
    "variant": VariantType(),
}

Chunk = Any  # list or pa.Array
"""Consecutive values of a column."""
Chunks = list[Chunk]
"""Consecutive rows: one chunk for each column, all of the same length."""
Rows = Iterator[tuple[Chunks, int]]
"""Rows, with their size in bytes."""


def spark_type(columns: c.Columns) -> StructType:
    """Return the Spark type of a table's rows."""
    return StructType([StructField(name, _TYPES[kind]) for name, kind in columns.items()])


def arrow_schema(columns: c.Columns) -> pa.Schema:
    """Return the Arrow schema that Spark requires for a table with these columns."""
    return to_arrow_schema(spark_type(columns), timezone="UTC")


def batches(schema: pa.Schema, rows: Iterable[tuple[Chunks, int]]) -> Iterator[pa.RecordBatch]:
    """Collect rows, given with their size in bytes, into batches of limited size."""
    waiting: list[Chunks] = []
    count = size = 0
    for chunks, size_bytes in rows:
        waiting.append(chunks)
        count += len(chunks[0])
        size += size_bytes
        if count >= BATCH_ROWS_MAX or size >= BATCH_BYTES_MAX:
            yield _batch(schema, waiting)
            waiting, count, size = [], 0, 0
    if count:
        yield _batch(schema, waiting)


def _batch(schema: pa.Schema, waiting: list[Chunks]) -> pa.RecordBatch:
    columns = [_column(field.type, chunks) for field, chunks in zip(schema, zip(*waiting, strict=True), strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(kind: pa.DataType, chunks: tuple[Chunk, ...]) -> pa.Array:
    if isinstance(chunks[0], list):
        values = chunks[0] if len(chunks) == 1 else list(chain.from_iterable(chunks))
        return variant_array(kind, values) if pa.types.is_struct(kind) else pa.array(values, kind)
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
