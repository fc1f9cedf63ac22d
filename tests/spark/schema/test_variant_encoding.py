"""VARIANT encoded by Python: Spark reads back exactly what was encoded, for any value."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import VariantVal

from strobe.spark.schema.arrow import arrow_schema
from strobe.spark.schema.variant_encoding import DEPTH_MAX, SIZE_MAX, to_variant, to_variants, variant_array

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=80)
    | st.binary(max_size=80)
    | st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


@given(VALUES)
def test_any_value_is_read_back_as_it_was(value: Any) -> None:
    variant = to_variant(msgspec.msgpack.encode(value))
    assert variant is not None
    assert VariantVal(*variant).toPython() == value


@given(st.lists(VALUES, max_size=5))
def test_values_encoded_together_are_the_same_as_one_by_one(values: list[Any]) -> None:
    encoded = [msgspec.msgpack.encode(value) for value in values]
    assert to_variants(encoded, values) == to_variants(encoded) == [to_variant(data) for data in encoded]


@pytest.mark.parametrize("count", [1, 31, 32, 33, 255, 256, 300, 70_000])
def test_objects_and_arrays_of_any_size_are_read_back(count: int) -> None:
    for value in ({f"name{number}": number for number in range(count)}, list(range(count))):
        variant = to_variant(msgspec.msgpack.encode(value))
        assert variant is not None
        assert VariantVal(*variant).toPython() == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x01",
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, b"x")),
        msgspec.msgpack.encode({1: "a", "1": "b"}),
        msgspec.msgpack.encode({b"bytes": 1}),
        b"\x91" * (DEPTH_MAX + 1) + b"\x90",
        b"\xa2\xff\xff",
        msgspec.msgpack.encode(b"x" * (SIZE_MAX + 1)),
        msgspec.msgpack.encode([b"x" * SIZE_MAX]),
    ],
)
def test_a_value_that_no_variant_can_hold_is_refused(data: bytes) -> None:
    assert to_variant(data) is None


def test_spark_finds_fields_in_any_alphabet_and_at_any_depth(spark: SparkSession) -> None:
    names = [*(f"k{number}" for number in range(40)), "é", "\U0001f600", "\uffee", "Z"]
    values: list[Any] = [{name: place for place, name in enumerate(names)}, 0]
    for _ in range(DEPTH_MAX - 1):
        values[1] = [values[1]]
    columns = {"v": "variant"}
    schema = arrow_schema(columns)
    variants = to_variants([msgspec.msgpack.encode(value) for value in values])
    assert None not in variants
    table = pa.Table.from_arrays([variant_array(schema.field("v").type, variants)], schema=schema)
    frame = spark.createDataFrame(table, "v variant")
    found = frame.selectExpr(*(f"try_variant_get(v, '$[\"{name}\"]', 'int')" for name in names), "to_json(v)").collect()
    assert list(found[0])[:-1] == list(range(len(names)))
    assert found[1][-1] == "[" * (DEPTH_MAX - 1) + "0" + "]" * (DEPTH_MAX - 1)
