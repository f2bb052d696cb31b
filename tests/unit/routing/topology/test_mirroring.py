"""Mirrored queues: which are, as their policies and arguments say, and on which nodes."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.routing.topology.changes import AddVhost, SetPolicy
from fluxmq.routing.topology.mirroring import (
    MirrorPolicy,
    first_nodes,
    mirror_policy,
    mirror_policy_of,
    wanted,
)
from fluxmq.routing.topology.records import Policy, QueueRecord, Vhost
from fluxmq.routing.topology.topology import Topology

ALL = MirrorPolicy("all")
ABCD = ("a", "b", "c", "d")


def exactly(count: int) -> MirrorPolicy:
    return MirrorPolicy("exactly", count)


def nodes(*listed: str) -> MirrorPolicy:
    return MirrorPolicy("nodes", nodes=listed)


def idle(_: str) -> int:
    return 0


def queue(**values: Any) -> QueueRecord:
    return QueueRecord("/", "ha.q", **{"durable": True, **values})


def topology(*policies: Policy) -> Topology:
    found = Topology()
    found.apply_all([AddVhost(Vhost("/")), *map(SetPolicy, policies)])
    return found


HA = Policy("/", "ha-all", r"^ha\.", definition={"ha-mode": "all"})


def test_a_policy_mirrors_the_queues_whose_names_match() -> None:
    """S4-08, S4-09, S4-35: as soon as it is there, and no longer than it is."""
    assert mirror_policy(topology(HA), queue()) == ALL
    assert mirror_policy(topology(), queue()) is None
    assert mirror_policy(topology(HA), QueueRecord("/", "other", durable=True)) is None


def test_a_policy_of_higher_priority_that_does_not_mirror_wins() -> None:
    """S4-21: policies are not merged."""
    above = Policy("/", "short", "^ha", priority=1, definition={"max-length": 5})
    assert mirror_policy(topology(HA, above), queue()) is None


@pytest.mark.parametrize(
    "values",
    [
        {"exclusive": True, "durable": False, "owner": "c"},
        {"durable": False},
        {"type": "quorum"},
        {"type": "stream"},
        {"origin": "settings"},
        {"arguments": {"x-fluxmq-group": "default"}},
    ],
)
def test_queues_that_are_never_mirrored(values: dict[str, Any]) -> None:
    """S4-29: exclusive ones, though a policy matches; nor those that are replicated or do not last."""
    assert mirror_policy(topology(HA), queue(**values)) is None


def test_every_key_counts_and_has_a_default() -> None:
    """S4-34, S4-36, S4-58, S4-67, S4-71, S4-75, S4-76."""
    assert mirror_policy_of({}, {"ha-mode": "exactly", "ha-params": 2}) == MirrorPolicy(
        "exactly", 2, (), "manual", 0, "always", "when-synced"
    )
    assert mirror_policy_of(
        {},
        {
            "ha-mode": "nodes",
            "ha-params": ["b", "a", "b"],
            "ha-sync-mode": "automatic",
            "ha-sync-batch-size": 50,
            "ha-promote-on-failure": "when-synced",
            "ha-promote-on-shutdown": "always",
        },
    ) == MirrorPolicy("nodes", 0, ("b", "a"), "automatic", 50, "when-synced", "always")


def test_arguments_mirror_a_queue_too_and_count_before_its_policy() -> None:
    """S3-20."""
    given = queue(arguments={"ha-mode": "exactly", "ha-params": 3, "ha-sync-mode": "automatic"})
    found = mirror_policy(topology(), given)
    assert found == MirrorPolicy("exactly", 3, sync_mode="automatic")
    assert mirror_policy(topology(HA), given) == found
    definition = {"ha-mode": "nodes", "ha-params": ["a"], "ha-promote-on-failure": "when-synced"}
    both = mirror_policy_of({"ha-mode": "all"}, definition)
    assert both == MirrorPolicy("all", promote_on_failure="when-synced")


@pytest.mark.parametrize(
    ("count", "online", "found"),
    [
        (1, ABCD, "a"),
        (2, ABCD, "ab"),
        (3, ABCD, "abc"),
        (5, ABCD, "abcd"),
        (2, ("a",), "a"),
    ],
)
def test_exactly_so_many_copies_or_as_many_as_there_are_nodes(
    count: int, online: tuple[str, ...], found: str
) -> None:
    """S4-10, S4-11, S4-12."""
    assert wanted(exactly(count), "a", (), online, ABCD, idle) == tuple(found)


def test_exactly_replaces_a_lost_mirror_if_another_node_can() -> None:
    """S4-12, and a mirror that is back later is not needed."""
    assert wanted(exactly(2), "a", ("b",), ("a", "c"), ABCD, idle) == ("a", "c")
    assert wanted(exactly(2), "a", ("c",), ABCD, ABCD, idle) == ("a", "c")
    assert wanted(exactly(2), "a", ("b",), ("a",), ("a", "b"), idle) == ("a", "b")
    assert wanted(exactly(2), "a", ("b",), ("a",), ("a", "c"), idle) == ("a",), "it has left"


def test_a_changed_policy_keeps_the_mirrors_that_fit() -> None:
    """S4-16: those that have run longest, synchronised ones before others."""
    assert wanted(exactly(3), "a", ("d",), ABCD, ABCD, idle) == ("a", "d", "b")
    assert wanted(exactly(2), "a", ("d", "c", "b"), ABCD, ABCD, idle) == ("a", "d")
    assert wanted(exactly(2), "a", ("d", "c", "b"), ABCD, ABCD, idle, ("c",)) == ("a", "c")
    assert wanted(ALL, "a", ("d",), ABCD, ABCD, idle) == ("a", "d", "b", "c")
    assert wanted(nodes("b", "c", "d"), "b", ("d", "a"), ABCD, ABCD, idle) == ("b", "d", "c")


def test_new_mirrors_go_where_least_is() -> None:
    load = {"b": 2, "c": 1, "d": 1}.__getitem__
    assert wanted(exactly(2), "a", (), ABCD, ABCD, load) == ("a", "c")
    assert wanted(exactly(4), "a", ("b",), ABCD, ABCD, load) == ("a", "b", "c", "d")


def test_all_nodes_and_those_that_join_have_a_mirror() -> None:
    """S4-14; one whose node is down stays a mirror."""
    assert wanted(ALL, "b", (), ("a", "b"), ("a", "b"), idle) == ("b", "a")
    assert wanted(ALL, "b", ("a",), ("a", "b", "c"), ("a", "b", "c"), idle) == ("b", "a", "c")
    assert wanted(ALL, "b", ("a", "c"), ("b",), ("a", "b", "c"), idle) == ("b", "a", "c")
    assert wanted(ALL, "b", ("a", "c"), ("b",), ("a", "b"), idle) == ("b", "a"), "c has left"


def test_listed_nodes_have_a_mirror_and_unknown_names_are_no_error() -> None:
    """S4-15, S4-36."""
    policy = nodes("c", "rabbit@nodeB", "a")
    assert wanted(policy, "a", (), ABCD, ABCD, idle) == ("a", "c")
    assert wanted(policy, "a", ("c",), ("a",), ABCD, idle) == ("a", "c")
    assert wanted(nodes("nowhere"), "a", ("b",), ABCD, ABCD, idle) == ("a",)


def test_a_declared_queue_begins_on_a_listed_node_if_one_is_online() -> None:
    """S4-15: else on the client's."""
    assert first_nodes(nodes("c", "d"), "a", ABCD, ABCD, idle) == ("c", "d")
    assert first_nodes(nodes("c", "d"), "d", ABCD, ABCD, idle) == ("d", "c")
    load = {"c": 2, "d": 1}.__getitem__
    assert first_nodes(nodes("c", "d"), "a", ABCD, ABCD, load) == ("d", "c")
    assert first_nodes(nodes("c", "d"), "a", ("a", "b"), ABCD, idle) == ("a",)
    assert first_nodes(exactly(2), "b", ABCD, ABCD, idle) == ("b", "a")
    assert first_nodes(ALL, "d", ("d",), ABCD, idle) == ("d",)


def test_a_leader_that_is_no_longer_listed_stays_until_a_mirror_is_synchronised() -> None:
    """S4-26, S4-27, S4-28: [A B] to [C D] passes through [A C D]."""
    policy = nodes("c", "d")
    assert wanted(policy, "a", ("b",), ABCD, ABCD, idle, ("b",)) == ("a", "c", "d")
    assert wanted(policy, "a", ("c", "d"), ABCD, ABCD, idle, ()) == ("a", "c", "d")
    assert wanted(policy, "a", ("c", "d"), ABCD, ABCD, idle, ("d",)) == ("d", "c")
    assert wanted(policy, "a", ("c", "d"), ABCD, ABCD, idle) == ("c", "d")
    assert wanted(policy, "a", ("c",), ("a", "d"), ABCD, idle) == ("a", "c", "d"), "c is down"
    replaced = nodes("c", "b")
    assert wanted(replaced, "a", ("b",), ABCD, ABCD, idle) == ("b", "c"), "b leads at once"
    assert wanted(replaced, "a", ("b",), ABCD, ABCD, idle, ()) == ("a", "b", "c")
