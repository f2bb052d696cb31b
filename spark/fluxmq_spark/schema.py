"""The columns of messages, for Spark and for Arrow; validation of users' schemas.

Spark does not tell a Python source which columns a query uses: a schema of fewer columns, or the
option ``columns``, does, and other columns are not decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fluxmq_spark.errors import OptionError

_TEXTS: Final = MapType(StringType(), StringType(), valueContainsNull=False)

HEADER_COLUMNS: Final = ("headers", "properties")
"""Columns that ``includeHeaders=false`` omits."""

STATE_COLUMN: Final = "state"
"""Column that exists only if a consumer group is named."""

_COLUMNS: Final[dict[str, tuple[DataType, bool]]] = {
    "queue": (StringType(), False),
    "offset": (LongType(), False),
    "timestamp": (TimestampType(), False),
    "address": (StringType(), False),
    "key": (StringType(), False),
    "headers": (_TEXTS, False),
    "properties": (_TEXTS, False),
    "payload": (BinaryType(), False),
    "publisher": (StringType(), True),
    STATE_COLUMN: (StringType(), False),
}


def column_names(*, headers: bool = True, state: bool = False) -> tuple[str, ...]:
    """Return the names of the existing columns, in order."""
    return tuple(
        name
        for name in _COLUMNS
        if (headers or name not in HEADER_COLUMNS) and (state or name != STATE_COLUMN)
    )


def message_schema(names: Iterable[str]) -> StructType:
    """Return Spark's schema of columns, which must be of `column_names`, in the given order."""
    return StructType([StructField(name, *_COLUMNS[name]) for name in names])


def arrow_schema(names: Iterable[str] | None = None) -> pa.Schema:
    """Return Arrow's schema of columns: by default all but the state, as Spark takes it from a
    source."""
    return arrow_schema_of(message_schema(column_names() if names is None else names))


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires of the batches of a source with this schema."""
    return to_arrow_schema(schema, timezone="UTC")


def check_schema(given: StructType, whole: StructType, why: str = "") -> None:
    """Raise OptionError naming every column of a user's schema that is unknown in `whole`,
    duplicate, or of another type.

    Nullability is the user's choice: schemas written as text make every column nullable. `why`:
    text for a missing column.
    """
    mistakes = []
    seen = set()
    for field in given.fields:
        if field.name in seen:
            mistakes.append(f"column {field.name!r} is named twice")
        seen.add(field.name)
        if field.name not in whole.names:
            mistakes.append(f"there is no column {field.name!r} ({', '.join(whole.names)}{why})")
            continue
        right = whole[field.name].dataType
        if not _same(field.dataType, right):
            what = f"{right.simpleString()}, not {field.dataType.simpleString()}"
            mistakes.append(f"column {field.name!r} is {what}")
    if not given.fields:
        mistakes.append("it has no columns")
    if mistakes:
        raise OptionError(f"schema: {'; '.join(mistakes)}")


def check_names(given: Sequence[str], whole: Sequence[str]) -> list[str]:
    """Return the mistakes in names of columns: unknown or duplicate."""
    mistakes = [
        f"columns: there is no column {name!r} ({', '.join(whole)})"
        for name in dict.fromkeys(given)
        if name not in whole
    ]
    twice = [name for name in dict.fromkeys(given) if given.count(name) > 1]
    return mistakes + [f"columns: {name!r} is named twice" for name in twice]


def _same(one: DataType, other: DataType) -> bool:
    if isinstance(one, MapType) and isinstance(other, MapType):
        return _same(one.keyType, other.keyType) and _same(one.valueType, other.valueType)
    return one.simpleString() == other.simpleString()
