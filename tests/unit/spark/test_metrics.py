"""What tasks count, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

import fluxmq_spark
from fluxmq_spark.errors import Damage, SparkSourceError
from fluxmq_spark.metrics import Metrics
from fluxmq_spark.options import read_options
from fluxmq_spark.reading import TaskPartition
from fluxmq_spark.schema import message_schema
from fluxmq_spark.source import BatchReader
from tests.spark_queues import QueueOnDisk


@pytest.fixture
def orders(tmp_path: Path) -> QueueOnDisk:
    """A queue of several segments."""
    made = QueueOnDisk(tmp_path / "data")
    made.fill(3000)
    return made


def reader(orders: QueueOnDisk, tmp_path: Path, **options: str) -> BatchReader:
    """A reader that counts into a directory that is not there yet."""
    given = {"path": str(orders.root), "metricsPath": str(tmp_path / "a" / "metrics"), **options}
    return BatchReader(read_options(given), message_schema(["payload"]))


def test_counts_of_tasks_are_added_up(orders: QueueOnDisk, tmp_path: Path) -> None:
    """Rows are those that were yielded; bytes at least those of the payloads, at most those of the files and a bit."""
    made = reader(orders, tmp_path, minPartitions="3")
    partitions = made.partitions()
    rows = sum(batch.num_rows for each in partitions for batch in made.read(each))
    counted = fluxmq_spark.read_metrics(str(tmp_path / "a" / "metrics"))
    assert (rows, counted.rows, counted.skipped_rows) == (3000, 3000, 0)
    assert counted.tasks == len(partitions) >= 3
    tasks = [each.task for each in partitions if isinstance(each, TaskPartition)]
    assert len(tasks) == len(partitions)
    assert counted.segments == sum(len(task.segment_ranges) for task in tasks)
    assert 300 <= counted.batches <= 300 + counted.segments
    assert counted.bytes > 3000 * 64
    files = list((tmp_path / "a" / "metrics").iterdir())
    assert {file.suffix for file in files} == {".json"}
    assert all(json.loads(file.read_text())["queues"] == ["orders"] for file in files)


def test_a_task_that_is_given_up_counts_what_it_read(orders: QueueOnDisk, tmp_path: Path) -> None:
    """``limit`` has enough before the end."""
    made = reader(orders, tmp_path)
    (partition,) = made.partitions()
    batches = made.read(partition)
    first = next(batches)
    assert isinstance(batches, Generator)
    batches.close()
    counted = fluxmq_spark.read_metrics(str(tmp_path / "a" / "metrics"))
    assert (counted.tasks, counted.rows) == (1, first.num_rows)


def test_a_task_that_fails_counts_nothing(orders: QueueOnDisk, tmp_path: Path) -> None:
    """It is run again, or the query fails."""
    path = orders.segments()[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    made = reader(orders, tmp_path)
    (partition,) = made.partitions()
    with pytest.raises(Damage):
        list(made.read(partition))
    assert fluxmq_spark.read_metrics(str(tmp_path / "a" / "metrics")).tasks == 0
    made = reader(orders, tmp_path, failOnDataLoss="false")
    assert sum(batch.num_rows for batch in made.read(partition)) == 2990
    counted = fluxmq_spark.read_metrics(str(tmp_path / "a" / "metrics"))
    assert (counted.rows, counted.skipped_rows, len(counted.damage)) == (2990, 10, 1)
    assert path.name in counted.damage[0]


def test_no_metrics(tmp_path: Path) -> None:
    """Nothing was read yet; and files that are something else."""
    assert fluxmq_spark.read_metrics(str(tmp_path / "none")) == Metrics(0, 0, 0, 0, 0, 0, ())
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SparkSourceError, match=r"other\.json is not a metrics file"):
        fluxmq_spark.read_metrics(str(tmp_path))
