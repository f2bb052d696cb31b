"""What a leader had handed out when it was lost, and nobody else knew of, comes again marked."""

from __future__ import annotations

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.ports import Attached, AttachRequest, ConsumerHandle
from tests.unit.engine.test_replica_client import Port
from tests.unit.replication.trio import Trio, message

WANTED = AttachRequest("work", "g", "member", b"", None, 10, 1)


def attached(group: ReplicationGroup) -> Port:
    """A consumer of a group that is led here."""
    port = Port()
    answers: list[tuple[Attached, ConsumerHandle | None]] = []
    group.attach(WANTED, port, lambda answer, held: answers.append((answer, held)))
    return port


def test_what_was_handed_out_by_a_leader_that_is_lost_is_marked(trio: Trio) -> None:
    leader = trio.elect(1)
    before = attached(leader.group)
    trio.settle()
    leader.group.append("work", message(b"m"), None)
    trio.settle()
    trio.cut = {1}
    leader.group.work()
    assert before.got == [(b"m", 1)]  # and nobody else hears of it

    other = trio.elect(2)
    after = attached(other.group)
    trio.settle()
    other.group.work()
    assert after.got == [(b"m", 2)]
