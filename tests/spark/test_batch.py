"""Batch reading through Spark itself; what can be shown without a session is in ``tests/unit/spark``."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSourceReader

import fluxmq_spark
from fluxmq.model.batches import BatchMessage
from fluxmq.model.properties import Item, PropertyKind, Value, encode
from fluxmq_spark.options import read_options
from fluxmq_spark.schema import message_schema
from fluxmq_spark.source import BatchReader
from tests.spark_queues import EPOCH_US, QueueOnDisk, messages_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


PAUSE_S = 0.05
KEPT = 6_000
"""What a busy queue keeps, and how long it rests: a query has half a second from planning to its last message."""


@pytest.fixture
def orders(tmp_path: Path) -> QueueOnDisk:
    """A queue of several segments."""
    made = QueueOnDisk(tmp_path / "data")
    made.fill(3000)
    return made


def load(spark: SparkSession, path: Path | str, **options: object) -> DataFrame:
    """A DataFrame of a directory, with options."""
    reader = spark.read.format("fluxmq").option("path", str(path))
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def tally(frame: DataFrame) -> tuple[int, ...]:
    """Rows, distinct offsets, the first and the last, and rows whose payload is not that of their offset."""
    right = f.substring_index(f.col("payload").cast("string"), " ", 1) == f.col("offset").cast(
        "string"
    )
    row = frame.select(
        f.count("*"),
        f.count_distinct("offset"),
        f.min("offset"),
        f.max("offset"),
        f.count_if(~right),
    ).first()
    assert row is not None
    return tuple(row)


def test_messages_are_what_was_appended(spark: SparkSession, tmp_path: Path) -> None:
    """Every column; null and empty; several queues, one of them empty; a part of the columns in any order."""
    block = encode(
        [
            Item(PropertyKind.CONTENT_TYPE, b"text/plain"),
            Item(PropertyKind.HEADER, Value("S", b"red"), b"colour"),
            Item(PropertyKind.PUBLISHER, b"till-7"),
        ]
    )
    root = tmp_path / "data"
    QueueOnDisk(root, "orders").append(
        [
            BatchMessage(b"orders/eu", block, b"one", EPOCH_US),
            BatchMessage(b"orders/us", b"", b"", EPOCH_US + 1),
        ]
    )
    QueueOnDisk(root, "empty")
    QueueOnDisk(root, "returns").append(messages_of([b"\x00\xff"], key=b"back"))
    rows = [row.asDict() for row in load(spark, root).orderBy("queue", "offset").collect()]
    first, second, third = rows
    assert [row["queue"] for row in rows] == ["orders", "orders", "returns"]
    assert first["headers"] == {"colour": "red"}
    assert first["properties"] == {"content_type": "text/plain"}
    assert (first["key"], first["address"], first["publisher"]) == (
        *("orders/eu", "orders/eu"),
        "till-7",
    )
    assert (second["offset"], second["payload"], second["publisher"]) == (1, b"", None)
    assert (second["headers"], second["properties"]) == ({}, {})
    assert bytes(third["payload"]) == b"\x00\xff"
    moments = load(spark, root, queue="orders").select(f.unix_micros("timestamp")).collect()
    assert [row[0] for row in moments] == [EPOCH_US, EPOCH_US + 1]
    chosen = spark.read.format("fluxmq").schema(
        "payload binary, headers map<string,string>, offset long"
    )
    (row,) = chosen.option("path", str(root)).option("queue", "returns").load().collect()
    assert (bytes(row[0]), row[1], row[2]) == (b"\x00\xff", {}, 0)
    assert load(spark, root, columns="offset,queue", includeHeaders=False).columns == [
        "offset",
        "queue",
    ]
    assert load(spark, root, includeHeaders="false").columns == [
        *("queue", "offset", "timestamp", "address", "key", "payload", "publisher")
    ]
    assert load(spark, root, queue="empty").count() == 0
    assert load(spark, root, queuePattern="none.*").count() == 0


def test_a_frame_that_is_used_twice(spark: SparkSession, orders: QueueOnDisk) -> None:
    """Spark's push-down of filters to Python sources gives wrong counts here: there must be none."""
    frame = load(spark, orders.root, columns="offset", minPartitions=3)
    few = frame.where("offset < 10")
    assert few.union(frame).count() == 3010
    assert (few.count(), frame.count()) == (10, 3000)
    reader = BatchReader(read_options({"path": str(orders.root)}), message_schema(["offset"]))
    assert type(reader).pushFilters is DataSourceReader.pushFilters
    frame.createOrReplaceTempView("frame")
    joined = "select count(*) from frame a join frame b on a.offset = b.offset where a.offset < 7"
    assert spark.sql(joined).first() == (7,)


