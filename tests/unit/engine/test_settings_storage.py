"""Settings of storage, and of replicated groups, that decide when checkpoints are taken; and queues that wait for the sync."""

from __future__ import annotations

from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import fill


def test_checkpoint_interval(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, storage={"checkpoint_interval": 5.0})
    node.advance(6)
    checkpoints = node[0].queues.service.durable.checkpoints
    taken = checkpoints.taken
    node.advance(6)
    assert checkpoints.taken == taken  # nothing was written
    fill(node.connect(0, "publisher"), "work", 1)
    node.advance(6)
    assert checkpoints.taken == taken + 1


def test_checkpoint_bytes(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, {"name": "quiet"}, storage={"checkpoint_bytes": 2 << 20})
    publisher = node.connect(0, "publisher")
    service = node[0].queues.service
    assert service.durable.lagging() == []
    for _ in range(12):
        assert publisher.publish("$queue/work", b"x" * 300_000, qos=1) == 0
    assert service.durable.lagging() != []
    node.checkpoint()
    assert service.durable.lagging() == []


def test_wal_direct_io(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    assert node.directories == [node[0].queues.service.logs.directory("wal")]
    node = make_queues({"name": "work"}, storage={"wal_direct_io": False})
    assert node.directories == [""]


def test_snapshots_of_replicated_groups(make_queues: MakeQueues) -> None:
    raft = {
        "enabled": True,
        "snapshot_interval": 10,
        "snapshot_threshold": 5,
        "groups": {"own": {"snapshot_threshold": 3}},
    }
    node = make_queues(
        {"name": "work", "replication": {"enabled": True}},
        {"name": "other", "replication": {"enabled": True, "group": "own"}},
        {
            "name": "third",
            "replication": {"enabled": True, "group": "theirs", "snapshot_threshold": 2},
        },
        {"name": "local"},
        cluster={"raft": raft},
    )
    assert node.group("work").name == "default"
    rules = {
        hosted.group.name: (hosted.look_interval, hosted.entries_max)
        for hosted in node[0].queues.service.groups.values()
    }
    assert rules.pop(node.group("local").name) == (0.0, 0)
    assert rules == {"default": (10.0, 5), "own": (10.0, 3), "theirs": (10.0, 2)}
    service = node[0].queues.service
    node.checkpoint()
    fill(node.connect(0, "publisher"), "work", 4)
    due = service.durable.checkpoints.due
    default = service.groups["default"]
    node[0].reactor.tally.now = node.clock.now = node.clock.now + 11
    assert due([default], 1e9, lambda _hosted: False) == []
    fill(node.connect(0, "publisher"), "work", 3)
    assert due([default], 1e9, lambda _hosted: False) == []  # it was looked at just now
    node[0].reactor.tally.now = node.clock.now = node.clock.now + 11
    assert due([default], 1e9, lambda _hosted: False) == [default]


def test_classic_queues_deliver_before_the_sync_if_one_of_two_keys_says_so(
    make_queues: MakeQueues,
) -> None:
    node = make_queues(
        {"name": "work"},
        {"name": "other", "deliver_before_sync": False},
        {"name": "log", "type": "stream"},
        queue_manager={"deliver_before_sync": True},
    )
    assert node[0].queues.names.before_sync == {"work"}
