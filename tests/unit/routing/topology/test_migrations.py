"""Which group a queue is in: changed by a move that was begun, once, and never by who declares it."""

from __future__ import annotations

import pytest

from fluxmq.routing.topology.changes import (
    AbortMigration,
    AddVhost,
    DeclareQueue,
    FinishMigration,
    MigrateQueue,
)
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, QueueRecord, Vhost
from fluxmq.routing.topology.refusals import NOT_FOUND, PRECONDITION_FAILED, Refusal
from fluxmq.routing.topology.topology import Topology

GROUP = {"x-fluxmq-group": "hot"}
QUEUE = QueueRecord("/", "q", "quorum", durable=True, arguments=GROUP, group="hot")
TO_COLD = MigrateQueue("/", "q", "hot", "cold", "aa")


@pytest.fixture
def topology() -> Topology:
    """One queue."""
    made = Topology()
    made.apply(AddVhost(Vhost("/")))
    made.apply(DeclareQueue(QUEUE))
    return made


def place(topology: Topology) -> tuple[str, str, str]:
    """Where the queue is, and goes."""
    queue = topology.queue("/", "q")
    assert queue is not None
    return queue.group, queue.moving_to, queue.migration


def refused(topology: Topology, change: object) -> Refusal:
    """Why a change is not made."""
    before = place(topology)
    with pytest.raises(Refusal) as refusal:
        topology.apply(change)  # type: ignore[arg-type]
    assert place(topology) == before
    return refusal.value


def test_a_queue_moves_once_it_is_said_to_have_arrived(topology: Topology) -> None:
    topology.apply(TO_COLD)
    assert place(topology) == ("hot", "cold", "aa")
    assert not topology.apply(MigrateQueue("/", "q", "hot", "cold", "bb")).rows  # it does already
    topology.apply(FinishMigration("/", "q", "aa"))
    assert place(topology) == ("cold", "", "aa")


def test_an_aborted_move_cannot_be_finished(topology: Topology) -> None:
    topology.apply(TO_COLD)
    topology.apply(AbortMigration("/", "q"))
    assert place(topology) == ("hot", "", "")
    assert refused(topology, FinishMigration("/", "q", "aa")).code == PRECONDITION_FAILED
    topology.apply(MigrateQueue("/", "q", "hot", "cold", "bb"))
    assert refused(topology, FinishMigration("/", "q", "aa")).code == PRECONDITION_FAILED
    topology.apply(FinishMigration("/", "q", "bb"))
    late = refused(topology, AbortMigration("/", "q"))
    assert "is not being moved; it is in the group 'cold'" in late.text


def test_what_cannot_be_moved_is_refused(topology: Topology) -> None:
    topology.apply(DeclareQueue(QueueRecord("/", "gone", group="ephemeral-1")))
    gone = refused(topology, MigrateQueue("/", "gone", "ephemeral-1", "cold", "aa"))
    assert "is not durable" in gone.text
    assert refused(topology, MigrateQueue("/", "none", "hot", "cold", "aa")).code == NOT_FOUND
    assert "already" in refused(topology, MigrateQueue("/", "q", "hot", "hot", "aa")).text
    wrong = refused(topology, MigrateQueue("/", "q", "warm", "cold", "aa"))
    assert "is in the group 'hot', not in 'warm'" in wrong.text
    topology.apply(TO_COLD)
    elsewhere = refused(topology, MigrateQueue("/", "q", "hot", "warm", "bb"))
    assert "is being moved to the group 'cold'" in elsewhere.text


def test_a_declaration_does_not_move_a_queue(topology: Topology) -> None:
    def declared(group: str | None) -> QueueRecord:
        arguments = {} if group is None else {"x-fluxmq-group": group}
        return QueueRecord("/", "q", "quorum", durable=True, arguments=arguments, group=group or "")

    assert topology.check_queue(declared("hot"))
    with pytest.raises(Refusal, match="fluxmqctl migrate-queue"):
        topology.check_queue(declared("cold"))
    with pytest.raises(Refusal, match="inequivalent arg 'x-fluxmq-group'"):
        topology.check_queue(declared(None))
    topology.apply(TO_COLD)
    topology.apply(FinishMigration("/", "q", "aa"))
    # Its clients say what they always said, or where it is now.
    assert topology.check_queue(declared("hot"))
    assert topology.check_queue(declared("cold"))
    with pytest.raises(Refusal, match="'cold', not in 'warm'"):
        topology.check_queue(declared("warm"))


def test_a_queue_of_the_settings_stays_where_it_is_whatever_the_file_says(
    topology: Topology,
) -> None:
    def of_file(group: str, **arguments: int) -> DeclareQueue:
        queue = QueueRecord(
            *("/", "q", "quorum", True),
            arguments=arguments,
            group=group,
            origin=ORIGIN_SETTINGS,
        )
        return DeclareQueue(queue)

    topology.apply(of_file("hot"))
    topology.apply(of_file("cold", **{"x-max-length": 5}))
    assert place(topology) == ("hot", "", "")
    changed = topology.queue("/", "q")
    assert changed is not None
    assert changed.arguments == {"x-max-length": 5}
    topology.apply(TO_COLD)
    topology.apply(of_file("hot"))
    assert place(topology) == ("hot", "cold", "aa")
    topology.apply(FinishMigration("/", "q", "aa"))
    topology.apply(of_file("hot"))
    assert place(topology) == ("cold", "", "aa")
