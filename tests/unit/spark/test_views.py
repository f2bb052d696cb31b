"""What files say of themselves: batches, segments, queues and groups as rows, and what damage does to them."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import StructType

from fluxmq.model.batch_format import parse
from fluxmq.model.batches import BatchMessage, encode
from fluxmq.model.group_states import GROUPS_NAME, ConsumerGroupState, QueueGroups
from fluxmq.model.group_states import encode as encode_groups
from fluxmq_spark import headers, views
from fluxmq_spark.errors import Damage, DataLoss, OptionError
from fluxmq_spark.options import ReadOptions, given_options, read_options
from fluxmq_spark.views import ViewReader, view_reader, view_schema
from tests.spark_queues import EPOCH_US, QueueOnDisk, messages_of

Rows = list[dict[str, Any]]


def time(microseconds: int) -> datetime:
    """A column's value for a time."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def options_of(root: Path, view: str, **options: object) -> ReadOptions:
    """Options of a view."""
    return read_options(given_options(str(root), {"view": view, **options}))


def sent(thing: Any) -> Any:
    """A thing as Spark brings it to an executor."""
    serializer = CloudPickleSerializer()
    return serializer.loads(serializer.dumps(thing))


def reader_of(root: Path, view: str, schema: StructType | None = None, **options: object) -> Any:
    """A view's reader, as an executor gets it."""
    made = view_reader(view, options_of(root, view, **options), schema or view_schema(view))
    return sent(made)


def rows_of(root: Path, view: str, schema: StructType | None = None, **options: object) -> Rows:
    """All rows of a view."""
    reader = reader_of(root, view, schema, **options)
    assert isinstance(reader, ViewReader)
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(sent(partition))
        for row in batch.to_pylist()
    ]


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[QueueOnDisk]:
    """A queue of 2,000 messages in several segments, the first of which are gone."""
    queue = QueueOnDisk(tmp_path / "data")
    queue.fill(2_000)
    queue.trim(505)
    yield queue
    queue.close()


def test_batches_are_what_was_appended(orders: QueueOnDisk) -> None:
    rows = rows_of(orders.root, "batches", queue="orders")
    assert [row["base_offset"] for row in rows] == list(range(500, 2_000, 10))
    assert {row["queue"] for row in rows} == {"orders"}
    for row in rows:
        messages = orders.messages[row["base_offset"] : row["base_offset"] + 10]
        with open(row["segment"], "rb") as file:
            file.seek(row["position"])
            data = file.read(row["bytes"])
        batch = parse(data)
        assert [batch.payload(index) for index in range(10)] == [each.payload for each in messages]
        assert row["count"] == batch.count == 10
        assert row["first_time"] == time(messages[0].time_us)
        assert row["last_time"] == time(messages[-1].time_us)
        assert (row["key_bytes"], row["property_bytes"], row["payload_bytes"]) == (9, 0, 640)
        assert (row["term"], row["flags"]) == (batch.term, batch.flags)
        assert int(row["payload_check"], 16) == batch.payload_check
        assert len(row["payload_check"]) == 16
    sealed = rows_of(orders.root, "segments")
    assert {row["segment"] for row in rows} == {row["file"] for row in sealed}


def test_a_batch_that_is_larger_than_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "WINDOW_BYTES", 4096)
    queue = QueueOnDisk(tmp_path / "data")
    sizes = [10, 5_000, 4_096 - 64 - 8, 1, 20_000, 30_000, 7]
    for offset, size in enumerate(sizes):
        (message,) = messages_of([b"x" * size])
        queue.append([message._replace(time_us=EPOCH_US + offset)])
    queue.close()
    rows = rows_of(tmp_path / "data", "batches")
    assert [row["payload_bytes"] for row in rows] == sizes
    assert [row["base_offset"] for row in rows] == list(range(len(sizes)))


