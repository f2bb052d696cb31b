"""The stream's reader as Spark's driver uses it: offsets, limits, loss."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.serializers import CPickleSerializer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from fluxmq_spark.errors import Damage, DataLoss, OptionError
from fluxmq_spark.reading import TaskPartition
from fluxmq_spark.schema import message_schema
from fluxmq_spark.source import FluxmqSource
from fluxmq_spark.streaming import StreamReader, shares
from tests.spark_queues import EPOCH_US, QueueOnDisk

ALL = ReadAllAvailable()
SCHEMA = message_schema(("queue", "offset"))


def reader(root: Path, **options: object) -> StreamReader:
    """As Spark makes it, from options as text."""
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in options.items()
    }
    made = FluxmqSource({"path": str(root), **texts}).streamReader(SCHEMA)
    return cast("StreamReader", made)


def rows(made: StreamReader, start: dict[str, int], end: dict[str, int]) -> dict[str, list[int]]:
    """What the tasks of a micro-batch read: offsets by queue. The reader is sent to executors before it was used."""
    found: dict[str, list[int]] = {}
    sparks = CPickleSerializer()
    copy = sparks.loads(sparks.dumps(StreamReader(made._given, SCHEMA)))
    for partition in made.partitions(start, end):
        for batch in copy.read(sparks.loads(sparks.dumps(partition))):
            for queue, offset in zip(*batch.to_pydict().values(), strict=True):
                found.setdefault(queue, []).append(offset)
    return found


def upto(first: int, stop: int) -> list[int]:
    """Offsets."""
    return list(range(first, stop))


@pytest.fixture
def orders(tmp_path: Path) -> QueueOnDisk:
    """A queue of several segments."""
    made = QueueOnDisk(tmp_path / "data", "orders")
    made.fill(2000)
    return made


@pytest.fixture
def audit(orders: QueueOnDisk) -> QueueOnDisk:
    """A small one beside it."""
    made = QueueOnDisk(orders.root, "audit")
    made.fill(100)
    return made


def remake(queue: QueueOnDisk, count: int) -> QueueOnDisk:
    """Delete the queue, and make one of the same name."""
    queue.close()
    shutil.rmtree(queue.directory)
    made = QueueOnDisk(queue.root, "orders")
    made.fill(count)
    return made


# --- where it begins ---


@pytest.mark.parametrize(
    ("options", "offset"),
    [
        ({}, 2000),
        ({"startingOffsets": "latest"}, 2000),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": {"orders": 17}}, 17),
        ({"startingOffsets": {"orders": -2}}, 0),
        ({"startingTimestamp": str(EPOCH_US // 1000 + 55)}, 55),
    ],
)
def test_where_a_new_query_begins(
    orders: QueueOnDisk, options: dict[str, object], offset: int
) -> None:
    """With what comes unless told otherwise, as Kafka's source."""
    assert reader(orders.root, **options).initialOffset() == {"orders": offset}


def test_offsets_that_cannot_be_begun_with(orders: QueueOnDisk) -> None:
    """Not there yet, or not any more."""
    with pytest.raises(OptionError, match="startingOffsets are 2001"):
        reader(orders.root, startingOffsets={"orders": 2001}).initialOffset()
    start = int(orders.segments()[1].stem)
    orders.trim(start)
    with pytest.raises(DataLoss, match=f"offsets 3 to {start - 1} were removed"):
        reader(orders.root, startingOffsets={"orders": 3}).initialOffset()
    lenient = reader(orders.root, startingOffsets={"orders": 3}, failOnDataLoss="false")
    assert lenient.initialOffset() == {"orders": start}


def test_mistakes_are_told_when_spark_first_asks(tmp_path: Path, orders: QueueOnDisk) -> None:
    """Not when the reader is made: Spark loses that error."""
    with pytest.raises(OptionError, match="endingOffsets is for batch reading"):
        reader(orders.root, endingOffsets="latest").getDefaultReadLimit()
    wrong = FluxmqSource({"path": str(orders.root)}).streamReader(message_schema(["state"]))
    with pytest.raises(OptionError, match="state needs group"):
        wrong.getDefaultReadLimit()
    with pytest.raises(OptionError, match="no queue 'ghost'"):
        reader(orders.root, queues="orders,ghost").initialOffset()
    lenient = reader(orders.root, queues="orders,ghost", failOnDataLoss="false")
    assert lenient.initialOffset() == {"orders": 2000}


# --- limits ---


def test_the_limit_is_the_option(orders: QueueOnDisk) -> None:
    """All there is without it."""
    assert reader(orders.root).getDefaultReadLimit() == ALL
    limit = reader(orders.root, maxOffsetsPerTrigger="30").getDefaultReadLimit()
    assert limit == ReadMaxRows(30)


