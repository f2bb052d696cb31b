"""Report on dead letters: where they died, why, how often and when; on request, redelivery to where
they died.

Reads the dead-letter queues of the settings file (``$dlq/<queue>``) and queues that a dead-letter
exchange fills. Nothing is removed from them: that is for the operator to do after checking the
republished messages.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from fluxmq_spark.jobs import arguments, dead_letter_rows, plots
from fluxmq_spark.jobs.arguments import EXIT_DONE, Selection, UsageError
from fluxmq_spark.jobs.console import Console, moment, plural, size
from fluxmq_spark.jobs.publishing import (
    Publishing,
    add_publishing,
    derived_id,
    publish,
    publishing_of,
)
from fluxmq_spark.jobs.session import run, session, tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "dead_letters"

SAMPLES_MAX: Final = 100
"""Maximum samples of a cause: a person looks at a few."""

TEXT = """Report on dead letters: why messages died, in which queue, how often, when first and last, with samples.

Dead-letter queues of the settings file are found by themselves: those of the selected queues, $dlq/<queue>. A queue
that a dead-letter exchange of AMQP fills is named by --dead-letter-queue.

With --redrive --url the messages are published again to the queue they died in, through AMQP with confirms, with
the header x-redriven-from. The dead letters stay where they are: purge their queue afterwards."""

EPILOG = """examples:
  dead_letters.py --path /var/lib/fluxmq --queue orders --output report
  dead_letters.py --path /var/lib/fluxmq --dead-letter-queue failed-jobs --from now-1d
  dead_letters.py --path /var/lib/fluxmq --queue orders --redrive --url amqp://user:password@host/ --reason rejected --dry-run
"""


def parser() -> arguments.Parser:
    """Return the parser of the command line."""
    found = arguments.Parser(NAME, TEXT, epilog=EPILOG)
    arguments.add_source(found)
    found.add_argument(
        "--dead-letter-queue",
        action="append",
        default=[],
        metavar="NAME",
        help="a queue that holds dead letters itself, as a dead-letter exchange fills it; may be repeated",
    )
    arguments.add_range(found)
    found.add_argument(
        "--reason",
        action="append",
        default=[],
        metavar="REASON",
        help="only letters with this reason (rejected, expired, delivery_limit, ...); may be repeated",
    )
    found.add_argument(
        "--samples",
        type=arguments.positive,
        default=3,
        metavar="N",
        help=f"samples of each cause to show (default: 3, at most {SAMPLES_MAX})",
    )
    add_publishing(found, "--redrive", "publish the messages again to the queues they died in")
    arguments.add_session(found, output="directory for causes.png and dead_letters.json")
    return found


def letters(spark: SparkSession, selection: Selection, queues: Sequence[str]) -> DataFrame:
    """Return the dead letters of the selected queues, and the messages in `queues`."""
    reader = spark.read.format("fluxmq").option("columns", dead_letter_rows.COLUMNS)
    found = []
    if selection.queues or selection.pattern is not None or not queues:
        of_settings = reader.options(**selection.options()).option("state", "dead-lettered")
        found.append(of_settings.load())
    if queues:
        reader = spark.read.format("fluxmq").option("columns", dead_letter_rows.COLUMNS)
        theirs = Selection(
            selection.path,
            tuple(queues),
            None,
            selection.storage_options,
            selection.start,
            selection.stop,
        )
        found.append(reader.options(**theirs.options()).load())
    return reduce(lambda one, other: one.union(other), found)


def causes_of(died: DataFrame) -> list[dict[str, Any]]:
    """Return letters by queue, source, reason and consumer group; the largest counts first."""
    from pyspark.sql import functions as f

    rows = died.groupBy("queue", "source", "reason", "consumers").agg(
        f.count("*").alias("letters"),
        f.sum("size").alias("bytes"),
        f.max("attempts").alias("attempts"),
        f.min("died").alias("first"),
        f.max("died").alias("last"),
    )
    found = [row.asDict() for row in rows.collect()]
    return sorted(
        found,
        key=lambda each: (-each["letters"], each["queue"], str(each["source"]), each["reason"]),
    )


def intervals_of(died: DataFrame) -> list[tuple[str, int, int]]:
    """Return first and last offset of the letters, by the queue that holds them."""
    from pyspark.sql import functions as f

    rows = died.groupBy("queue").agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
    return sorted((row["queue"], row["first"], row["last"]) for row in rows.collect())


def busiest_keys(died: DataFrame, count: int) -> list[dict[str, Any]]:
    """Return the keys with most letters."""
    from pyspark.sql import functions as f

    rows = died.groupBy("source", "key", "reason").agg(f.count("*").alias("letters"))
    order = [f.desc("letters"), f.asc("source"), f.asc("key"), f.asc("reason")]
    return [row.asDict() for row in rows.orderBy(*order).limit(count).collect()]


def samples_of(died: DataFrame, count: int) -> list[dict[str, Any]]:
    """Return the newest letters of each cause."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    newest = Window.partitionBy("queue", "source", "reason").orderBy(f.desc("offset"))
    rows = died.withColumn("place", f.row_number().over(newest)).where(f.col("place") <= count)
    found = [row.asDict() for row in rows.drop("place").collect()]
    return sorted(
        found,
        key=lambda each: (each["queue"], str(each["source"]), each["reason"], -each["offset"]),
    )