def test_segments_are_what_the_log_has(orders: QueueOnDisk) -> None:
    rows = rows_of(orders.root, "segments")
    state = orders.log.state()
    assert [row["base_offset"] for row in rows] == [each.base_offset for each in state.segments]
    for row, segment in zip(rows, state.segments, strict=True):
        path = Path(row["file"])
        assert path.name == f"{segment.base_offset:020d}.seg"
        assert row["bytes"] == path.stat().st_size == segment.file_bytes
        assert (row["next_offset"], row["sealed"]) == (segment.next_offset, segment.sealed)
        assert row["count"] == segment.next_offset - segment.base_offset
        assert row["first_time"] == row["created"] == time(segment.created)
        assert row["last_time"] == time(segment.last_time)
        assert row["hash"] == (segment.hash.hex() if segment.sealed else None)
        assert (row["queue"], row["replication_group"]) == ("orders", "default")


def test_queues_are_summed_up(orders: QueueOnDisk) -> None:
    empty = QueueOnDisk(orders.root, "empty", group="other")
    empty.close()
    rows = {row["queue"]: row for row in rows_of(orders.root, "queues")}
    assert rows["orders"] == {
        "queue": "orders",
        "replication_group": "default",
        "start": 505,
        "committed": 2_000,
        "count": 1_495,
        "bytes": sum(path.stat().st_size for path in orders.segments()),
        "segments": len(orders.segments()),
        "first_time": time(EPOCH_US + 505 * 1000),
        "last_time": time(EPOCH_US + 1_999 * 1000),
    }
    assert rows["empty"]["replication_group"] == "other"
    assert (rows["empty"]["count"], rows["empty"]["first_time"]) == (0, None)
    assert (rows["empty"]["last_time"], rows["empty"]["segments"]) == (None, 0)


def write_groups(queue: QueueOnDisk, next_offset: int, *groups: ConsumerGroupState) -> None:
    """Write the file as the broker does."""
    state = QueueGroups(EPOCH_US + 9_000_000, queue.log.start_offset, next_offset, groups)
    (queue.directory / GROUPS_NAME).write_bytes(encode_groups(state))


WORKERS = ConsumerGroupState(
    *("workers", "work", "", 1_000, 2, ((700, 709, 1), (990, 994, 2)), ((800, 800, 1),)),
    *(700, 15, 1),
)
READERS = ConsumerGroupState("readers", "stream", "a/#", 1_500, 1, (), (), 1_500, 0, 0)
DONE = ConsumerGroupState("done", "work", "", 2_000, 0, (), (), 2_000, 0, 0)
LATE = ConsumerGroupState("late", "work", "", 100, 0, (), (), 100, 0, 0)


def test_groups_say_how_far_behind_they_are(orders: QueueOnDisk) -> None:
    write_groups(orders, 2_000, WORKERS, READERS, DONE, LATE)
    rows = {row["consumer_group"]: row for row in rows_of(orders.root, "groups")}
    assert rows["workers"] == {
        "queue": "orders",
        "replication_group": "default",
        "consumer_group": "workers",
        "mode": "work",
        "filter": "",
        "members": 2,
        "cursor": 1_000,
        "floor": 700,
        "ready": 1_000,
        "pending": 15,
        "dead": 1,
        "lag_messages": 1_015,
        "lag_seconds": (1_999 - 700) / 1000,
        "as_of": time(EPOCH_US + 9_000_000),
    }
    assert (rows["readers"]["mode"], rows["readers"]["filter"]) == ("stream", "a/#")
    assert (rows["readers"]["lag_messages"], rows["readers"]["lag_seconds"]) == (500, 0.499)
    assert (rows["done"]["lag_messages"], rows["done"]["lag_seconds"]) == (0, 0.0)
    # What retention removed is nobody's to settle.
    assert (rows["late"]["ready"], rows["late"]["lag_seconds"]) == (1_495, (1_999 - 505) / 1000)


