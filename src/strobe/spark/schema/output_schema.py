"""The rows of the output tables as Arrow, with their Spark types in the metadata (D2)."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from strobe.spark.schema import columns as c

Row = dict[str, Any]

TOO_LARGE = "a row of %d bytes, too large to keep"
SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"

_VARIANT = pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)])
_TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "variant": _VARIANT,
}
_SPARK_NAMES = {"bigint": "long"}


def to_arrow(table: str, rows: list[Row]) -> pa.Table:
    """Return rows of an output table as Arrow. Its metadata has the Spark types, so that Spark recognizes a VARIANT."""
    columns = c.OUTPUTS[table]
    schema = pa.schema(
        [pa.field(name, _TYPES[kind]) for name, kind in columns.items()], {SPARK_SCHEMA: spark_schema_json(columns)}
    )
    return pa.Table.from_pylist(rows, schema)


def spark_schema_json(columns: Mapping[str, str]) -> bytes:
    fields = [
        {"name": name, "type": _SPARK_NAMES.get(kind, kind), "nullable": True, "metadata": {}}
        for name, kind in columns.items()
    ]
    return msgspec.json.encode({"type": "struct", "fields": fields})


def variant(json: str) -> dict[str, bytes]:
    """Return a JSON text as the bytes of a VARIANT; if that is impossible, its size, so that the stream continues."""
    from pyspark.sql.types import VariantVal

    try:
        parsed = VariantVal.parseJson(json)
    except Exception:  # noqa: BLE001 -- too large or too deeply nested texts are refused in several ways
        problem = TOO_LARGE % len(json.encode())
        parsed = VariantVal.parseJson(msgspec.json.encode({"problem": problem}).decode())
    return {"value": parsed.value, "metadata": parsed.metadata}
