"""What is kept on a node that does not lead: acknowledged when it is on the disk, asked for under one name, in order.

Longer than 500 lines because every way of losing or doubling a message by an outbox is told with one harness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.group_client import NUMBERS_APART, GroupClient
from fluxmq.engine.outbox import (
    ENVELOPES_MAX,
    RETRY_SECONDS,
    WAITING_MAX,
    Carrying,
    Outboxes,
    name_of,
)
from fluxmq.engine.ports import AppendCallback
from fluxmq.engine.write_policies import LocalPolicy
from fluxmq.model.message_batch import build_message
from fluxmq.model.outcomes import Outcome
from fluxmq.model.properties import encode
from fluxmq.queues.commands import append_header_once, declare, delete, encode_entry
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.machine import Machine
from fluxmq.queues.origins import Identity
from fluxmq.queues.results import Applied, Code
from fluxmq.queues.states import QueueState
from fluxmq.replication.leaders import Leaders
from fluxmq.replication.open_group import open_group
from fluxmq.replication.shared_log import SharedLog
from fluxmq.replication.stores import DiskStores
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files
from fluxmq.storage.log_reader import OpenSegments
from fluxmq.storage.open_files import OpenFiles
from fluxmq.storage.queue_log import SegmentOptions
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions
from tests.group_events import LeadObserver
from tests.unit.engine.support import StepSyncer
from tests.unit.engine.test_group_client import LedRoute, Somebody

GROUP = "local-0"
NOW_US = 1_700_000_000_000_000
TURNS = 20
NO_PROPERTIES = encode([])


class Life:
    """A shard's life: one group of its own on a real disk, and its outboxes. ``leader``: who takes what is kept, if anybody."""

    def __init__(self, directory: Path, life: bytes = b"first", bytes_max: int = 1 << 20) -> None:
        files, paths = Files(), DataPaths(str(directory))
        self.syncer = StepSyncer()
        self.now = 100.0
        self.leader: Somebody | None = None
        self.clear = True
        wal = WriteAheadLog.open(
            files, paths.wal(0), self.syncer, WalOptions(file_bytes=1 << 20, background=False)
        )
        self.shared = SharedLog(wal, lambda: None)
        self.files, self.paths = files, paths
        self.withdrawn: list[tuple[str, AbstractSet[int]]] = []
        carrying = Carrying(
            lambda _queue: self.leader,
            lambda _queue: self.clear,
            lambda queue, origins: self.withdrawn.append((queue, origins)),
            lambda: self.now,
        )
        self.outboxes = Outboxes(life, bytes_max, carrying)
        self.host()

    def host(self) -> None:
        """Open the group: at the start, or since it has come back from another shard."""
        files, paths = self.files, self.paths
        self.stores = DiskStores(
            files,
            paths,
            GROUP,
            SegmentOptions(),
            BatchCache(1 << 20),
            OpenSegments(OpenFiles(files)),
        )
        self.group = ReplicationGroup(
            GROUP,
            self.stores,
            lambda _group: None,
            lambda _group, _dead: None,
            lambda: NOW_US + round(self.now * 1_000_000),
            1_000_000,
            1 << 20,
        )
        self.hosted = open_group(self.group, self.stores, self.shared, files, paths)
        self.group.events = LeadObserver(self.outboxes.leads)
        self.hosted.driver.start()
        self.work()

    def release(self) -> None:
        """The group goes to another shard."""
        self.outboxes.closed(GROUP)
        self.group.fail("the group has moved to another shard")
        self.shared.leave(self.hosted.driver)
        self.stores.close()

    def work(self) -> None:
        """Ticks until nothing is to be done; commands that nobody waits for have waited."""
        for _ in range(TURNS):
            self.now += 0.02
            self.shared.begin_tick()
            self.group.propose()
            self.shared.flush()
            self.group.work()
            self.shared.completed()
            self.shared.end_tick()
            self.outboxes.housekeeping()

    def keep(self, *bodies: bytes) -> list[int]:
        """Append to the queue ``q``; the answers, as they come."""
        answers: list[int] = []
        for body in bodies:
            assert self.outboxes.append("q", body, answers.append) is not None
        self.work()
        return answers

    def end(self) -> None:
        """The process dies: nothing that is not synced is written any more."""
        self.stores.close()
        self.syncer.held = False
        self.syncer.sync()
        self.shared.close()
        self.syncer.close()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Life]]:
    """Begin a life after the one before it."""
    lives: list[Life] = []

    def begin(life: bytes = b"first", bytes_max: int = 1 << 20) -> Life:
        if lives:
            lives[-1].end()
        lives.append(Life(tmp_path, life, bytes_max))
        return lives[-1]

    yield begin
    lives[-1].end()


