"""A report on queues: rates, sizes and addresses of messages, and lag of consumers.

Rates and totals come from the headers of batches, lag from the files ``groups``; only sizes and
addresses of single messages need the messages, and are omitted on request.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fluxmq_spark.jobs import arguments, plots
from fluxmq_spark.jobs.arguments import EXIT_DONE, Selection
from fluxmq_spark.jobs.console import Console, moment, plural, size
from fluxmq_spark.jobs.session import run, session, tasks
from fluxmq_spark.jobs.sizes import SUMMARY_DDL, Sizes, sizes_of, summarise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "queue_report"

BATCH_COLUMNS: Final = "queue,base_offset,count,first_time,last_time,bytes,payload_bytes"

DEFAULT_GROUP: Final = "(default)"
"""Displayed name of the group of all AMQP consumers, whose name is empty."""

POINTS_MAX: Final = 120
"""Points of a rate over time: as many as a picture shows."""

STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    *(86_400, 7 * 86_400, 30 * 86_400),
)

TEXT = """Report on queues: rates over time, sizes with percentiles, busiest addresses, and lag of consumer groups.

Everything is read from the broker's files, also while it runs; the broker itself is not contacted. Tables go to standard
output; with --output, charts (rate.png, sizes.png, lag.png), report.json and CSV files are written too."""


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """Totals of a queue's kept messages, from the headers of its batches. Times in µs since the
    epoch; None for an empty queue."""

    queue: str
    messages: int
    batches: int
    bytes: int
    payload_bytes: int
    first_offset: int | None
    next_offset: int | None
    first_time: int | None
    last_time: int | None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Lag of a consumer group at a moment (µs since the epoch)."""

    queue: str
    group: str
    mode: str
    members: int
    ready: int
    pending: int
    dead: int
    lag_messages: int
    lag_seconds: float
    as_of: int


@dataclass(slots=True)
class Report:
    """Contents of the report. Rates: messages a second by queue and time (µs), means of
    `step_s`."""

    queues: list[QueueTotals] = field(default_factory=list)
    step_s: int = 1
    rates: dict[str, dict[int, float]] = field(default_factory=dict)
    sizes: list[Sizes] = field(default_factory=list)
    addresses: list[tuple[str, str, int, int]] = field(default_factory=list)
    groups: list[GroupLag] = field(default_factory=list)


def parser() -> arguments.Parser:
    """Return the parser of the command line."""
    found = arguments.Parser(NAME, TEXT)
    arguments.add_source(found)
    arguments.add_range(found)
    found.add_argument(
        "--top",
        type=arguments.positive,
        default=20,
        metavar="N",
        help="how many of the busiest addresses to show (default: 20)",
    )
    found.add_argument(
        "--headers-only",
        action="store_true",
        help="read batch headers only, no messages: fast, without percentiles and addresses",
    )
    arguments.add_session(found, output="directory for charts, JSON and CSV")
    return found


def step_of(span_us: int) -> int:
    """Return the seconds between the points of a rate over such a time."""
    wanted = span_us / 1e6 / POINTS_MAX
    return next((step for step in STEPS_S if step >= wanted), STEPS_S[-1])


def batches(spark: SparkSession, selection: Selection) -> DataFrame:
    """Return the batches of the selection; one that lies partly in the range counts as a whole."""
    from pyspark.sql import functions as f

    reader = spark.read.format("fluxmq").options(**selection.where())
    rows = reader.option("view", "batches").option("columns", BATCH_COLUMNS).load()
    start, stop = selection.start, selection.stop
    if start.offset is not None:
        rows = rows.where(f.col("base_offset") + f.col("count") > start.offset)
    if start.time is not None:
        rows = rows.where(f.unix_micros("last_time") >= start.time)
    if stop.offset is not None:
        rows = rows.where(f.col("base_offset") < stop.offset)
    if stop.time is not None:
        rows = rows.where(f.unix_micros("first_time") < stop.time)
    return rows


def totals_of(found: DataFrame) -> list[QueueTotals]:
    """Return totals by queue from the headers of batches."""
    from pyspark.sql import functions as f

    rows = found.groupBy("queue").agg(
        f.sum("count").alias("messages"),
        f.count("*").alias("batches"),
        f.sum("bytes").alias("bytes"),
        f.sum("payload_bytes").alias("payload_bytes"),
        f.min("base_offset").alias("first_offset"),
        f.max(f.col("base_offset") + f.col("count")).alias("next_offset"),
        f.min(f.unix_micros("first_time")).alias("first_time"),
        f.max(f.unix_micros("last_time")).alias("last_time"),
    )
    totals = [QueueTotals(**row.asDict()) for row in rows.collect()]
    return sorted(totals, key=lambda each: (-each.messages, each.queue))


