"""The data source ``fluxmq`` for Spark: its schema, readers and writers.

Filters are not pushed down, on purpose: Spark up to 4.3 keeps the partitions of the first filtered
use of a DataFrame for all later ones, and returns wrong rows. Options, a schema of fewer columns,
and ``columns`` narrow the read.

Spark creates the source anew in a process of its own for each step, so it holds its options only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from fluxmq_spark import SOURCE_NAME
from fluxmq_spark.options import EITHER, VIEW_MESSAGES, ReadOptions, read_options
from fluxmq_spark.planning import make_plan, open_path
from fluxmq_spark.reading import TaskPartition, check_columns, task_reader
from fluxmq_spark.schema import message_schema

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class FluxmqSource(DataSource):
    """Queues of a data directory; see ``docs/spark.md`` for the options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Options of reading differ from those of writing: they are validated once it is known which
        # is meant.
        super().__init__(options)
        self._given: Mapping[str, str] = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return SOURCE_NAME

    def schema(self) -> StructType:
        """Return the columns with these options. Raises OptionError."""
        # It is not known here whether this is for a stream, so options of streams are accepted.
        options = read_options(self._given, use=EITHER)
        if options.view == VIEW_MESSAGES:
            return message_schema(options.columns or options.all_columns())
        from fluxmq_spark.views import view_schema

        return view_schema(options.view, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises OptionError."""
        options = read_options(self._given)
        if options.view == VIEW_MESSAGES:
            return BatchReader(options, schema)
        from fluxmq_spark.views import view_reader

        check_columns(options, schema)
        return view_reader(options.view, options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        from fluxmq_spark.streaming import StreamReader

        return StreamReader(self._given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a DataFrame. Raises OptionError."""
        from fluxmq_spark.writer import writer_of

        return writer_of(self._given, schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream. Raises OptionError."""
        from fluxmq_spark.stream_writer import stream_writer_of

        return stream_writer_of(self._given, schema, overwrite)


class BatchReader(DataSourceReader):
    """Reads ranges of queues once. Planned on the driver, read in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        storage, self._root = open_path(options)
        self._reader = task_reader(storage, options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises SparkSourceError."""
        plan = make_plan(self._reader.storage, self._root, self._options)
        return [TaskPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's messages as Arrow batches."""
        return self._reader.read(partition)