Begin = Callable[..., Life]


def test_it_is_acknowledged_when_this_nodes_disk_has_it_and_not_before(begin: Begin) -> None:
    life = begin()
    assert life.keep(b"first") == [0]
    life.syncer.held = True
    answers = life.keep(b"second")
    assert answers == []
    life.syncer.held = False
    life.syncer.sync()
    life.work()
    assert answers == [0]
    assert life.outboxes.depths() == [2]


def test_a_leader_is_asked_in_order_and_what_it_has_is_let_go(begin: Begin) -> None:
    life = begin()
    life.keep(b"a", b"b", b"c")
    assert not life.outboxes.is_empty("q")
    life.leader = Somebody()
    life.work()
    assert life.leader.bodies == [b"a", b"b", b"c"]
    numbers = [identity.number for _, identity, _ in life.leader.appends]
    assert numbers == [NUMBERS_APART, 2 * NUMBERS_APART, 3 * NUMBERS_APART]
    life.work()
    assert len(life.leader.appends) == 3
    assert life.outboxes.depths() == [3]
    for _, _, done in life.leader.appends:
        done(0)
    life.work()
    assert life.outboxes.depths() == [0]
    assert life.outboxes.is_empty("q")
    assert (life.outboxes.counts.kept, life.outboxes.counts.carried) == (3, 3)


def test_another_life_asks_under_the_same_name(begin: Begin) -> None:
    life = begin()
    life.keep(b"a", b"b")
    life.leader = Somebody()
    life.work()
    asked = [(body, identity.origin, identity.number) for body, identity, _ in life.leader.appends]
    life.leader.appends[1][2](0)  # the leader has the second, and that is on this node's disk
    life.work()
    life = begin(b"second")
    assert life.outboxes.depths() == [1]
    life.keep(b"c")
    life.leader = Somebody()
    life.work()
    (again, name, _), (fresh, other, _) = life.leader.appends
    assert (again, name.origin, name.number) == asked[0]
    assert fresh == b"c"
    assert other.origin != name.origin  # numbers begin anew with each life


def test_a_name_is_not_given_up_before_the_disk_says_that_it_is_not_needed(begin: Begin) -> None:
    life = begin()
    life.keep(b"a", b"b")
    life.leader = Somebody()
    life.work()
    life.leader.appends[1][2](0)
    life.clear = False
    life.keep(b"c", b"d")
    life.clear = True
    life.syncer.held = True
    life.leader.appends[0][2](0)
    life.work()
    first = life.leader.appends[0][1].number
    assert [identity.floor for _, identity, _ in life.leader.appends[2:]] == [first, first]
    life.syncer.held = False
    life.syncer.sync()
    life.work()
    life.keep(b"e")
    assert life.leader.appends[4][1].floor == life.leader.appends[2][1].number


def test_a_refusal_is_asked_again_in_order_and_loses_nothing(begin: Begin) -> None:
    life = begin()
    life.keep(b"a")
    life.leader = Somebody()
    life.work()
    life.leader.appends[0][2](Outcome.OVER_LIMIT)
    before = life.now
    life.outboxes.append("q", b"b", None)
    while life.now < before + RETRY_SECONDS - 0.5:
        life.work()
    assert life.leader.bodies == [b"a"]
    while life.now < before + RETRY_SECONDS + 0.5:
        life.work()
    assert life.leader.bodies == [b"a", b"a", b"b"]
    assert life.leader.appends[0][1] == life.leader.appends[1][1]
    assert life.outboxes.counts.refused == 1


def test_what_clients_have_under_way_to_the_leader_goes_first(begin: Begin) -> None:
    life = begin()
    life.leader = Somebody()
    life.clear = False
    life.keep(b"a")
    assert life.leader.bodies == []
    life.clear = True
    life.work()
    assert life.leader.bodies == [b"a"]


def test_it_holds_no_more_than_it_may(begin: Begin) -> None:
    life = begin(bytes_max=4096)
    answers = life.keep(*[bytes(1000)] * (ENVELOPES_MAX + 8))
    assert answers.count(0) < len(answers) == ENVELOPES_MAX + 8
    assert set(answers) == {0, Outcome.OVER_LIMIT}
    assert life.outboxes.depths() == [answers.count(0)]