def rates_of(found: DataFrame, step_s: int) -> dict[str, dict[int, float]]:
    """Return messages a second by queue; a batch counts at the time of its first message."""
    from pyspark.sql import functions as f

    step_us = step_s * 1_000_000
    at = f.floor(f.unix_micros("first_time") / f.lit(step_us)) * f.lit(step_us)
    rows = found.groupBy("queue", at.alias("at")).agg(f.sum("count").alias("messages")).collect()
    rates: dict[str, dict[int, float]] = {}
    for row in sorted(rows):
        rates.setdefault(row["queue"], {})[int(row["at"])] = row["messages"] / step_s
    return rates


def messages_of(
    spark: SparkSession, selection: Selection, top: int
) -> tuple[list[Sizes], list[tuple[str, str, int, int]]]:
    """Return sizes by queue, and the busiest addresses: (queue, address, messages, bytes)."""
    from pyspark.sql import functions as f

    reader = spark.read.format("fluxmq").options(**selection.options())
    rows = reader.option("columns", "queue,address,payload").load()
    counted = (
        rows.mapInArrow(summarise, SUMMARY_DDL)
        .groupBy("queue", "address", "cell")
        .agg(
            f.sum("messages").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.max("largest").alias("largest"),
        )
        .persist()
    )
    cells: dict[str, list[tuple[int, int, int, int]]] = {}
    for row in counted.where("cell is not null").collect():
        cells.setdefault(row["queue"], []).append(
            (row["cell"], row["messages"], row["bytes"], row["largest"])
        )
    order = [f.desc("messages"), f.asc("queue"), f.asc("address")]
    busiest = counted.where("cell is null").orderBy(*order).limit(top).collect()
    counted.unpersist()
    sizes = [sizes_of(queue, each) for queue, each in cells.items()]
    sizes.sort(key=lambda each: (-each.messages, each.queue))
    return sizes, [(row["queue"], row["address"], row["messages"], row["bytes"]) for row in busiest]


def groups_of(spark: SparkSession, selection: Selection) -> list[GroupLag]:
    """Return the consumer groups of the selected queues, the largest lag first."""
    from pyspark.sql import functions as f

    reader = spark.read.format("fluxmq").options(**selection.where()).option("view", "groups")
    rows = (
        reader.load()
        .withColumnRenamed("consumer_group", "group")
        .withColumn("as_of", f.unix_micros("as_of"))
        .select(*GroupLag.__dataclass_fields__)
        .collect()
    )
    found = [GroupLag(**{**row.asDict(), "group": row["group"] or DEFAULT_GROUP}) for row in rows]
    return sorted(found, key=lambda each: (-each.lag_messages, each.queue, each.group))


def make(
    console: Console, spark: SparkSession, selection: Selection, options: argparse.Namespace
) -> Report:
    """Compile the report."""
    report, doing = Report(), tasks(spark)
    with console.stage("headers of batches", doing):
        found = batches(spark, selection).persist()
        report.queues = totals_of(found)
        times = [(each.first_time, each.last_time) for each in report.queues if each.messages]
        if times:
            low, high = min(each[0] or 0 for each in times), max(each[1] or 0 for each in times)
            report.step_s = step_of(high - low)
        report.rates = rates_of(found, report.step_s)
        found.unpersist()
    if not options.headers_only:
        with console.stage("messages", doing):
            report.sizes, report.addresses = messages_of(spark, selection, options.top)
    with console.stage("consumer groups", doing):
        report.groups = groups_of(spark, selection)
    return report


QUEUE_COLUMNS: Final = (
    *("queue", "messages", "batches", "on disk", "first", "next", "from (UTC)", "to (UTC)"),
    *("mean/s", "peak/s"),
)
SIZE_COLUMNS: Final = ("queue", "messages", "sum", "mean", "p50", "p90", "p99", "max")
ADDRESS_COLUMNS: Final = ("address", "queue", "messages", "payload", "share %")
GROUP_COLUMNS: Final = (
    *("queue", "group", "mode", "members", "ready", "pending", "dead", "lag", "lag s"),
    "as of (UTC)",
)


