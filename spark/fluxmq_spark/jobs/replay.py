"""Replay of past messages into a queue: a range of a queue, an export, or any Parquet files with
payloads."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]

from fluxmq_spark import exports
from fluxmq_spark.jobs import arguments
from fluxmq_spark.jobs.arguments import EXIT_DONE, JobError, Selection, UsageError
from fluxmq_spark.jobs.console import Console, moment, plural
from fluxmq_spark.jobs.dead_letter_rows import (
    KEPT_PROPERTIES,
    LETTER,
    LETTER_DDL,
    ROUTING_KEY_BYTES_MAX,
    rows_of,
)
from fluxmq_spark.jobs.publishing import add_publishing, derived_id, publish, publishing_of
from fluxmq_spark.jobs.session import run, session, tasks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAME: Final = "replay"
ORIGIN: Final = "x-replayed-from"

TEXT = """Republish past messages to a queue: a range of a queue, an export, or any Parquet files with a column payload.

Messages keep their order, headers and properties, and get the header x-replayed-from with their
origin (queue/offset). They get new offsets and times. Running the job again with the same range publishes nothing twice."""

EPILOG = """examples:
  replay.py --path /var/lib/fluxmq --queue orders --from 2026-09-21T14:00 --to 2026-09-21T15:00 \\
      --target-queue orders-again --url amqp://user:password@host/
  replay.py --parquet /srv/export --queue orders --target-queue orders --rate 500 --url amqp://user:password@host/
  replay.py --parquet /srv/export --queue orders --target-queue orders --dry-run
"""


def parser() -> arguments.Parser:
    """Return the parser of the command line."""
    found = arguments.Parser(NAME, TEXT, epilog=EPILOG)
    source = found.add_argument_group("source")
    place = source.add_mutually_exclusive_group(required=True)
    place.add_argument("--path", metavar="DIR", help="data directory of a node, or a copy of one")
    place.add_argument(
        "--parquet",
        metavar="DIR",
        help="an export (export_parquet), or a file or directory of Parquet",
    )
    source.add_argument(
        "--queue",
        action="append",
        default=[],
        metavar="NAME",
        help="the queue to read; of an export perhaps several",
    )
    source.add_argument(
        "--storage-options",
        metavar="JSON",
        help="fsspec options for opening the URL, as a JSON object",
    )
    arguments.add_range(found)
    found.add_argument(
        "--target-queue", required=True, metavar="NAME", help="the queue to publish to"
    )
    found.add_argument(
        "--keep-keys",
        action="store_true",
        help="publish by address $queue/<target>/<key>, so that the messages have their keys again (virtual host / only)",
    )
    add_publishing(found, None, "")
    arguments.add_session(found)
    return found


def address_in(target: str, key: str, source: str | None) -> str:
    """Return the address in a queue that restores a message's key; without a key the queue's own
    name."""
    if source is not None:
        key = key.removeprefix(f"$queue/{source}").removeprefix("/")
    if key in ("", source, target) or any(each in key for each in "+#\0"):
        return target
    address = f"$queue/{target}/{key}"
    return address if len(address.encode()) <= ROUTING_KEY_BYTES_MAX else target


def letters_of(
    batches: Iterable[pa.RecordBatch], target: str, keep_keys: bool
) -> Iterator[pa.RecordBatch]:
    """Yield rows of origin, source, key, headers, properties and payload as messages for a queue;
    as `LETTER`."""
    for batch in batches:
        rows = []
        for row in rows_of(batch):
            headers = {k: v for k, v in row["headers"].items() if k != "x-deduplication-id"}
            headers[ORIGIN] = row["origin"]
            kept = {k: v for k, v in row["properties"].items() if k in KEPT_PROPERTIES}
            key = address_in(target, row["key"], row["source"]) if keep_keys else target
            rows.append(
                {
                    "payload": row["payload"],
                    "routing_key": key,
                    "headers": list(headers.items()),
                    "properties": list(kept.items()),
                }
            )
        yield pa.RecordBatch.from_pylist(rows, schema=LETTER)


def from_queue(spark: SparkSession, selection: Selection) -> DataFrame:
    """Return the range of the queue."""
    reader = spark.read.format("fluxmq").options(**selection.options())
    return reader.option("columns", "queue,offset,timestamp,key,headers,properties,payload").load()


def from_parquet(spark: SparkSession, selection: Selection) -> DataFrame:
    """Return the range of an export, or of files. Raises `UsageError` for files that hold no
    messages."""
    from pyspark.sql import functions as f

    options = selection.filesystem()
    if exports.is_export(selection.path, options):
        rows = exports.read(spark, selection.path, selection.queues, options=options)
    else:
        rows = spark.read.parquet(selection.path)
        if selection.queues:
            rows = rows.where(_needed(rows, "queue").isin(list(selection.queues)))
    for bound, before in ((selection.start, False), (selection.stop, True)):
        for name, value in (("offset", bound.offset), ("timestamp", bound.time)):
            if value is not None:
                column = _needed(rows, name)
                at = f.unix_micros(column) if name == "timestamp" else column
                rows = rows.where(at < f.lit(value) if before else at >= f.lit(value))
    order = [name for name in ("queue", "offset") if name in rows.columns]
    return rows.orderBy(*order) if "offset" in order else rows


def _needed(rows: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as f

    if name not in rows.columns:
        raise UsageError(f"the files have no column {name}, which the arguments ask for")
    return f.col(name)


def as_origins(rows: DataFrame) -> DataFrame:
    """Return rows as `letters_of` takes them; columns missing in a file are empty."""
    from pyspark.sql import functions as f

    if "payload" not in rows.columns:
        raise UsageError("the files have no column payload")
    empty = f.expr("map()").cast("map<string,string>")
    placed = {"queue", "offset"} <= set(rows.columns)
    origin = f.concat_ws("/", "queue", "offset") if placed else f.col("_metadata.file_name")
    there = set(rows.columns)
    return rows.select(
        origin.alias("origin"),
        (f.col("queue") if "queue" in there else f.lit(None).cast("string")).alias("source"),
        (f.coalesce("key", f.lit("")) if "key" in there else f.lit("")).alias("key"),
        *(
            (f.coalesce(f.col(name), empty) if name in there else empty).alias(name)
            for name in ("headers", "properties")
        ),
        f.coalesce(f.col("payload").cast("binary"), f.lit(b"")).alias("payload"),
    )


def range_of(rows: DataFrame) -> tuple[int, list[tuple[str, int, int, int, int]]]:
    """Return the number of rows, and their ranges (queue, first offset, last offset, first time,
    last time) if known."""
    from pyspark.sql import functions as f

    if not {"queue", "offset", "timestamp"} <= set(rows.columns):
        return rows.count(), []
    at = f.unix_micros("timestamp")
    found = rows.groupBy("queue").agg(
        f.count("*").alias("messages"),
        *(f.min("offset").alias("first"), f.max("offset").alias("last")),
        *(f.min(at).alias("since"), f.max(at).alias("until")),
    )
    kept = sorted(found.collect(), key=lambda row: str(row["queue"]))
    ranges = [
        (
            str(row["queue"]),
            int(row["first"]),
            int(row["last"]),
            int(row["since"]),
            int(row["until"]),
        )
        for row in kept
    ]
    return sum(int(row["messages"]) for row in kept), ranges


def producer_id_of(
    options: argparse.Namespace, count: int, ranges: Sequence[tuple[str, int, int, int, int]]
) -> str:
    """Return the broker's identity of the run: the same for the same messages to the same queue."""
    if ranges:
        parts = [f"{queue}/{first}-{last}" for queue, first, last, _, _ in ranges]
    else:
        parts = [str(options.parquet), str(count)]
    return derived_id(NAME, options.target_queue, *parts)