def show(
    console: Console,
    causes: Sequence[Mapping[str, Any]],
    keys: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
) -> None:
    """Write the report's tables."""
    total = sum(each["letters"] for each in causes)
    console.title(f"{plural(total, 'dead letter')}: why, and where they died")
    columns = (
        "reason",
        "died in",
        "of group",
        "lies in",
        "letters",
        "payload",
        "attempts",
        "first (UTC)",
        "last (UTC)",
    )
    console.table(
        columns,
        [
            (
                *(
                    each["reason"],
                    each["source"],
                    each["consumers"],
                    each["queue"],
                    each["letters"],
                ),
                *(
                    size(each["bytes"]),
                    each["attempts"],
                    moment(each["first"]),
                    moment(each["last"]),
                ),
            )
            for each in causes
        ],
    )
    console.title("Keys with most")
    console.table(
        ("key", "died in", "reason", "letters"),
        [(each["key"], each["source"], each["reason"], each["letters"]) for each in keys],
    )
    console.title("Newest of each cause")
    console.table(
        ("lies in", "offset", "reason", "key", "died (UTC)", "bytes", "payload"),
        [
            (
                *(each["queue"], each["offset"], each["reason"], each["key"], moment(each["died"])),
                *(each["size"], bytes(each["sample"]).decode("utf-8", "replace")),
            )
            for each in samples
        ],
    )


def save(
    folder: Path,
    causes: Sequence[Mapping[str, Any]],
    keys: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
) -> list[Path]:
    """Write a picture and JSON; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [
        {**each, "sample": bytes(each["sample"]).decode("utf-8", "replace")} for each in samples
    ]
    made = folder / "dead_letters.json"
    made.write_text(json.dumps({"causes": causes, "keys": keys, "samples": texts}, indent=1) + "\n")
    if not causes:
        return [made]
    bars: dict[str, int] = {}
    for each in causes:
        name = f"{each['reason']}: {each['source'] or each['queue']}"
        bars[name] = bars.get(name, 0) + each["letters"]
    plots.deaths(folder / "causes.png", list(bars.items()))
    return [made, folder / "causes.png"]


def redrive(
    console: Console,
    spark: SparkSession,
    found: DataFrame,
    options: argparse.Namespace,
    to: Publishing,
    intervals: Sequence[tuple[str, int, int]],
) -> int:
    """Publish the letters again to where they died, or only say so; return their number.

    `intervals`: the examined ranges, (queue, first offset, last offset); later letters are left for
    the next run.
    """
    from pyspark.sql import functions as f

    inside = f.lit(False)
    for queue, _, last in intervals:
        inside = inside | ((f.col("queue") == queue) & (f.col("offset") <= last))
    sources = tuple(options.queue) if options.queue and not options.dead_letter_queue else ()
    chosen = partial(_revive, reasons=tuple(options.reason), sources=sources)
    revived = found.where(inside).mapInArrow(chosen, dead_letter_rows.LETTER_DDL)
    what = [f"{queue}/{first}-{last}" for queue, first, last in intervals]
    producer = to.producer_id or derived_id(
        "redrive", *what, *sorted(options.reason), *sorted(sources)
    )
    return publish(console, spark, revived, to, producer)


def _revive(
    batches: Iterable[pa.RecordBatch], reasons: Sequence[str], sources: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    return dead_letter_rows.revive(batches, reasons, sources)


def main(words: Sequence[str] | None = None) -> int:
    """Run the job with these arguments; return the exit code."""
    options = arguments.parse(parser(), words)

    def job(console: Console, now: datetime) -> int:
        selection = arguments.selection_of(options, now)
        if options.samples > SAMPLES_MAX:
            raise UsageError(f"--samples is at most {SAMPLES_MAX}")
        to = publishing_of(options, options.redrive)
        with session(NAME, options.master) as spark:
            doing = tasks(spark)
            found = letters(spark, selection, options.dead_letter_queue)
            died = found.mapInArrow(dead_letter_rows.flatten, dead_letter_rows.DEATH_DDL)
            if options.reason:
                died = died.where(died["reason"].isin(options.reason))
            died = died.persist()
            with console.stage("dead letters", doing):
                causes = causes_of(died)
            with console.stage("keys and samples", doing):
                keys, samples = busiest_keys(died, 20), samples_of(died, options.samples)
            show(console, causes, keys, samples)
            if options.output is not None:
                console.write("")
                for path in save(Path(options.output), causes, keys, samples):
                    console.write(f"written: {path}")
            intervals = intervals_of(died)
            if to is not None and intervals:
                redrive(console, spark, found, options, to, intervals)
        return EXIT_DONE

    return run(NAME, job, quiet=options.quiet)


if __name__ == "__main__":
    raise SystemExit(main())
