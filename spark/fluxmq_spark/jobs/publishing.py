"""Publishing of a job's messages: through the source's writer, in order, at a bounded rate, or not
at all.

One task publishes all rows one after another. That keeps their order, and it gives the same numbers
to the same rows when the job is run again: the broker keeps each message once per producer id and
number (``docs/spark.md``, writing).
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pyarrow as pa  # type: ignore[import-untyped]

from fluxmq_spark.jobs.arguments import Parser, UsageError
from fluxmq_spark.jobs.console import Console, plural, size
from fluxmq_spark.jobs.dead_letter_rows import LETTER_DDL
from fluxmq_spark.jobs.pace import paced
from fluxmq_spark.jobs.session import tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRODUCER_ID_BYTES_MAX: Final = 200
"""Maximum bytes of a producer id; with its additions it must fit a header's short string."""

NUMBERED_MAX: Final = 1024 * 1000
"""Messages of one run that any queue recognises as duplicates: the writer's smallest chunks, times
the settings file's default ``deduplication.max_producers`` (``docs/spark.md``, writing)."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """Target and manner of publishing. `rate`: messages a second, 0 for unlimited; `producer_id`:
    "" for a derived one."""

    url: str
    dry_run: bool
    rate: float
    producer_id: str
    ca_file: str | None = None

    def shown_url(self) -> str:
        """Return the URL without its password."""
        parts = urlsplit(self.url)
        place = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{place}{parts.path}"


def add_publishing(parser: Parser, switch: str | None, text: str) -> None:
    """Add ``--url``, ``--dry-run``, ``--rate``, ``--producer-id``, ``--ca-file`` and, if not None,
    a switch."""
    group = parser.add_argument_group("publishing")
    if switch is not None:
        group.add_argument(switch, action="store_true", help=text)
    group.add_argument(
        "--url",
        metavar="URL",
        help="the broker: amqp://user:password@host:5672/vhost, or amqps:// for TLS",
    )
    group.add_argument("--ca-file", metavar="FILE", help="authorities to trust with amqps://")
    group.add_argument(
        "--rate",
        type=_rate,
        default=0.0,
        metavar="N",
        help="maximum number of messages per second (default: no limit)",
    )
    group.add_argument(
        "--producer-id",
        default="",
        metavar="NAME",
        help="what the broker knows this run by: run again with the same messages, nothing is kept twice"
        " (default: made of source and range)",
    )
    group.add_argument(
        "--dry-run", action="store_true", help="show what would be published, and publish nothing"
    )


def _rate(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0
    if not 0 < found <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of messages per second")
    return found


def publishing_of(options: argparse.Namespace, wanted: bool) -> Publishing | None:
    """Return the arguments of `add_publishing`; None unless wanted. Raises `UsageError`."""
    if not wanted:
        if options.dry_run or options.url is not None:
            raise UsageError(
                "--url and --dry-run are for publishing, but no option selects messages to publish"
            )
        return None
    if options.url is None and not options.dry_run:
        raise UsageError("publishing needs --url, or --dry-run to see what would be published")
    url = options.url or ""
    if url and urlsplit(url).scheme not in ("amqp", "amqps"):
        raise UsageError("--url begins with amqp:// or amqps://")
    if len(options.producer_id.encode()) > PRODUCER_ID_BYTES_MAX or ":" in options.producer_id:
        raise UsageError(f"--producer-id has at most {PRODUCER_ID_BYTES_MAX} bytes and no colon")
    return Publishing(url, options.dry_run, options.rate, options.producer_id, options.ca_file)


def derived_id(*parts: str) -> str:
    """Return a producer id derived from the content to publish; its hash if that is too long."""
    text = "/".join(part.replace(":", "-") for part in parts)
    if len(text.encode()) <= PRODUCER_ID_BYTES_MAX:
        return text
    return f"{parts[0]}/{hashlib.sha256(text.encode()).hexdigest()}"


def _paced(batches: Iterable[pa.RecordBatch], rate: float) -> Iterator[pa.RecordBatch]:
    return paced(batches, rate)


def publish(
    console: Console,
    spark: SparkSession,
    rows: DataFrame,
    to: Publishing,
    producer_id: str,
    queue: str | None = None,
) -> int:
    """Publish rows of `LETTER` through the default exchange, or only say so; return their number.

    `queue`: the target of all of them, whatever their routing keys.
    """
    from pyspark.sql import functions as f

    with console.stage("what is to be published", tasks(spark)):
        counted = rows.groupBy("routing_key").agg(
            f.count("*").alias("messages"), f.sum(f.octet_length("payload")).alias("bytes")
        )
        by_key = sorted(counted.collect(), key=lambda row: (-row["messages"], row["routing_key"]))
    total = sum(int(row["messages"]) for row in by_key)
    console.title("Would be published" if to.dry_run else "Published")
    shown = [(row["routing_key"], row["messages"], size(row["bytes"])) for row in by_key[:20]]
    if total and not to.dry_run:
        ordered = rows.coalesce(1)
        if to.rate:
            ordered = ordered.mapInArrow(partial(_paced, rate=to.rate), LETTER_DDL)
        if queue is not None:
            ordered = ordered.drop("routing_key")
        writer = ordered.write.format("fluxmq").mode("append").option("url", to.url)
        where = ("exchange", "") if queue is None else ("queue", queue)
        writer = writer.option(*where).option("producerId", producer_id)
        if to.ca_file is not None:
            writer = writer.option("caFile", to.ca_file)
        with console.stage(f"publishing {plural(total, 'message')}", tasks(spark)):
            writer.save()
    console.table(("routing key", "messages", "payload"), shown)
    if len(by_key) > len(shown):
        console.write(f"and {plural(len(by_key) - len(shown), 'routing key')} more")
    at = f" to {to.shown_url()}" if to.url else ""
    console.write(f"{plural(total, 'message')}{at}, producer id {producer_id}")
    if total > NUMBERED_MAX:
        console.write(
            f"more than {NUMBERED_MAX:,} in one run: run again, the first of them might be kept twice;"
            " runs of parts (--from, --to) can be repeated"
        )
    return total
