"""DataFrames and streams written through a broker and read back from its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tests.conformance.client import eventually
from tests.integration.test_spark_writing import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 3000
PARTITIONS = 3


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A fresh broker."""
    made = Node(tmp_path)
    yield made
    print(made.broker.log())
    made.broker.stop()


def messages(spark: SparkSession, data: Path, queue: str) -> DataFrame:
    return spark.read.format("fluxmq").option("path", str(data)).option("queue", queue).load()


def read_back(spark: SparkSession, data: Path, queue: str, count: int) -> list[Any]:
    """All rows of a queue by offset, as soon as ``count`` have been written down as committed."""
    eventually(
        lambda: messages(spark, data, queue).select("offset").count() >= count,
        f"{count} rows",
        20,
    )
    return messages(spark, data, queue).orderBy("offset").collect()


def test_a_dataframe_whose_job_failed_is_written_once(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    """The last task fails the first time, when the others and a part of its own rows have been published."""
    node.declare("orders")
    marker = tmp_path / "failed once"

    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            last = batch.column(0)[batch.num_rows - 1].as_py()
            if last == str(ROWS - 1) and not marker.exists():
                marker.touch()
                raise RuntimeError("this task fails once")
            yield batch

    numbers = spark.range(0, ROWS, 1, PARTITIONS).select(
        f.col("id").cast("string").alias("payload")
    )
    rows = numbers.mapInArrow(failing, "payload string").select(
        "payload",
        f.create_map(f.lit("number"), "payload").alias("headers"),
        f.create_map(f.lit("content_type"), f.lit("text/plain")).alias("properties"),
    )
    writing = rows.write.format("fluxmq").mode("append").option("url", node.url)
    writing = writing.option("queue", "orders").option("producerId", "job 7").option("window", 10)
    with pytest.raises(PySparkException, match="this task fails once"):
        writing.save()
    writing.save()
    found = read_back(spark, tmp_path / "data", "orders", ROWS)
    assert sorted(int(each.payload) for each in found) == list(range(ROWS))
    assert all(each.headers == {"number": each.payload.decode()} for each in found)
    assert {each.properties["content_type"] for each in found} == {"text/plain"}
    with pytest.raises(PySparkException, match="a queue is not replaced, use append"):
        writing.mode("overwrite").save()


def test_a_stream_that_stops_within_a_commit_goes_on_without_loss_or_doubles(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    node.declare("orders")
    source = tmp_path / "lines"
    source.mkdir()
    for number in range(3):
        queues = ["orders"] * 100
        if number == 1:
            queues[60] = "late"
        lines = [f"{queue},{100 * number + at}" for at, queue in enumerate(queues)]
        (source / f"{number}.txt").write_text("\n".join(lines))
    read = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
    rows = read.select(
        f.split("value", ",")[0].alias("routing_key"), f.split("value", ",")[1].alias("payload")
    )
    writing = (
        rows.writeStream.format("fluxmq")
        .option("url", node.url)
        .option("exchange", "")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    with pytest.raises(PySparkException, match="there is no queue 'late'"):
        writing.start().awaitTermination(60)
    node.declare("late")
    for _ in range(2):
        writing.start().awaitTermination(60)
    late = read_back(spark, tmp_path / "data", "late", 1)
    found = read_back(spark, tmp_path / "data", "orders", 299)
    assert sorted(int(each.payload) for each in [*found, *late]) == list(range(300))
    staged = sorted(each.name for each in (tmp_path / "checkpoint/fluxmq-staging").iterdir())
    assert staged == ["batch-0.done", "batch-1.done", "batch-2.done"]
