"""Columns of mirrored queues: in rows, and one of them for all queues."""

from __future__ import annotations

import asyncio

from fluxmq.control.columns import MIRROR_PIDS, QUEUE_MIRRORS
from fluxmq.control.listings import Listings
from fluxmq.control.mirrors import (
    MirrorState,
    mirror_columns,
    mirror_state,
    not_mirrored,
    unsynchronised,
)
from fluxmq.ipc.messages import ControlMessage
from fluxmq.ipc.row_messages import LIST, Listed, ListRequest, TableRow
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue, SetPolicy
from fluxmq.routing.topology.mirror_records import begun, removed
from fluxmq.routing.topology.records import Policy, QueueRecord, Vhost
from fluxmq.routing.topology.topology import Topology

STATES = {
    "two.replicas": MirrorState("n1", ("n2", "n3"), ("n2",), ("n2", "n3", "n4"), syncing=True),
    "two.alone": MirrorState("n1"),
}


def listings() -> Listings:
    """Lists of a node whose shards hold nothing: a mirrored queue, one without mirrors, and another."""
    topology = Topology()
    policy = Policy("/", "ha-two", r"^two\.", definition={"ha-mode": "exactly", "ha-params": 2})
    topology.apply_all([AddVhost(Vhost("/")), SetPolicy(policy)])
    topology.apply_all(
        [DeclareQueue(QueueRecord("/", each, durable=True)) for each in (*STATES, "plain")]
    )
    return Listings(lambda: topology, list, mirrors=lambda queue: STATES.get(queue.name))


def listed(*columns: str) -> dict[str, TableRow]:
    wanted = ListRequest("queues", ("name", *columns), "/")
    body = asyncio.run(listings().answer(ControlMessage(LIST, 1, wanted.to_body())))
    return {str(row["name"]): row for row in Listed.from_body(body).rows}


def test_mirrors_are_listed_with_the_policy_and_the_leader() -> None:
    """S4-07, S4-20, S4-54: under the names of before, too."""
    rows = listed("policy", "pid", *MIRROR_PIDS)
    row = rows["two.replicas"]
    number = str(row["pid"]).split(".")[2]
    assert row["policy"] == "ha-two"
    assert row["pid"] == f"<n1.1.{number}.0>"
    assert row["mirror_pids"] == row["slave_pids"] == [f"<n2.1.{number}.0>", f"<n3.1.{number}.0>"]
    assert row["synchronised_mirror_pids"] == [f"<n2.1.{number}.0>"]
    assert row["synchronised_slave_pids"] == row["synchronised_mirror_pids"]


def test_a_mirrored_queue_without_mirrors_differs_from_one_that_is_not_mirrored() -> None:
    """S4-10, S4-18."""
    rows = listed(*QUEUE_MIRRORS)
    assert [rows["two.alone"][each] for each in MIRROR_PIDS] == [[], [], [], []]
    assert {rows["plain"][each] for each in QUEUE_MIRRORS} == {None}
    assert listed("leader")["two.alone"]["leader"] == "n1"


def test_a_list_may_be_sorted_by_mirrors() -> None:
    topology = Topology()
    queues = [QueueRecord("/", each, durable=True) for each in (*STATES, "plain")]
    columns = Listings(lambda: topology, list, mirrors=lambda queue: STATES.get(queue.name)).columns
    assert asyncio.run(columns.values(queues, "mirror_nodes")) == [["n2", "n3"], [], None]
    assert asyncio.run(columns.values(queues, "mirrors_syncing")) == [True, False, None]


def test_the_state_of_a_queue_is_that_of_its_groups_record() -> None:
    """S4-18, S4-52: mirrors that are online, and those of them that are synchronised."""
    record = removed(begun(["n1", "n2", "n3"], 5, "always", "when-synced"), "n2")
    assert mirror_state(record, {"n1", "n3"}, syncing=False) == MirrorState(
        "n1", ("n3",), ("n3",), ("n3", "n2")
    )
    assert mirror_state(record, {"n2", "n4"}, ("n2", "n4"), syncing=True) == MirrorState(
        "n1", ("n2", "n4"), (), ("n3", "n2", "n4"), syncing=True
    )


def test_a_queue_whose_mirrors_are_still_to_be_synchronised_has_them() -> None:
    """S4-51, S4-52."""
    assert unsynchronised("n1", ("n1", "n2", "n3"), {"n1", "n3"}, syncing=True) == MirrorState(
        "n1", ("n3",), (), ("n2", "n3"), syncing=True
    )
    assert unsynchronised("n1", ("n1",), {"n1"}, syncing=True) is None
    assert unsynchronised("n1", (), {"n1"}, syncing=False) is None


def test_without_a_cluster_nothing_is_mirrored() -> None:
    queue = QueueRecord("/", "two.replicas", durable=True)
    assert mirror_columns(queue, not_mirrored(queue)) == dict.fromkeys(QUEUE_MIRRORS)
