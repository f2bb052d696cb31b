"""The columns of messages, as Spark and as Arrow have them; schemas that users give are checked against them.

Spark has no way to tell a Python source which columns a query uses: a schema of fewer columns, or the option
``columns``, is how a query says so, and what it does not name is not decoded.
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
"""What ``includeHeaders=false`` leaves out."""

STATE_COLUMN: Final = "state"
"""Only where a consumer group is named."""

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
    """Return the names of the columns that there are, in their order."""
    return tuple(
        name
        for name in _COLUMNS
        if (headers or name not in HEADER_COLUMNS) and (state or name != STATE_COLUMN)
    )


def message_schema(names: Iterable[str]) -> StructType:
    """Return Spark's schema of columns, which must be of `column_names`, in the order given."""
    return StructType([StructField(name, *_COLUMNS[name]) for name in names])


def arrow_schema(names: Iterable[str] | None = None) -> pa.Schema:
    """Return Arrow's schema of columns: all but the state unless told, as Spark takes it from a source."""
    return arrow_schema_of(message_schema(column_names() if names is None else names))


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark demands of the batches of a source with this schema."""
    return to_arrow_schema(schema, timezone="UTC")


def check_schema(given: StructType, whole: StructType, why: str = "") -> None:
    """Raise OptionError naming every column of a user's schema that is not in `whole`, twice there, or of another type.

    Whether columns may be null is the user's affair: schemas written as text say of all that they may. `why`: what is
    to be said when a column is missing.
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
    """Return what is wrong with names of columns: unknown or twice there."""
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