def test_a_frame_is_a_snapshot(spark: SparkSession, orders: QueueOnDisk) -> None:
    """Of the moment of its first action; loading again looks again."""
    frame = load(spark, orders.root)
    assert frame.count() == 3000
    orders.fill(500)
    assert frame.count() == 3000
    assert load(spark, orders.root).count() == 3500


def test_mistakes_reach_the_user(spark: SparkSession, orders: QueueOnDisk) -> None:
    """All of them, in the text of Spark's own error."""
    with pytest.raises(PySparkException) as caught:
        load(spark, orders.root, minPartitions="x", colour="red", state="unacknowledged")
    for text in ("minPartitions is 'x'", "unknown: colour", "state=unacknowledged needs group"):
        assert text in str(caught.value)
    with pytest.raises(PySparkException, match="path is missing"):
        spark.read.format("fluxmq").load()
    wrong = spark.read.format("fluxmq").schema("offset int, colour string")
    with pytest.raises(PySparkException) as caught:
        wrong.option("path", str(orders.root)).load().collect()
    assert "column 'offset' is bigint, not int; there is no column 'colour'" in str(caught.value)
    with pytest.raises(PySparkException, match="no queue 'ghost'; it has 'orders'"):
        load(spark, orders.root, queue="ghost").collect()


def test_a_range_of_time_reads_only_its_segments(spark: SparkSession, tmp_path: Path) -> None:
    """Of a hundred; as the tasks counted."""
    orders = QueueOnDisk(tmp_path / "data")
    while len(orders.segments()) < 100:
        orders.fill(1000)
    bases = [int(path.stem) for path in orders.segments()]
    first, stop = bases[40] + 5, bases[42] + 7
    metrics = tmp_path / "metrics"
    frame = load(
        spark,
        orders.root,
        startingTimestamp=EPOCH_US // 1000 + first,
        endingTimestamp=EPOCH_US // 1000 + stop,
        metricsPath=metrics,
    )
    assert tally(frame) == (stop - first, stop - first, first, stop - 1, 0)
    counted = fluxmq_spark.read_metrics(str(metrics))
    assert (counted.segments, counted.rows, counted.skipped_rows) == (3, stop - first, 0)
    assert counted.damage == ()
    size = sum(path.stat().st_size for path in orders.segments()[40:43])
    assert counted.bytes <= size + 3 * 4096
    made = fluxmq_spark.plan(
        str(orders.root),
        startingTimestamp=EPOCH_US // 1000 + first,
        endingTimestamp=EPOCH_US // 1000 + stop,
    )
    assert (made.segments, made.segments_considered) == (3, len(bases))


def test_copies_behind_fsspec(spark: SparkSession, orders: QueueOnDisk, tmp_path: Path) -> None:
    """A URL: the driver plans and tasks read through its file system, and count into one."""
    metrics = f"local://{tmp_path}/metrics"
    frame = load(spark, f"local://{orders.root}", maxBytesPerPartition="32k", metricsPath=metrics)
    assert tally(frame) == (3000, 3000, 0, 2999, 0)
    counted = fluxmq_spark.read_metrics(metrics)
    assert counted.rows == 3000
    assert counted.tasks == frame.rdd.getNumPartitions() > 4
    cached = tmp_path / "cached"
    options = f'{{"simplecache": {{"cache_storage": "{cached}"}}}}'
    url = f"simplecache::file://{orders.root}"
    assert load(spark, url, columns="offset", storageOptions=options).count() == 3000
    assert any(cached.iterdir())
    with pytest.raises(PySparkException, match="nosuch"):
        load(spark, "nosuch://bucket/data").count()


