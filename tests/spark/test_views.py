"""Views and consumer groups' states in Spark: what queries over them say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from fluxmq.model.group_states import GROUPS_NAME, ConsumerGroupState, QueueGroups, encode
from tests.spark_queues import EPOCH_US, QueueOnDisk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORKERS = ConsumerGroupState(
    *("workers", "work", "", 900, 2, ((100, 119, 1), (500, 500, 3)), ((700, 704, 1),)),
    *(100, 21, 5),
)


def test_views_and_states(spark: SparkSession, tmp_path: Path) -> None:
    """One directory, asked all that can be asked of it without its messages."""
    root = tmp_path / "data"
    orders = QueueOnDisk(root)
    orders.fill(1_000)
    other = QueueOnDisk(root, "other", group="local-2")
    other.fill(300, per_batch=3)
    for queue, groups in ((orders, (WORKERS,)), (other, ())):
        state = QueueGroups(EPOCH_US, 0, len(queue.messages), groups)
        (queue.directory / GROUPS_NAME).write_bytes(encode(state))

    def load(**options: str) -> DataFrame:
        reader = spark.read.format("fluxmq").option("path", str(root))
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    batches = load(view="batches")
    totals = batches.groupBy("queue").agg(f.count("*"), f.sum("count"), f.min("first_time"))
    assert {row[0]: tuple(row)[1:3] for row in totals.collect()} == {
        "orders": (100, 1_000),
        "other": (100, 300),
    }
    segments = load(view="segments").groupBy("queue").agg(f.sum("count"), f.sum("bytes")).collect()
    queues = {row["queue"]: row for row in load(view="queues").collect()}
    assert {row[0]: row[1] for row in segments} == {"orders": 1_000, "other": 300}
    assert {row[0]: row[2] for row in segments} == {
        name: row["bytes"] for name, row in queues.items()
    }
    assert queues["other"]["replication_group"] == "local-2"
    (group,) = load(view="groups", columns="consumer_group,lag_messages,lag_seconds").collect()
    assert tuple(group) == ("workers", 121, 0.899)
    # A schema written as text: any columns, any order, all of them nullable.
    chosen = spark.read.format("fluxmq").schema("count long, queue string")
    chosen = chosen.option("path", str(root)).option("view", "queues")
    assert {tuple(row) for row in chosen.load().collect()} == {(1_000, "orders"), (300, "other")}

    states = load(queue="orders", group="workers").groupBy("state").count().collect()
    assert {row["state"]: row["count"] for row in states} == {
        "acknowledged": 900 - 21 - 5,
        "pending": 21,
        "dead": 5,
        "ready": 100,
    }
    unsettled = load(queue="orders", group="workers", state="unacknowledged")
    rows = unsettled.select("offset", "payload", "state").orderBy("offset").collect()
    assert [row["offset"] for row in rows] == [
        *(*range(100, 120), 500, *range(700, 705)),
        *range(900, 1_000),
    ]
    assert all(row["payload"] == orders.messages[row["offset"]].payload for row in rows)
    with pytest.raises(PySparkException, match="no consumer group 'workers'; it has none"):
        load(queue="other", group="workers").collect()
    orders.close()
    other.close()
