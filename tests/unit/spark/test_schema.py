"""The columns of messages, and schemas that users give."""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
)

from fluxmq_spark.errors import OptionError
from fluxmq_spark.options import read_options
from fluxmq_spark.reading import task_reader
from fluxmq_spark.schema import arrow_schema, check_schema, column_names, message_schema
from fluxmq_spark.storage import LocalStorage


def test_columns_and_their_order() -> None:
    """As documented; the state only where a consumer group is named."""
    names = (
        *("queue", "offset", "timestamp", "address", "key", "headers", "properties"),
        *("payload", "publisher"),
    )
    assert column_names() == names
    assert column_names(state=True) == (*names, "state")
    assert "headers" not in column_names(headers=False)
    nullable = [field.name for field in message_schema(column_names(state=True)) if field.nullable]
    assert nullable == ["publisher"]


def test_arrow_types() -> None:
    """What Spark demands of batches: microseconds in UTC, text of 32-bit offsets."""
    schema = arrow_schema(("timestamp", "payload", "headers"))
    assert schema.names == ["timestamp", "payload", "headers"]
    assert schema.field("timestamp") == pa.field("timestamp", pa.timestamp("us", "UTC"), False)
    assert schema.field("payload").type == pa.binary()
    assert schema.field("headers").type.item_field.nullable is False
    assert arrow_schema().names == list(column_names())


def test_a_part_in_any_order() -> None:
    """Text says of every column that it may be null: that is let pass, and kept."""
    given = message_schema(("payload", "offset"))
    check_schema(given, message_schema(column_names()))
    reader = task_reader(LocalStorage(), read_options({"path": "/d"}), given)
    assert reader.schema.names == ["payload", "offset"]


def test_every_wrong_column_is_named() -> None:
    """Unknown, of another type, twice there, none at all."""
    given = (
        StructType()
        .add("offset", IntegerType())
        .add("colour", "string")
        .add("timestamp", TimestampNTZType())
        .add("headers", MapType(StringType(), BinaryType()))
        .add("payload", "binary")
        .add("payload", "binary")
    )
    with pytest.raises(OptionError) as caught:
        check_schema(given, message_schema(column_names()))
    for text in (
        "column 'offset' is bigint, not int",
        "there is no column 'colour'",
        "column 'timestamp' is timestamp, not timestamp_ntz",
        "column 'headers' is map<string,string>, not map<string,binary>",
        "column 'payload' is named twice",
    ):
        assert text in str(caught.value)
    with pytest.raises(OptionError, match="has no columns"):
        check_schema(StructType(), message_schema(column_names()))


def test_maps_that_may_hold_null_are_the_same_type() -> None:
    """Text cannot say that values are never null."""
    check_schema(
        StructType().add("headers", MapType(StringType(), StringType())),
        message_schema(["headers"]),
    )


@pytest.mark.parametrize(
    ("options", "column", "text"),
    [
        ({"includeHeaders": "false"}, "headers", "includeHeaders=false leaves out headers"),
        ({}, "state", "state needs group"),
        ({"columns": "offset"}, "payload", "columns are offset, and the schema payload"),
    ],
)
def test_a_schema_that_options_are_against(options: dict[str, str], column: str, text: str) -> None:
    """The text says which option."""
    schema = message_schema([column])
    with pytest.raises(OptionError, match=text):
        task_reader(LocalStorage(), read_options({"path": "/d", **options}), schema)