def test_micro_batches_cover_everything_once(orders: QueueOnDisk, audit: QueueOnDisk) -> None:
    """Whatever the limit; each is bounded by it and takes something of both queues."""
    made = reader(orders.root, startingOffsets="earliest")
    offsets = made.initialOffset()
    found: dict[str, list[int]] = {"orders": [], "audit": []}
    batches = 0
    while (end := made.latestOffset(offsets, ReadMaxRows(300))) != offsets:
        batch = rows(made, offsets, end)
        assert sum(map(len, batch.values())) <= 300
        assert set(batch) == {queue for queue in end if end[queue] > offsets[queue]}
        if batches == 0:
            assert {queue: len(offsets) for queue, offsets in batch.items()} == {
                "orders": 286,
                "audit": 14,
            }
            # Spark tries a batch again that was cut short.
            assert rows(made, offsets, end) == batch
        for queue, more in batch.items():
            found[queue] += more
        offsets = end
        batches += 1
    assert found == {"orders": upto(0, 2000), "audit": upto(0, 100)}
    assert batches == 7
    assert made.reportLatestOffset() == {"orders": 2000, "audit": 100}


@pytest.mark.parametrize(
    ("backlogs", "most", "expected"),
    [
        ({"a": 10, "b": 20}, 30, {"a": 10, "b": 20}),
        ({"a": 10, "b": 20}, 100, {"a": 10, "b": 20}),
        ({"a": 100, "b": 300}, 40, {"a": 10, "b": 30}),
        ({"a": 1, "b": 1_000_000}, 10, {"a": 1, "b": 9}),
        ({"a": 0, "b": 50, "c": 0}, 7, {"a": 0, "b": 7, "c": 0}),
        ({"a": 5, "b": 9, "c": 7}, 2, {"a": 0, "b": 1, "c": 1}),
        ({"a": 3, "b": 3, "c": 3}, 8, {"a": 2, "b": 3, "c": 3}),
        ({}, 5, {}),
    ],
)
def test_shares(backlogs: Mapping[str, int], most: int, expected: Mapping[str, int]) -> None:
    """By what waits, never more than that, and one for each queue that has any."""
    found = shares(backlogs, most)
    assert sum(found.values()) == min(most, sum(backlogs.values()))
    assert sorted(found.values()) == sorted(expected.values())
    assert all(found[queue] <= backlogs[queue] for queue in backlogs)


def test_available_now_ends_where_it_began(orders: QueueOnDisk) -> None:
    """What comes later, and queues that do, are not for this run."""
    made = reader(orders.root, startingOffsets="earliest")
    made.prepareForTriggerAvailableNow()
    start = made.initialOffset()
    orders.fill(500)
    QueueOnDisk(orders.root, "later").fill(10)
    middle = made.latestOffset(start, ReadMaxRows(1500))
    assert middle == {"orders": 1500}
    end = made.latestOffset(middle, ReadMaxRows(1500))
    assert end == {"orders": 2000}
    assert made.latestOffset(end, ReadMaxRows(1500)) == end
    # A run that was restarted behind its target.
    assert made.latestOffset({"orders": 2200}, ALL) == {"orders": 2200}


# --- queues that come and go ---


def test_a_new_queue_is_read_from_its_first_message(orders: QueueOnDisk) -> None:
    """Also by a query that began with what came."""
    made = reader(orders.root)
    start = made.initialOffset()
    later = QueueOnDisk(orders.root, "later")
    assert made.latestOffset(start, ALL) == {"orders": 2000, "later": 0}
    later.fill(30)
    orders.fill(5)
    end = made.latestOffset(start, ALL)
    assert end == {"orders": 2005, "later": 30}
    assert rows(made, start, end) == {"orders": upto(2000, 2005), "later": upto(0, 30)}


@pytest.mark.parametrize("options", [{"queues": "orders,audit"}, {}])
def test_a_queue_that_is_gone(
    orders: QueueOnDisk, audit: QueueOnDisk, options: dict[str, object]
) -> None:
    """Loss, or left out from now on, however it was named; before and after a batch was bounded."""
    strict = reader(orders.root, startingOffsets="earliest", **options)
    lenient = reader(orders.root, startingOffsets="earliest", failOnDataLoss="false", **options)
    start, end = strict.initialOffset(), strict.latestOffset(strict.initialOffset(), ALL)
    assert lenient.initialOffset() == start
    audit.close()
    shutil.rmtree(audit.directory)
    with pytest.raises(DataLoss, match="'audit': it is gone; it was read up to offset 0"):
        strict.latestOffset(start, ALL)
    with pytest.raises(DataLoss, match="'audit': it is gone; offsets up to 99"):
        strict.partitions(start, end)
    assert lenient.latestOffset(start, ALL) == {"orders": 2000}
    assert rows(lenient, start, end) == {"orders": upto(0, 2000)}


