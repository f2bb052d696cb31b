"""What fluxmqctl shows of groups and queues."""

from fluxmq.cli.queue_commands import group_lines, milliseconds, queue_lines, size
from fluxmq.ipc.placements import (
    ConsumerGroupRow,
    GroupListing,
    GroupRow,
    Pin,
    PinResult,
    QueueListing,
    QueueRow,
    ReleasedGroup,
    placement_from_body,
    placement_to_body,
    shard_of,
)
from fluxmq.storage.directory import Placement

GROUP = GroupRow(
    "local-1", 0, 4, True, "leader", "", "fsync", 3, 5 << 20, 1234, 7, 5678, 5000, 0, 0.00042
)
QUEUE = QueueRow(
    "orders", "classic", "local-1", 0, "fsync", 100, 4096, 5, 105, 2, 3,
    (ConsumerGroupRow("billing", "work", 3, 10, 4), ConsumerGroupRow("", "work", 0, 0, 0)),
)  # fmt: skip


def test_groups():
    failed = GroupRow(
        "buffered-2", 1, -1, False, "failed", "no such disk", "buffered", 0, 0, 0, 0, 0, 0, 0, 0.0
    )
    lines = group_lines(GroupListing((GROUP, failed), ("shard-2",)), colour=False)
    assert lines[1].split() == (
        [
            "local-1",
            "0",
            "4",
            "pinned",
            "leader",
            "fsync",
            "3",
            "1,234",
            "5.0",
            "MiB",
            "5,678",
            "0.42",
            "ms",
        ]
    )
    assert lines[2].split() == [
        "buffered-2",
        "1",
        "-",
        "failed",
        "buffered",
        "0",
        "0",
        "0",
        "B",
        "0",
        "-",
    ]
    assert lines[-2:] == ["buffered-2: no such disk", "shard-2: did not answer in time"]
    assert group_lines(GroupListing(()), colour=False) == ["there are no replication groups"]


def test_queues():
    lines = queue_lines(QueueListing((QUEUE,), 7), colour=False)
    assert lines[1].split() == [
        "orders",
        "classic",
        "local-1",
        "fsync",
        "100",
        "4.0",
        "KiB",
        "5",
        "105",
        "3",
        "-",
        "-",
        "2",
    ]
    assert lines[2].split() == ["billing", "work", "3", "10", "4"]
    assert lines[3].split() == ["(default)", "work", "0", "0", "0"]
    assert lines[-1] == "7 more queues are not shown"
    assert queue_lines(QueueListing(()), colour=False) == ["there are no queues"]


def test_buffered_queues_are_coloured():
    buffered = QueueRow("q", "classic", "buffered-1", 0, "buffered", 0, 0, 0, 0, 0, 0, ())
    assert "\x1b[33mbuffered" in queue_lines(QueueListing((buffered,)), colour=True)[1]


def test_sizes_and_times():
    assert [size(count) for count in (0, 1023, 1024, 3 << 29)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 GiB",
    ]  # fmt: skip
    assert [milliseconds(seconds) for seconds in (0.0, 0.0001, 1.5)] == [
        "-",
        "0.10 ms",
        "1500.00 ms",
    ]


def test_everything_survives_the_wire():
    groups, queues = GroupListing((GROUP,), ("shard-1",)), QueueListing((QUEUE,), 3, ("shard-1",))
    assert GroupListing.from_body(groups.to_body()) == groups
    assert QueueListing.from_body(queues.to_body()) == queues
    for value in (
        Pin("g", core=1),
        PinResult(1, 4, True, 0.5),
        ReleasedGroup("g", 1, 2, 3, 4, 5, 6, 0.5),
    ):
        assert type(value).from_body(value.to_body()) == value
    placement = Placement(2, 8, {"a": 1}, {"b": 0}, {"c": 1}, 9)
    assert placement_from_body(placement_to_body(placement)) == placement


def test_a_group_is_where_it_is_pinned_noted_or_named():
    placement = Placement(4, 8, {"a": 3, "b": 9}, {"a": 1, "c": 2})
    assert shard_of(placement, "a") == 3
    assert shard_of(placement, "b") == shard_of(Placement(4, 8), "b")  # no such shard any more
    assert shard_of(placement, "c") == 2
    assert {shard_of(Placement(4, 8), f"g{number}") for number in range(100)} == {0, 1, 2, 3}