def test_loss_when_planning_and_when_reading(
    spark: SparkSession, orders: QueueOnDisk, tmp_path: Path
) -> None:
    """An error with queue and offsets, or a skip that is counted."""
    second, third = (int(path.stem) for path in orders.segments()[1:3])
    metrics = tmp_path / "metrics"
    planned = load(spark, orders.root)
    assert planned.count() == 3000
    forgiven = load(spark, orders.root, failOnDataLoss=False, metricsPath=metrics)
    assert forgiven.rdd.getNumPartitions() == 1
    orders.trim(second)
    with pytest.raises(PySparkException, match=r"'orders': of offsets 0 to .* are gone"):
        planned.count()
    assert tally(forgiven) == (3000 - second, 3000 - second, second, 2999, 0)
    assert fluxmq_spark.read_metrics(str(metrics)).skipped_rows == second
    shutil.rmtree(metrics)
    orders.trim(third)
    offsets = '{"orders": 5}'
    with pytest.raises(PySparkException, match=f"'orders': offsets 5 to {third - 1} were removed"):
        load(spark, orders.root, startingOffsets=offsets).count()
    skipping = load(spark, orders.root, startingOffsets=offsets, failOnDataLoss=False)
    assert tally(skipping) == (3000 - third, 3000 - third, third, 2999, 0)
    # Damage: one byte of one payload.
    path = orders.segments()[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        PySparkException, match=rf"{path.name}, byte \d+: the messages do not match"
    ):
        load(spark, orders.root).count()
    rows, once, *_, wrong = tally(
        load(spark, orders.root, failOnDataLoss=False, metricsPath=metrics)
    )
    assert (rows, once, wrong) == (3000 - third - 10, 3000 - third - 10, 0)
    counted = fluxmq_spark.read_metrics(str(metrics))
    assert (counted.skipped_rows, len(counted.damage)) == (10, 1)


@contextmanager
def busy(queue: QueueOnDisk, *, trim: bool) -> Iterator[None]:
    """The queue appends and rolls, and trims if asked to, as long as this is open."""
    stopped = threading.Event()
    rounds = threading.Semaphore(0)

    def run() -> None:
        while not stopped.wait(PAUSE_S):
            queue.fill(400)
            if trim:
                queue.trim(max(len(queue.messages) - KEPT, 0))
            rounds.release()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(3):
            rounds.acquire()
        yield
        # It went on while the body ran.
        rounds.acquire()
    finally:
        stopped.set()
        thread.join()


def test_a_live_queue(spark: SparkSession, orders: QueueOnDisk, tmp_path: Path) -> None:
    """Appending, rolling and trimming go on: each offset once, with its payload, and nothing missing that is not counted."""
    with busy(orders, trim=False):
        for _ in range(2):
            rows, once, first, last, wrong = tally(load(spark, orders.root, minPartitions=4))
            assert (rows, once, first, wrong) == (last + 1, last + 1, 0, 0)
            assert rows >= 3000
    with busy(orders, trim=True):
        for number in range(2):
            metrics = tmp_path / f"metrics-{number}"
            frame = load(
                spark,
                orders.root,
                failOnDataLoss=False,
                maxBytesPerPartition="256k",
                metricsPath=metrics,
            )
            rows, once, *_, wrong = tally(frame)
            assert (rows, wrong) == (once, 0)
            counted = fluxmq_spark.read_metrics(str(metrics))
            assert (counted.rows, counted.damage) == (rows, ())
            assert counted.rows + counted.skipped_rows > KEPT - 1000