def main(words: Sequence[str] | None = None) -> int:
    """Run the job with these arguments; return the exit code."""
    options = arguments.parse(parser(), words)

    def job(console: Console, now: datetime) -> int:
        if options.path is not None and len(options.queue) != 1:
            raise UsageError("--path needs one --queue, whose messages are published again")
        selection = arguments.selection_of(options, now, path=options.path or options.parquet)
        to = publishing_of(options, wanted=True)
        assert to is not None, "wanted"
        with session(NAME, options.master) as spark:
            read = from_queue if options.path is not None else from_parquet
            rows = read(spark, selection)
            with console.stage("range", tasks(spark)):
                count, ranges = range_of(rows)
            console.title(f"To replay: {plural(count, 'message')}")
            console.table(
                ("queue", "first", "last", "from (UTC)", "to (UTC)"),
                [
                    (queue, first, last, moment(since), moment(until))
                    for queue, first, last, since, until in ranges
                ],
            )
            if ranges and options.path is not None:
                # Later messages are not part of the range that was just named and numbered.
                rows = rows.where(rows["offset"] <= ranges[0][2])
            if count:
                producer = to.producer_id or producer_id_of(options, count, ranges)
                wrap = partial(letters_of, target=options.target_queue, keep_keys=options.keep_keys)
                queue = None if options.keep_keys else options.target_queue
                replayed = as_origins(rows).mapInArrow(wrap, LETTER_DDL)
                done = publish(console, spark, replayed, to, producer, queue)
                if done != count:
                    raise JobError(f"{done:,} messages were found where {count:,} had been counted")
        return EXIT_DONE

    return run(NAME, job, quiet=options.quiet)


if __name__ == "__main__":
    raise SystemExit(main())
