"""Copies become whole again from those of other nodes: one that lags, one that differs, and damaged ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.model.segments import FOOTER_BYTES, PAGE_BYTES, SegmentError
from fluxmq.model.segments import Footer as SegmentFooter
from fluxmq.storage.files import Files
from fluxmq.storage.snapshots import GroupSnapshotContent, find_snapshots, write_snapshot
from tests.broker import POLL_INTERVAL
from tests.cluster.nodes import Cluster, Node
from tests.cluster.sides import Mqtt
from tests.conformance.client import eventually

GROUP = "default"
BODY = bytes(4000)
SEGMENT_BYTES = 64 << 10
AUDITED = 80
"""Messages of which each is an entry: more than there are between two comparisons."""
SECONDS = 60.0
SETTINGS: dict[str, Any] = {
    "broker": {"max_packet_size": 16 << 10},
    "storage": {"segment_bytes": SEGMENT_BYTES},
    "cluster": {"raft": {"snapshot_interval": "1s", "snapshot_threshold": 50}},
    "queues": [
        {
            "name": "kept",
            "type": "stream",
            "replication": {"enabled": True, "group": GROUP, "distribution_mode": "replicate"},
        },
    ],
}


class Stock:
    """The messages of a test, and where they are. ``leader``: of the group while they are published."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self._stack = stack
        self._count = 0

    def publish(self, count: int) -> None:
        """Publish so many more, each confirmed."""
        publisher = Mqtt(self.cluster.leader(GROUP), self._stack)
        for _ in range(count):
            assert publisher.publish("kept", b"%8d" % self._count + BODY)
            self._count += 1


@pytest.fixture
def stock(cluster: Cluster) -> Iterator[Stock]:
    """Messages."""
    with ExitStack() as stack:
        yield Stock(cluster, stack)


def metric(node: Node, name: str) -> float:
    """A metric of a node, of the group if it has one of each; 0 before there is one."""
    samples = node.broker.metrics(f"fluxmq_raft_{name}")
    own = [value for labels, value in samples.items() if dict(labels).get("group", GROUP) == GROUP]
    return sum(own)


def until(node: Node, name: str, least: float) -> None:
    """Wait until a metric has come so far."""

    def reached() -> bool:
        time.sleep(POLL_INTERVAL)
        return metric(node, name) >= least

    eventually(reached, f"{name} of {node.name} is {least}", SECONDS)


def group_of(node: Node) -> Path:
    """The group's directory."""
    return node.folder / "data" / "groups" / GROUP


def segments(node: Node) -> dict[str, bytes]:
    """What a node has in the queue's segments, by file."""
    files = sorted((group_of(node) / "queues" / "kept").glob("*.seg"))
    return {path.name: path.read_bytes() for path in files}


def is_sealed(content: bytes) -> bool:
    """Whether a segment has its footer."""
    try:
        SegmentFooter.decode(content[-FOOTER_BYTES:])
    except SegmentError:
        return False
    return True


def is_whole(node: Node, leader: Node) -> bool:
    """Whether a node has what the leader has, byte for byte, and takes part."""
    time.sleep(POLL_INTERVAL)
    states = node.broker.metrics("fluxmq_groups").items()
    return (
        metric(node, "applied_index") == metric(leader, "applied_index")
        and segments(node) == segments(leader)
        and not any(value for labels, value in states if ("state", "failed") in labels)
    )


def wait_whole(node: Node, leader: Node) -> None:
    """Wait until a node has everything."""
    eventually(lambda: is_whole(node, leader), f"{node.name} is whole", SECONDS)


def flip(path: Path, position: int) -> None:
    """Turn a bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def test_who_lags_gets_a_snapshot_and_the_same_segments(stock: Stock) -> None:
    cluster = stock.cluster
    node = cluster.followers(GROUP)[0]
    stock.publish(20)
    leader = cluster.leader(GROUP)
    wait_whole(node, leader)
    missing = metric(node, "applied_index")
    node.kill()
    stock.publish(120)
    leader = cluster.leader(GROUP)
    until(leader, "snapshot_index", missing + 60)
    node.start()
    cluster.wait_ready()
    until(node, "snapshots_installed_total", 1)
    wait_whole(node, leader)
    assert sum(map(is_sealed, segments(node).values())) >= 5


def test_a_copy_that_differs_is_found_and_fetched_anew(stock: Stock) -> None:
    cluster = stock.cluster
    stock.publish(20)
    node, leader = cluster.followers(GROUP)[0], cluster.leader(GROUP)
    wait_whole(node, leader)
    node.stop()
    files, directory = Files(), str(group_of(node) / "snapshots")
    newest = find_snapshots(files, directory).valid[0]
    state = GroupSnapshotContent.decode(newest.content)
    machine = msgpack.unpackb(state.machine)
    machine[5] ^= 1  # the rolling hash
    state = GroupSnapshotContent(msgpack.packb(machine), state.voters, state.learners, state.logs)
    write_snapshot(files, directory, newest.index, newest.term, state.encode())
    node.start()
    cluster.wait_ready()
    before = metric(cluster.leader(GROUP), "mismatches_total")
    stock.publish(AUDITED)
    leader = cluster.leader(GROUP)
    until(leader, "mismatches_total", before + 1)
    until(node, "snapshots_installed_total", 1)
    stock.publish(AUDITED)
    wait_whole(node, leader)
    assert metric(leader, "mismatches_total") == before + 1
    assert "a replica is quarantined" in node.broker.log()


def test_damaged_files_are_replaced_by_what_others_have(stock: Stock) -> None:
    cluster = stock.cluster
    stock.publish(60)
    node, leader = cluster.followers(GROUP)[0], cluster.leader(GROUP)
    wait_whole(node, leader)
    node.kill()
    wal = node.folder / "data" / "shards" / "0" / "wal"
    used = [path for path in sorted(wal.glob("*.wal")) if path.read_bytes().rstrip(b"\0")]
    # Well before the end: behind it there are records that were written after it was synced.
    flip(used[0], len(used[0].read_bytes().rstrip(b"\0")) // 2)
    node.start()
    cluster.wait_ready()
    until(node, "damaged_total", 1)
    wait_whole(node, leader)
    assert (wal.parent / "wal.damaged-1").is_dir()
    assert (group_of(node) / "damaged" / "1" / "queues" / "kept").is_dir()
    until(leader, "leader", 1)  # it never ceased to be

    node.kill()
    segment = min((group_of(node) / "queues" / "kept").glob("*.seg"))
    assert is_sealed(segment.read_bytes())
    flip(segment, PAGE_BYTES + 1000)
    node.start()
    cluster.wait_ready()
    consumer = Mqtt(node, stock._stack).consume("kept", limit=500, group="readers", start="next")
    until(node, "damaged_total", 1)
    until(node, "snapshots_installed_total", 1)
    wait_whole(node, leader)
    stock.publish(5)  # they are read from what is in place now
    assert {len(consumer.next(SECONDS).body) for _ in range(5)} == {8 + len(BODY)}