def test_only_so_many_wait_for_it_to_be_made(begin: Begin) -> None:
    life = begin()
    answers: list[int] = []
    for _ in range(WAITING_MAX + 1):
        life.outboxes.append("q", b"", answers.append)
    assert answers == [Outcome.OVER_LIMIT]


def test_with_its_queue_goes_what_is_kept_for_it(begin: Begin) -> None:
    life = begin()
    life.keep(b"a")
    life.outboxes.deleted("q")
    life.work()
    assert life.group.machine.queue(name_of(GROUP, "q")) is None
    assert life.outboxes.is_empty("q")
    assert life.keep(b"of another queue of that name") == [0]


def test_a_group_that_has_moved_away_keeps_nothing_more_here(begin: Begin) -> None:
    life = begin()
    life.keep(b"a")
    life.outboxes.closed(GROUP)
    assert life.outboxes.is_empty("q")
    assert life.outboxes.append("q", b"b", None) is None


class Leading(Somebody):
    """Who leads the queue ``q``: a state machine that applies what it is asked at once. It answers only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine()
        self.answers: list[tuple[int, AppendCallback]] = []
        self.said = True
        """Whether what is asked is answered at once."""
        self.at = 0
        self.declare()

    def declare(self) -> None:
        """There is a queue, a new one if it was deleted."""
        self._apply(declare(QueueConfig(name="q", message_ttl=0)))

    def drop(self) -> None:
        """The queue is deleted."""
        self._apply(delete(self.queue.id))

    @property
    def queue(self) -> QueueState:
        """The queue that there is now."""
        queue = self.machine.queue("q")
        assert queue is not None
        return queue

    def _apply(self, *pieces: bytes) -> Applied:
        self.at += 1
        return self.machine.apply(self.at, 1, encode_entry(self.at, list(pieces)))

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Store a batch, once under each name."""
        assert queue == "q"
        assert done is not None
        assert identity is not None
        batch = build_message(b"", NO_PROPERTIES, batch, NOW_US)
        header = append_header_once(self.queue.id, len(batch), 0, identity)
        code = self._apply(header, batch).results[0].code
        assert code in (Code.OK, Code.DUPLICATE)
        self.answers.append((code, done))
        if self.said:
            done(0)
        return True


def test_what_is_kept_for_a_queue_declared_again_reaches_it(begin: Begin) -> None:
    """Review finding 2: ten appends at a follower, delete, declare, three times: none of thirty is taken for a repetition."""
    life = begin()
    life.leader = leader = Leading()
    stored = []
    for _ in range(3):
        assert life.keep(*[b"%d" % number for number in range(10)]) == [0] * 10
        stored.append(leader.queue.depth)
        leader.drop()
        life.outboxes.deleted("q")
        life.work()
        leader.declare()
    assert stored == [10, 10, 10]


def test_what_is_kept_when_a_group_has_come_back_reaches_the_queue(begin: Begin) -> None:
    """Review finding 2: the group that keeps goes to another shard and comes back, in one life of this shard."""
    life = begin()
    life.leader = leader = Leading()
    for stay in range(1, 4):
        assert life.keep(*[b"%d" % number for number in range(10)]) == [0] * 10
        assert leader.queue.depth == 10 * stay
        life.release()
        life.host()


def test_what_was_asked_before_a_group_went_is_stored_once_when_it_has_come_back(
    begin: Begin,
) -> None:
    """Review finding 2: what is kept and not answered keeps its name, and whoever had it asks no more."""
    life = begin()
    life.leader = leader = Leading()
    leader.said = False
    assert life.keep(b"a", b"b") == [0, 0]
    assert [code for code, _ in leader.answers] == [Code.OK, Code.OK]
    life.release()
    ((queue, origins),) = life.withdrawn
    assert (queue, len(origins)) == ("q", 1)
    leader.said = True
    life.host()
    assert life.keep(b"c") == [0]
    codes = [code for code, _ in leader.answers[2:]]
    assert codes == [Code.DUPLICATE, Code.DUPLICATE, Code.OK]
    assert leader.queue.depth == 3
    assert life.outboxes.depths() == [0]


