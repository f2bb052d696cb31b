"""What is against a node's leaving its cluster, and what would be lost."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from fluxmq.control.node_departure import losses, obstacles, own_queues
from fluxmq.ipc.clusters import LEARNER, RaftListing, RaftRow
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue
from fluxmq.routing.topology.records import QueueRecord, Vhost
from fluxmq.routing.topology.topology import Topology
from tests.unit.control.test_clustering import member, row


def listing(*rows: RaftRow) -> RaftListing:
    return RaftListing(rows)


def away(name: str, **fields: object):
    return replace(member(name), connected=False, **fields)


THREE = (member("a", leads=True), member("b"), member("c"))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (THREE, ""),
        ((member("b", leads=True), member("c")), ""),
        (
            (member("a", leads=True), away("b")),
            "1 voters 0 are in contact, and 1 are needed; start b",
        ),
        ((member("a", leads=True),), "this node has the only copy; fluxmqctl grow g NODE"),
        (
            (*THREE[:2], away("c")),
            "of the other 2 voters 1 are in contact, and 2 are needed; start c",
        ),
        ((*THREE[:2], replace(member("c"), doubt="has lost its data")), "2 are needed; start c"),
        ((replace(member("a"), kind=LEARNER), member("b", leads=True)), ""),
        ((member("a", leads=True), replace(member("b"), kind=LEARNER)), "has the only copy"),
    ],
)
def test_a_group_has_to_go_on_without_the_node(members: tuple[object, ...], reason: str) -> None:
    group = replace(row("g", "a", ("a",)), members=members)
    found = obstacles(listing(group), "a")
    assert len(found) == bool(reason)
    assert reason in "".join(found)


def test_the_only_copy_can_go_to_another_node() -> None:
    group = replace(row("g", "a", ("a",)), members=(member("a", leads=True),))
    assert obstacles(listing(group), "a", ("b",)) == []
    assert len(obstacles(listing(group), "a")) == 1


def test_a_group_without_a_leader_cannot_be_left() -> None:
    group = replace(row("g", "", ("a", "b", "c")), members=THREE)
    assert obstacles(listing(group), "a") == ["group g: has no leader at the moment"]


def test_durable_queues_that_the_node_alone_has_are_lost() -> None:
    topology = Topology()
    topology.apply(AddVhost(Vhost("/")))
    plain = QueueRecord("/", "kept", durable=True, group="local-1@a")
    for queue in (
        plain,
        dataclasses.replace(plain, name="elsewhere", group="local-1@b"),
        dataclasses.replace(plain, name="copied", group="default"),
        dataclasses.replace(plain, name="fleeting", durable=False, group="ephemeral-0@a"),
    ):
        topology.apply(DeclareQueue(queue))
    own = own_queues(topology, "a")
    assert own == [("/", "kept")]
    assert losses(own) == ["this node alone has the queues 'kept' of '/': consume and delete them"]
    assert losses([]) == []
    assert "and 5 more" in losses([("/", str(number)) for number in range(25)])[0]
