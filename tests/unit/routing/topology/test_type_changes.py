"""Classic queues that become quorum queues: which can, when they do, and what may be declared then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxmq.routing.topology.changes import (
    AbortMigration,
    AddVhost,
    DeclareQueue,
    FinishMigration,
    MigrateQueue,
)
from fluxmq.routing.topology.mirroring import mirror_policy
from fluxmq.routing.topology.records import (
    ORIGIN_SETTINGS,
    QueueRecord,
    Vhost,
    record_of,
    row_of,
)
from fluxmq.routing.topology.refusals import PRECONDITION_FAILED, Refusal
from fluxmq.routing.topology.topology import Topology
from fluxmq.routing.topology.type_changes import as_quorum

ARGUMENTS: dict[str, Any] = {
    "x-message-ttl": 60_000,
    "x-queue-mode": "lazy",
    "x-queue-version": 1,
    "x-queue-master-locator": "random",
    "x-deliver-before-sync": True,
    "ha-mode": "all",
    "x-unknown": "kept",
}
QUEUE = QueueRecord("/", "q", durable=True, arguments=ARGUMENTS, group="mirrors-1")
CHANGED = {
    "x-message-ttl": 60_000,
    "x-unknown": "kept",
    "x-queue-type": "quorum",
    "x-fluxmq-declared-type": "classic",
}
TO_QUORUM = MigrateQueue("/", "q", "mirrors-1", "leader-node1", "aa", "quorum")


@pytest.fixture
def topology() -> Topology:
    """A mirrored queue."""
    made = Topology()
    made.apply(AddVhost(Vhost("/")))
    made.apply(DeclareQueue(QUEUE))
    return made


def queue_in(topology: Topology) -> QueueRecord:
    """The queue."""
    found = topology.queue("/", "q")
    assert found is not None
    return found


def test_the_type_changes_with_the_group(topology: Topology) -> None:
    topology.apply(TO_QUORUM)
    moving = queue_in(topology)
    assert (moving.type, moving.arguments, moving.group) == ("classic", ARGUMENTS, "mirrors-1")
    assert (moving.moving_to, moving.becomes) == ("leader-node1", "quorum")
    assert mirror_policy(topology, moving) is not None
    topology.apply(FinishMigration("/", "q", "aa"))
    arrived = queue_in(topology)
    assert (arrived.type, arrived.arguments) == ("quorum", CHANGED)
    assert (arrived.group, arrived.moving_to, arrived.becomes) == ("leader-node1", "", "")
    assert mirror_policy(topology, arrived) is None


def test_a_change_that_is_aborted_leaves_nothing_behind(topology: Topology) -> None:
    topology.apply(TO_QUORUM)
    topology.apply(AbortMigration("/", "q"))
    assert queue_in(topology) == QUEUE
    with pytest.raises(Refusal):
        topology.apply(FinishMigration("/", "q", "aa"))
    topology.apply(replace(TO_QUORUM, migration="bb", becomes=""))
    topology.apply(FinishMigration("/", "q", "bb"))
    assert queue_in(topology).type == "classic"


def test_a_move_changes_the_type_or_does_not_until_it_is_over(topology: Topology) -> None:
    topology.apply(TO_QUORUM)
    assert not topology.apply(replace(TO_QUORUM, migration="bb")).rows  # it does already
    with pytest.raises(Refusal, match="is being moved to the group 'leader-node1'"):
        topology.apply(replace(TO_QUORUM, migration="bb", becomes=""))
    topology.apply(AbortMigration("/", "q"))
    topology.apply(replace(TO_QUORUM, becomes=""))
    with pytest.raises(Refusal, match="is being moved to the group 'leader-node1'"):
        topology.apply(TO_QUORUM)


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        (replace(QUEUE, durable=False), "cannot become a quorum queue: it is not durable"),
        (replace(QUEUE, auto_delete=True), "cannot become a quorum queue: it is auto-delete"),
        (replace(QUEUE, origin=ORIGIN_SETTINGS), ": the settings file says its type"),
        (
            replace(QUEUE, durable=False, exclusive=True, arguments={"x-max-priority": 9}),
            ": it is not durable, it is exclusive, it has the argument 'x-max-priority'",
        ),
        (replace(QUEUE, type="quorum"), "is of type quorum: only classic queues become"),
        (replace(QUEUE, type="stream"), "is of type stream: only classic queues become"),
    ],
)
def test_all_that_is_in_the_way_is_named(queue: QueueRecord, why: str) -> None:
    with pytest.raises(Refusal) as refusal:
        as_quorum(queue)
    assert refusal.value.code == PRECONDITION_FAILED
    assert why in refusal.value.text


def test_what_cannot_become_a_quorum_queue_does_not_begin_to_move(topology: Topology) -> None:
    ranked = QueueRecord("/", "r", durable=True, arguments={"x-max-priority": 9}, group="g")
    topology.apply(DeclareQueue(ranked))
    with pytest.raises(Refusal, match="'x-max-priority'"):
        topology.apply(replace(TO_QUORUM, name="r", source="g"))
    assert topology.queue("/", "r") == ranked


TTL = {"x-message-ttl": 60_000}


@pytest.mark.parametrize(
    "arguments",
    [
        ARGUMENTS,
        TTL,
        {**TTL, "x-queue-type": "classic"},
        {**TTL, "x-queue-type": "classic", "x-queue-mode": "default"},
        {**TTL, "x-queue-type": "quorum"},
    ],
)
@pytest.mark.parametrize("default", ["classic", "quorum"])
def test_it_is_declared_as_before_or_as_what_it_is(
    topology: Topology, arguments: dict[str, Any], default: str
) -> None:
    topology.apply(TO_QUORUM)
    topology.apply(FinishMigration("/", "q", "aa"))
    kind = arguments.get("x-queue-type", default)
    assert topology.check_queue(QueueRecord("/", "q", kind, durable=True, arguments=arguments))


@pytest.mark.parametrize(
    ("arguments", "durable", "key"),
    [
        ({}, True, "x-message-ttl"),
        ({**TTL, "x-max-length": 5}, True, "x-max-length"),
        ({**TTL, "x-max-priority": 5}, True, "x-max-priority"),
        ({**TTL, "x-queue-type": "stream"}, True, "x-queue-type"),
        ({**TTL, "x-queue-type": "quorum", "x-queue-mode": "lazy"}, True, "x-queue-mode"),
        (TTL, False, "durable"),
    ],
)
def test_other_declarations_are_refused(
    topology: Topology, arguments: dict[str, Any], durable: bool, key: str
) -> None:
    topology.apply(TO_QUORUM)
    topology.apply(FinishMigration("/", "q", "aa"))
    kind = arguments.get("x-queue-type", "classic")
    declared = QueueRecord("/", "q", kind, durable=durable, arguments=arguments)
    with pytest.raises(Refusal, match=f"inequivalent arg '{key}'"):
        topology.check_queue(declared)


def test_a_queue_that_was_declared_as_a_quorum_queue_is_no_classic_one(topology: Topology) -> None:
    given = {"x-queue-type": "quorum"}
    topology.apply(DeclareQueue(QueueRecord("/", "v", "quorum", durable=True, arguments=given)))
    for arguments in ({}, {"x-queue-type": "classic"}):
        declared = QueueRecord("/", "v", "classic", durable=True, arguments=arguments)
        with pytest.raises(Refusal, match="inequivalent arg 'x-queue-type'"):
            topology.check_queue(declared)


def test_earlier_versions_read_the_rows_of_queues_that_do_not_change_their_type(
    topology: Topology,
) -> None:
    assert "becomes" not in row_of(queue_in(topology))
    topology.apply(TO_QUORUM)
    moving = queue_in(topology)
    assert record_of("queue", moving.key, row_of(moving)) == moving
    assert row_of(moving)["becomes"] == "quorum"
    topology.apply(FinishMigration("/", "q", "aa"))
    assert "becomes" not in row_of(queue_in(topology))