def test_what_is_under_way_for_a_deleted_queue_does_nothing_to_the_one_after_it(
    begin: Begin,
) -> None:
    """Review finding 2: late answers and settlements of an outbox are none of the next one."""
    life = begin()
    life.leader = leader = Leading()
    leader.said = False
    life.keep(b"a", b"b")
    life.syncer.held = True  # the settlement of the first is under way when the queue is deleted
    leader.answers[0][1](0)
    life.work()
    leader.drop()
    life.outboxes.deleted("q")
    leader.declare()
    answers: list[int] = []
    life.outboxes.append("q", b"c", answers.append)
    life.syncer.held = False
    life.syncer.sync()
    life.work()
    for _, done in leader.answers[:2]:
        done(0)
    life.work()
    assert answers == [0]
    assert leader.queue.depth == 1
    assert life.outboxes.depths() == [1]  # nobody has said yet that the queue has it
    leader.answers[-1][1](0)
    life.work()
    assert life.outboxes.depths() == [0]
    assert life.outboxes.counts.carried == 2  # the first before the deletion, and the third


def test_what_is_kept_for_a_deleted_queue_is_not_carried_to_the_one_after_it(begin: Begin) -> None:
    """Review finding 2: an append while the deletion is under way is kept, and alone carried."""
    life = begin()
    life.keep(b"a", b"b")
    life.outboxes.deleted("q")
    answers = life.keep(b"c")
    life.leader = Somebody()
    life.work()
    assert answers == [0]
    assert life.leader.bodies == [b"c"]


def test_a_queue_deleted_while_its_outbox_is_made_leaves_none(begin: Begin) -> None:
    life = begin()
    answers: list[int] = []
    life.outboxes.append("q", b"a", answers.append)
    life.outboxes.deleted("q")
    assert answers == [Outcome.FAILED]
    life.work()
    assert life.group.machine.queue(name_of(GROUP, "q")) is None
    assert life.outboxes.depths() == []
    life.outboxes.append("q", b"b", answers.append)
    life.outboxes.deleted("q")
    life.outboxes.append("q", b"c", answers.append)
    life.work()
    assert answers[1:] == [Outcome.FAILED, 0]
    assert life.outboxes.depths() == [1]


class Choice:
    """A group with `write_policy: local` and who leads it: ``leader`` on this node, ``elsewhere`` on another, or nobody."""

    def __init__(self, life: Life) -> None:
        self.here = True
        self.somebody = Somebody()
        leader = Leaders().of("default")
        leader.peer = 1
        self.term = leader.term
        policy = LocalPolicy(life.outboxes, lambda: self.here)
        route = LedRoute(leader, {1: self.somebody})
        self.host = GroupClient(route, 7, lambda: 0.0, policy=policy)


def test_appends_go_to_the_leader_only_where_it_is_and_behind_what_is_kept(begin: Begin) -> None:
    life = begin()
    choice = Choice(life)
    answers: list[int] = []
    choice.host.append("q", b"a", answers.append)
    assert choice.somebody.bodies == [b"a"]
    choice.here = False
    choice.host.append("q", b"b", answers.append)
    life.work()
    choice.here = True
    choice.host.append("q", b"c", answers.append)  # b is not with the leader yet
    choice.host.append("other", b"d", answers.append)
    life.work()
    assert choice.somebody.bodies == [b"a", b"d"]
    assert answers == [0, 0]
    life.leader = Somebody()
    life.leader.at_once = 0
    life.work()
    assert life.leader.bodies == [b"b", b"c"]
    choice.host.append("q", b"e", answers.append)
    assert choice.somebody.bodies == [b"a", b"d", b"e"]


def test_a_shard_without_a_group_of_its_own_asks_the_leader(begin: Begin) -> None:
    life = begin()
    choice = Choice(life)
    choice.here = False
    life.outboxes.closed(GROUP)
    choice.host.append("q", b"a", None)
    assert choice.somebody.bodies == [b"a"]


def test_what_is_sent_to_a_name_of_the_brokers_is_for_the_leader_to_refuse(begin: Begin) -> None:
    """Review finding 9: an outbox would not remember that an MQTT client had sent it to the queue's address."""
    life = begin()
    choice = Choice(life)
    choice.here = False
    choice.host.append("amq.gen-1", b"a", None, by_address=True)
    choice.host.append("q", b"b", None, by_address=True)
    choice.host.append("amq.gen-1", b"c", None)
    assert (choice.somebody.bodies, choice.somebody.by_address) == ([b"a"], [True])


def test_an_append_keeps_the_name_that_it_came_with(begin: Begin) -> None:
    choice = Choice(begin())
    choice.host.append("q", b"a", None, Identity(9, 44, 40))
    (_, identity, _) = choice.somebody.appends[0]
    assert identity == Identity(9, 44, 40, choice.term)