def test_a_head_that_is_damaged_is_no_queue_that_is_gone(orders: QueueOnDisk) -> None:
    """Else the query would begin again later."""
    made = reader(orders.root, startingOffsets="earliest")
    start = made.initialOffset()
    (orders.directory / "head").write_bytes(bytes(128))
    with pytest.raises(Damage, match="no slot of the head"):
        made.latestOffset(start, ALL)


def test_a_queue_that_was_made_anew(orders: QueueOnDisk) -> None:
    """Shorter than what was read: loss, or read from its first message."""
    strict = reader(orders.root)
    lenient = reader(orders.root, failOnDataLoss="false")
    remake(orders, 300)
    with pytest.raises(DataLoss, match="read up to offset 2000 and has 0 to 299 now"):
        strict.latestOffset({"orders": 2000}, ALL)
    end = lenient.latestOffset({"orders": 2000}, ReadMaxRows(100))
    assert end == {"orders": 100}
    assert rows(lenient, {"orders": 2000}, end) == {"orders": upto(0, 100)}
    with pytest.raises(DataLoss, match="'orders': it was read up to offset 2000"):
        strict.partitions({"orders": 2000}, end)


def test_a_queue_that_was_made_anew_within_a_batch(orders: QueueOnDisk) -> None:
    """The batch was bounded by the old one's end."""
    strict = reader(orders.root)
    lenient = reader(orders.root, failOnDataLoss="false")
    remake(orders, 300)
    with pytest.raises(DataLoss, match="read up to offset 2000"):
        strict.partitions({"orders": 1000}, {"orders": 2000})
    assert rows(lenient, {"orders": 1000}, {"orders": 2000}) == {"orders": upto(0, 300)}


def test_retention_was_faster(orders: QueueOnDisk) -> None:
    """Loss when the batch is planned; or skipped, and not counted as waiting."""
    start = int(orders.segments()[1].stem)
    orders.trim(start)
    strict = reader(orders.root)
    end = strict.latestOffset({"orders": 100}, ReadMaxRows(50))
    with pytest.raises(DataLoss, match=f"offsets 100 to {start - 1} were removed"):
        strict.partitions({"orders": 100}, end)
    lenient = reader(orders.root, failOnDataLoss="false")
    end = lenient.latestOffset({"orders": 100}, ReadMaxRows(50))
    assert end == {"orders": start + 50}
    assert rows(lenient, {"orders": 100}, end) == {"orders": upto(start, start + 50)}
    # A batch that was bounded before all of it was removed.
    assert rows(lenient, {"orders": 100}, {"orders": 150}) == {}


def test_no_queue_yet(tmp_path: Path) -> None:
    """A query may wait for its first."""
    first = QueueOnDisk(tmp_path / "data", "other")
    made = reader(first.root, queuePattern="orders.*")
    assert made.initialOffset() == {}
    assert made.latestOffset({}, cast("ReadLimit", ALL)) == {}
    assert made.partitions({}, {}) == []
    QueueOnDisk(first.root, "orders-eu").fill(3)
    end = made.latestOffset({}, ALL)
    assert rows(made, {}, end) == {"orders-eu": upto(0, 3)}


def test_dead_letters(orders: QueueOnDisk) -> None:
    """Their queue comes when the first message dies."""
    made = reader(orders.root, queue="orders", state="dead-lettered", startingOffsets="earliest")
    assert made.initialOffset() == {}
    QueueOnDisk(orders.root, "$dlq/orders").fill(2)
    lenient = reader(orders.root, queue="orders", state="dead-lettered")
    end = lenient.latestOffset({}, ALL)
    assert end == {"$dlq/orders": 2}
    assert made.latestOffset({}, ALL) == end


def test_tasks_are_cut_as_in_batches(orders: QueueOnDisk) -> None:
    """The options of partitions hold for streams."""
    made = reader(orders.root, minPartitions="4")
    partitions = made.partitions({"orders": 0}, {"orders": 2000})
    assert len(partitions) >= 4
    assert all(isinstance(partition, TaskPartition) for partition in partitions)


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 10_000)), st.integers(1, 20_000))
def test_shares_of_anything(backlogs: dict[str, int], most: int) -> None:
    """All of the limit is used, none takes more than it has, none is left out as long as there is one for each."""
    found = shares(backlogs, most)
    assert sum(found.values()) == min(most, sum(backlogs.values()))
    assert all(0 <= found[queue] <= backlogs[queue] for queue in backlogs)
    if most >= sum(1 for backlog in backlogs.values() if backlog):
        assert all(found[queue] for queue in backlogs if backlogs[queue])
