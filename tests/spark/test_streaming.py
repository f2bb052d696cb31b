"""Streams through Spark itself; what the reader answers is in ``tests/unit/spark/test_streaming.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from tests.spark import kill_stream
from tests.spark_queues import QueueOnDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Streamed:
    """A query into Parquet, run again and again from one checkpoint."""

    def __init__(self, spark: SparkSession, root: Path, **options: object) -> None:
        self.spark = spark
        self.root = root
        self.options = {"path": str(root / "data"), "startingOffsets": "earliest", **options}

    def start(self) -> StreamingQuery:
        """Run until what is there now is read."""
        reader = self.spark.readStream.format("fluxmq")
        for name, value in self.options.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.root / "checkpoint"))
        return writer.start(str(self.root / "parquet"))

    def run(self) -> list[int]:
        """Do so to the end; rows of the micro-batches that had any."""
        query = self.start()
        query.awaitTermination()
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    def found(self) -> dict[str, tuple[int, ...]]:
        """By queue: rows, distinct offsets, the first, the last, and those whose payload is not that of their offset."""
        right = f.substring_index(f.col("payload").cast("string"), " ", 1)
        frame = self.spark.read.parquet(str(self.root / "parquet"))
        rows = frame.groupBy("queue").agg(
            f.count("*"),
            f.count_distinct("offset"),
            f.min("offset"),
            f.max("offset"),
            f.count_if(right != f.col("offset").cast("string")),
        )
        return {row[0]: tuple(row)[1:] for row in rows.collect()}


def test_bounded_batches_and_resuming(spark: SparkSession, tmp_path: Path) -> None:
    """What is there at the start is read in batches of a limit; the next run goes on; a new queue comes in; retention hits."""
    orders = QueueOnDisk(tmp_path / "data", "orders")
    orders.fill(1100)
    streamed = Streamed(spark, tmp_path, maxOffsetsPerTrigger=300)
    query = streamed.start()
    query.awaitTermination()
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    assert [each["numInputRows"] for each in progress] == [300, 300, 300, 200]
    assert json.loads(progress[0]["sources"][0]["latestOffset"]) == {"orders": 1100}
    assert json.loads(progress[-1]["sources"][0]["endOffset"]) == {"orders": 1100}
    assert streamed.found() == {"orders": (1100, 1100, 0, 1099, 0)}

    orders.fill(150)
    QueueOnDisk(tmp_path / "data", "later").fill(50)
    assert streamed.run() == [200]
    expected = {"orders": (1250, 1250, 0, 1249, 0), "later": (50, 50, 0, 49, 0)}
    assert streamed.found() == expected
    assert streamed.run() == []

    # Retention removes what this query has not read.
    orders.fill(2000)
    start = int(orders.segments()[3].stem)
    orders.trim(start)
    assert start > 1250
    with pytest.raises(StreamingQueryException, match=f"offsets 1250 to {start - 1} were removed"):
        streamed.run()
    assert streamed.found() == expected
    skipping = Streamed(spark, tmp_path, failOnDataLoss=False)
    assert skipping.run() == [3250 - start]
    kept = 1250 + 3250 - start
    assert skipping.found() == {**expected, "orders": (kept, kept, 0, 3249, 0)}


def test_mistakes_reach_the_user(spark: SparkSession, tmp_path: Path) -> None:
    """As the query's error."""
    QueueOnDisk(tmp_path / "data", "orders").fill(10)
    with pytest.raises(StreamingQueryException, match="endingOffsets is for batch reading"):
        Streamed(spark, tmp_path, endingOffsets="latest").run()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_driver_goes_on_where_it_was(tmp_path: Path) -> None:
    """Two rounds of the campaign."""
    line, right = kill_stream.campaign(tmp_path, 2, 1)
    assert right, line
    assert "lost=0 doubled=0 wrong=0" in line