def show(console: Console, report: Report) -> None:
    """Write the report's tables."""
    console.title(f"Queues (rates: means of {plural(report.step_s, 'second')})")
    console.table(QUEUE_COLUMNS, [_queue_row(report, each) for each in report.queues])
    if report.sizes:
        console.title("Sizes of payloads, bytes (percentiles within 1.6 %)")
        console.table(SIZE_COLUMNS, [_size_row(each) for each in report.sizes])
        console.title("Busiest addresses")
        total = sum(each.messages for each in report.sizes)
        rows = [
            (address, queue, messages, size(count), 100 * messages / total)
            for queue, address, messages, count in report.addresses
        ]
        console.table(ADDRESS_COLUMNS, rows)
    console.title("Consumer groups")
    console.table(GROUP_COLUMNS, [_group_row(each) for each in report.groups])


def _queue_row(report: Report, each: QueueTotals) -> Sequence[object]:
    span = ((each.last_time or 0) - (each.first_time or 0)) / 1e6
    return (
        *(each.queue, each.messages, each.batches, size(each.bytes), each.first_offset),
        *(each.next_offset, moment(each.first_time), moment(each.last_time)),
        each.messages / span if span > 0 else None,
        max(report.rates.get(each.queue, {}).values(), default=None),
    )


def _size_row(each: Sizes) -> Sequence[object]:
    mean = each.bytes / each.messages
    return (
        each.queue,
        each.messages,
        size(each.bytes),
        mean,
        each.p50,
        each.p90,
        each.p99,
        each.largest,
    )


def _group_row(each: GroupLag) -> Sequence[object]:
    counts = (
        each.members,
        each.ready,
        each.pending,
        each.dead,
        each.lag_messages,
        each.lag_seconds,
    )
    return (each.queue, each.group, each.mode, *counts, moment(each.as_of))


def save(report: Report, folder: Path) -> list[Path]:
    """Write pictures, JSON and CSV; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [_json(folder / "report.json", report)]
    made.append(
        _csv(
            folder / "queues.csv",
            tuple(QueueTotals.__dataclass_fields__),
            map(_values, report.queues),
        )
    )
    points = (
        (queue, moment(at), rate)
        for queue, series in sorted(report.rates.items())
        for at, rate in sorted(series.items())
    )
    made.append(_csv(folder / "rates.csv", ("queue", "time", "messages_per_second"), points))
    if report.rates:
        plots.rates(folder / "rate.png", report.rates, report.step_s)
        made.append(folder / "rate.png")
    if report.sizes:
        columns = ("queue", "address", "messages", "bytes")
        made.append(_csv(folder / "addresses.csv", columns, report.addresses))
        plots.sizes(folder / "sizes.png", report.sizes)
        made.append(folder / "sizes.png")
    if report.groups:
        made.append(
            _csv(
                folder / "groups.csv",
                tuple(GroupLag.__dataclass_fields__),
                map(_values, report.groups),
            )
        )
        bars = [
            (f"{each.queue}: {each.group}", each.lag_messages, each.lag_seconds)
            for each in report.groups
        ]
        plots.lag(folder / "lag.png", bars)
        made.append(folder / "lag.png")
    return made


def _values(row: Any) -> list[object]:
    return [getattr(row, name) for name in row.__dataclass_fields__]


def _json(path: Path, report: Report) -> Path:
    sizes = [{k: v for k, v in asdict(each).items() if k != "cells"} for each in report.sizes]
    content: Mapping[str, object] = {
        "queues": [asdict(each) for each in report.queues],
        "rates": {"step_seconds": report.step_s, "messages_per_second": report.rates},
        "sizes": sizes,
        "addresses": [
            dict(zip(("queue", "address", "messages", "bytes"), each, strict=True))
            for each in report.addresses
        ],
        "groups": [asdict(each) for each in report.groups],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def _csv(path: Path, columns: Sequence[str], rows: Any) -> Path:
    with path.open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def main(words: Sequence[str] | None = None) -> int:
    """Run the job with these arguments; return the exit code."""
    options = arguments.parse(parser(), words)

    def job(console: Console, now: datetime) -> int:
        selection = arguments.selection_of(options, now)
        with session(NAME, options.master) as spark:
            report = make(console, spark, selection, options)
        show(console, report)
        if options.output is not None:
            console.write("")
            for path in save(report, Path(options.output)):
                console.write(f"written: {path}")
        return EXIT_DONE

    return run(NAME, job, quiet=options.quiet)


if __name__ == "__main__":
    raise SystemExit(main())
