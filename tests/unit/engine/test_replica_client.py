"""A copy that consumers read from while another node leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.memory import MemoryDriver, MemoryStores
from fluxmq.engine.ports import (
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    GetCallback,
    QueueStats,
    Range,
)
from fluxmq.engine.replica_client import ReplicaClient
from fluxmq.model.outcomes import Outcome, QueueOutcome
from fluxmq.queues import commands
from fluxmq.queues.commands import encode_entry
from fluxmq.queues.config import QueueConfig
from fluxmq.storage.errors import Corruption
from tests.unit.replication.trio import NOW_US, message

WANTED = AttachRequest("work", "g", "member", b"", None, 10, 1)


class Leader:
    """Who leads on another node."""

    def __init__(self) -> None:
        self.wanted: AttachRequest | None = None
        self.port: Any = None
        self.done: Any = None
        self.taken: list[GetCallback] = []
        self.settled: list[tuple[int, list[Range]]] = []
        self.detached = self.stopped = False
        self.limits: list[int] = []
        self.commits: list[int] = []

    def attach(
        self,
        wanted: AttachRequest,
        port: Any,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        """Take a consumer."""
        self.wanted, self.port = wanted, port
        done(Attached(0, "g"), self)

    def settle(
        self,
        verb: int,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: AppendCallback | None,
    ) -> None:
        """Remember."""
        self.settled.append((verb, list(ranges)))

    def commit(self, offset: int, done: AppendCallback | None) -> None:
        """Remember."""
        self.commits.append(offset)

    def set_limit(self, limit: int) -> None:
        """Remember."""
        self.limits.append(limit)

    def take(self, done: GetCallback) -> None:
        """Remember."""
        self.taken.append(done)

    def stop(self) -> None:
        """Remember."""
        self.stopped = True

    def detach(self) -> None:
        """Remember."""
        self.detached = True


class Port:
    """A client's consumer."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, int]] = []
        self.ended = False

    def deliver(
        self, batch: Any, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Messages."""
        self.got += [(bytes(batch.payload(at)), attempts) for at in range(first, first + count)]

    def cancelled(self) -> None:
        """The end."""
        self.ended = True


class Copy:
    """A group that another node leads; the test applies its entries."""

    def __init__(self) -> None:
        stores = MemoryStores()
        self.group = ReplicationGroup(
            "g", stores, lambda _g: None, lambda _g, _d: None, lambda: NOW_US, 1, 1 << 20
        )
        self.group.driver = MemoryDriver(self.group)
        self.leader: Leader | None = Leader()
        self.host = ReplicaClient(self.group, lambda: self.leader)  # type: ignore[arg-type,return-value]
        self.group.on_applied = self.host.applied
        self.index = 0
        self.apply(commands.declare(QueueConfig("work", max_depth=0)))
        self.port = Port()
        self.held: ConsumerHandle | None = None

    def apply(self, *command: bytes) -> None:
        """An entry is committed."""
        self.index += 1
        self.group.apply(self.index, 1, encode_entry(NOW_US, list(command)))

    def append(self, *bodies: bytes) -> None:
        """Messages are committed."""
        for body in bodies:
            batch = message(body)
            state = self.group.machine.queue("work")
            assert state is not None
            self.apply(commands.append_header(state.id, len(batch), 0) + batch)

    def attach(self) -> tuple[Leader, ConsumerHandle]:
        """A consumer comes."""
        answers: list[tuple[Attached, ConsumerHandle | None]] = []
        self.host.attach(WANTED, self.port, lambda answer, held: answers.append((answer, held)))
        ((_, held),) = answers
        assert held is not None
        assert self.leader is not None
        return self.leader, held


@pytest.fixture
def copy() -> Copy:
    """A copy with a queue."""
    return Copy()


def test_messages_come_out_of_the_copy_when_they_are_there(copy: Copy) -> None:
    leader, _ = copy.attach()
    assert leader.wanted == WANTED.__class__(**{**_fields(WANTED), "references": True})
    copy.append(b"0", b"1")
    leader.port.refer(0, 2, 1, -1)
    assert copy.port.got == [(b"0", 1), (b"1", 1)]
    leader.port.refer(2, 2, 3, -1)  # these were committed elsewhere and are on their way
    assert copy.port.got[2:] == []
    copy.append(b"2")
    assert copy.port.got[2:] == []
    copy.append(b"3")
    assert copy.port.got[2:] == [(b"2", 3), (b"3", 3)]


def _fields(wanted: AttachRequest) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in wanted.__dataclass_fields__}


def test_a_message_taken_is_there_before_it_is_said_to_be(copy: Copy) -> None:
    leader, held = copy.attach()
    said: list[tuple[bool, int, int]] = []
    held.take(lambda found, ready: said.append((found, ready, len(copy.port.got))))
    leader.port.refer(0, 1, 1, -1)
    leader.taken[0](True, 5)
    assert said == []
    copy.append(b"0")
    assert said == [(True, 5, 1)]
    held.take(lambda found, ready: said.append((found, ready, len(copy.port.got))))
    leader.taken[1](False, 0)
    assert said[1:] == [(False, 0, 1)]


@pytest.mark.parametrize("by_leader", [True, False])
def test_a_consumer_that_goes_waits_for_nothing(copy: Copy, by_leader: bool) -> None:
    leader, held = copy.attach()
    said: list[bool] = []
    held.take(lambda found, _ready: said.append(found))
    leader.port.refer(0, 1, 1, -1)
    leader.taken[0](True, 0)
    if by_leader:
        leader.port.cancelled()
    else:
        held.detach()
    assert (said, copy.port.ended, leader.detached) == ([False], by_leader, not by_leader)
    copy.append(b"0")
    assert copy.port.got == []


def test_what_the_copy_has_no_longer_is_left_to_others(copy: Copy) -> None:
    leader, held = copy.attach()
    copy.append(b"0", b"1")
    said: list[bool] = []
    held.take(lambda found, _ready: said.append(found))
    state = copy.group.machine.queue("work")
    assert state is not None
    copy.group.logs[state.id].trim(1)
    leader.port.refer(0, 1, 1, -1)
    assert copy.port.got == []
    assert leader.settled == [(commands.Verb.RELEASE, [(0, 0)])]
    leader.taken[0](True, 1)
    assert said == [False]


def test_everything_else_is_the_leaders(copy: Copy) -> None:
    leader, held = copy.attach()
    held.settle(commands.Verb.ACK, [(0, 0)], 0, b"", None)
    held.commit(4, None)
    held.set_limit(7)
    held.stop()
    assert (leader.settled, leader.commits) == ([(commands.Verb.ACK, [(0, 0)])], [4])
    assert (leader.limits, leader.stopped) == ([7], True)
    said: list[Any] = []
    copy.host.append("work", b"", said.append)
    copy.host.status("work", said.append)
    copy.host.purge("work", said.append)
    copy.host.delete("work", False, False, said.append)
    assert said == [Outcome.MOVED, *[QueueStats(QueueOutcome.UNAVAILABLE)] * 3]
    copy.leader = None
    copy.host.attach(WANTED, copy.port, lambda answer, _held: said.append(answer.reason))
    assert said[4:] == [Outcome.MOVED]


def test_consumers_of_a_copy_that_is_replaced_are_let_go(copy: Copy) -> None:
    leader, held = copy.attach()
    said: list[bool] = []
    held.take(lambda found, _ready: said.append(found))
    leader.port.refer(0, 1, 1, -1)
    leader.taken[0](True, 0)
    copy.host.close()
    assert (said, copy.port.ended, leader.detached) == ([False], True, True)
    copy.append(b"0")
    assert copy.port.got == []
    answers: list[tuple[Attached, ConsumerHandle | None]] = []
    copy.host.attach(WANTED, copy.port, lambda *answer: answers.append(answer))
    assert [(each.reason, held) for each, held in answers] == [(Outcome.MOVED, None)]


@pytest.mark.uncompiled
@pytest.mark.parametrize("end", ["closed", "damaged"])
def test_a_consumer_that_a_copy_took_too_late_is_attached_to_the_next(copy: Copy, end: str) -> None:
    leader = copy.leader
    copy.group.driver.damaged = lambda _why: None  # type: ignore[assignment, method-assign]
    assert leader is not None
    waiting: list[Callable[[], None]] = []

    def attach(
        wanted: AttachRequest, port: Any, done: Callable[[Attached, ConsumerHandle | None], None]
    ) -> None:
        waiting.append(lambda: done(Attached(0, "g"), leader))

    leader.attach = attach  # type: ignore[method-assign]
    answers: list[tuple[Attached, ConsumerHandle | None]] = []
    copy.host.attach(WANTED, copy.port, lambda *answer: answers.append(answer))
    if end == "closed":
        copy.host.close()
    else:
        copy.host.damaged("a bit was turned")
    waiting[0]()
    assert leader.detached
    assert [(each.reason, held) for each, held in answers] == [(Outcome.MOVED, None)]


@pytest.mark.uncompiled
def test_a_damaged_copy_is_not_read_any_more(copy: Copy) -> None:
    told: list[str] = []
    copy.group.driver.damaged = told.append  # type: ignore[assignment, method-assign]
    leader, _ = copy.attach()
    copy.append(b"0", b"1")
    state = copy.group.machine.queue("work")
    assert state is not None

    def read(offset: int) -> Any:
        raise Corruption("file", 7, "a bit was turned")

    copy.group.logs[state.id].read = read  # type: ignore[method-assign]
    leader.port.refer(0, 2, 1, -1)
    assert (copy.port.got, copy.port.ended, leader.detached) == ([], True, True)
    assert told == ["file, byte 7: a bit was turned"]
    assert leader.settled == []  # detached: all of it goes to who is attached next
    copy.attach()
    assert leader.wanted == WANTED  # messages themselves are asked for
    assert leader.port is copy.port