def test_a_group_file_is_of_its_own_moment(orders: QueueOnDisk) -> None:
    write_groups(orders, 1_800, DONE._replace(cursor=1_790, floor=1_790))
    (row,) = rows_of(orders.root, "groups")
    assert (row["ready"], row["lag_messages"], row["lag_seconds"]) == (10, 10, 0.009)


def test_queues_of_which_nothing_was_written_have_no_rows(
    orders: QueueOnDisk, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert rows_of(orders.root, "groups") == []
    assert "has not written where" in caplog.text


def test_a_schema_of_the_users_own(orders: QueueOnDisk) -> None:
    schema = StructType([view_schema("batches")[name] for name in ("count", "base_offset")])
    for field in schema:
        field.nullable = True
    reader = reader_of(orders.root, "batches", schema)
    (partition, *_) = reader.partitions()
    (batch,) = reader.read(partition)
    assert batch.schema.names == ["count", "base_offset"]
    assert all(field.nullable for field in batch.schema)
    assert view_schema("groups", ["as_of", "queue"]).names == ["as_of", "queue"]
    with pytest.raises(OptionError, match=r"no column 'offset'.*no column 'key'"):
        view_schema("batches", ["offset", "key"])
    with pytest.raises(OptionError, match="no column 'cursor'"):
        view_reader("batches", options_of(orders.root, "batches"), view_schema("groups"))


def test_many_queues_share_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PARTITIONS_MAX", 4)
    monkeypatch.setattr(views, "ROWS_MAX", 2)
    root = tmp_path / "data"
    for number in range(18):
        queue = QueueOnDisk(root, f"q{number:02d}")
        queue.fill(30)
        queue.close()
    for view in ("queues", "segments", "batches"):
        reader = reader_of(root, view)
        partitions = reader.partitions()
        assert len(partitions) == 4
        batches = [batch for each in partitions for batch in reader.read(each)]
        assert max(batch.num_rows for batch in batches) == 2
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert [row["queue"] for row in rows] == sorted(row["queue"] for row in rows)
        assert len(rows) == 18 * (3 if view == "batches" else 1)
    reader = reader_of(root, "queues", queuePattern="nothing")
    assert reader.partitions() == []
    assert list(reader.read(None)) == []


# --- damage ----------------------------------------------------------------------------------------------------------


def flip(path: Path, position: int) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("field", [0, 8, 16, 24, 40, 63])
def test_a_header_that_is_not_right(orders: QueueOnDisk, field: int) -> None:
    rows = rows_of(orders.root, "batches")
    victim = rows[12]
    assert rows[11]["segment"] == victim["segment"] == rows[13]["segment"]
    flip(Path(victim["segment"]), victim["position"] + field)
    with pytest.raises(Damage) as damage:
        rows_of(orders.root, "batches")
    assert (damage.value.path, damage.value.position) == (victim["segment"], victim["position"])
    rest = rows_of(orders.root, "batches", failOnDataLoss=False)
    assert rest == [row for row in rows if row != victim]


def test_a_batch_of_another_offset_is_shown_when_damage_is_not_fatal(orders: QueueOnDisk) -> None:
    """Whoever audits a log wants to see it."""
    rows = rows_of(orders.root, "batches")
    victim = rows[12]
    path = Path(victim["segment"])
    data = bytearray(path.read_bytes())
    first, stop = victim["position"], victim["position"] + victim["bytes"]
    again = parse(bytes(data[first:stop]))
    again.stamp(again.base_offset - 10, again.base_time, again.term)
    data[first:stop] = again.header() + bytes(again.body())
    path.write_bytes(data)
    with pytest.raises(Damage, match="should follow"):
        rows_of(orders.root, "batches")
    shown = rows_of(orders.root, "batches", failOnDataLoss=False)
    assert [row["base_offset"] for row in shown] == [
        row["base_offset"] - 10 * (row == victim) for row in rows
    ]


def test_a_batch_inside_a_message_is_not_taken_for_one(tmp_path: Path) -> None:
    queue = QueueOnDisk(tmp_path / "data")
    inner = encode(messages_of([b"inner"]), base_offset=0)
    for number in range(20):
        queue.append([BatchMessage(b"", b"", inner * 3, EPOCH_US + number)])
    queue.close()
    rows = rows_of(tmp_path / "data", "batches")
    assert [row["base_offset"] for row in rows] == list(range(20))
    flip(Path(rows[5]["segment"]), rows[5]["position"] + 1)
    rest = rows_of(tmp_path / "data", "batches", failOnDataLoss=False)
    assert [row["base_offset"] for row in rest] == [*range(5), *range(6, 20)]


def test_a_segment_that_is_cut(orders: QueueOnDisk) -> None:
    rows = rows_of(orders.root, "batches")
    path = orders.segments()[1]
    lost = [row for row in rows if row["segment"] == str(path)][20:]
    os.truncate(path, lost[0]["position"] + 30)
    for view in ("batches", "segments"):
        with pytest.raises(Damage) as damage:
            rows_of(orders.root, view)
        assert damage.value.path == str(path)
    rest = rows_of(orders.root, "batches", failOnDataLoss=False)
    # A segment that was full ends with a footer: the last bytes are taken for one, and what they belong to is lost too.
    assert [row for row in rows if row not in [*lost, *rest]] == [
        row
        for row in rows
        if row["position"] == lost[0]["position"] - row["bytes"] and row["segment"] == str(path)
    ]
    segments = rows_of(orders.root, "segments", failOnDataLoss=False)
    assert str(path) not in {row["file"] for row in segments}
    assert len(segments) == len(orders.segments()) - 1


def test_a_page_of_another_queue(orders: QueueOnDisk) -> None:
    other = QueueOnDisk(orders.root, "other")
    other.fill(600)
    other.close()
    victim = orders.segments()[1]
    shutil.copyfile(other.segments()[0], victim)
    for view in ("batches", "segments"):
        with pytest.raises(Damage, match="byte 0: the page is of queue 'other'"):
            rows_of(orders.root, view, queue="orders")


def test_an_index_of_no_use_changes_nothing(orders: QueueOnDisk) -> None:
    write_groups(orders, 2_000, WORKERS)
    before = {view: rows_of(orders.root, view) for view in ("batches", "queues", "groups")}
    for number, path in enumerate(sorted(orders.directory.glob("*.idx"))):
        if number % 3 == 0:
            path.unlink()
        elif number % 3 == 1:
            path.write_bytes(os.urandom(161))
        else:
            path.write_bytes(b"\x08\0\0\0" * 40)
    assert {view: rows_of(orders.root, view) for view in before} == before


def test_a_segment_that_retention_takes_while_it_is_looked_at(orders: QueueOnDisk) -> None:
    reader = reader_of(orders.root, "batches")
    partitions = reader.partitions()
    start = orders.log.state().segments[2].base_offset
    orders.trim(start)
    rows = [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
    assert [row["base_offset"] for row in rows] == list(range(start, 2_000, 10))


def test_a_segment_that_is_gone_for_no_reason(orders: QueueOnDisk) -> None:
    reader = reader_of(orders.root, "batches")
    partitions = reader.partitions()
    orders.segments()[1].unlink()
    with pytest.raises(DataLoss, match="is missing, although the head keeps its messages"):
        list(reader.read(partitions[1]))
    skipping = reader_of(orders.root, "batches", failOnDataLoss=False)
    assert list(skipping.read(partitions[1])) == []


def test_a_group_file_that_is_not_right(orders: QueueOnDisk) -> None:
    write_groups(orders, 2_000, WORKERS)
    flip(orders.directory / GROUPS_NAME, 40)
    with pytest.raises(Damage, match="groups, byte 0: the group file does not match its checksum"):
        rows_of(orders.root, "groups")
    assert rows_of(orders.root, "groups", failOnDataLoss=False) == []
