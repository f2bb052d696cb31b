"""What is kept on a node that does not lead: acknowledged when it is on the disk, asked for under one name, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.queues.origins import Identity
from fluxmq.shards.cluster.leader_host import NUMBERS_APART, LeaderHost
from fluxmq.shards.cluster.leaders import Leader, Leaders
from fluxmq.shards.cluster.local_host import LocalHost
from fluxmq.shards.cluster.outbox import (
    ENVELOPES_MAX,
    RETRY_SECONDS,
    WAITING_MAX,
    Outboxes,
    name_of,
)
from fluxmq.shards.queues.group import Group
from fluxmq.shards.queues.hosted import open_group
from fluxmq.shards.queues.names import LOCAL
from fluxmq.shards.queues.ports import QueueHost
from fluxmq.shards.queues.shared_log import SharedLog
from fluxmq.shards.queues.stores import DiskStores
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files
from fluxmq.storage.log_reader import OpenSegments
from fluxmq.storage.open_files import OpenFiles
from fluxmq.storage.queue_log import SegmentOptions
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions
from tests.unit.shards.cluster.test_leader_host import Somebody
from tests.unit.shards.queues.support import StepSyncer

GROUP = "local-0"
NOW_US = 1_700_000_000_000_000
TURNS = 20


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
        self.stores = DiskStores(
            files,
            paths,
            GROUP,
            SegmentOptions(),
            BatchCache(1 << 20),
            OpenSegments(OpenFiles(files)),
        )
        self.group = Group(
            GROUP,
            self.stores,
            lambda _group: None,
            lambda _group, _dead: None,
            lambda: NOW_US + round(self.now * 1_000_000),
            1_000_000,
            1 << 20,
        )
        self.outboxes = Outboxes(
            life, bytes_max, lambda _queue: self.leader, lambda _queue: self.clear, lambda: self.now
        )
        hosted = open_group(self.group, self.stores, self.shared, files, paths)
        self.outboxes.opened(self.group, LOCAL)
        hosted.keeper.start()
        self.work()

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
    life.leader.appends[0][2](Reason.QUOTA_EXCEEDED)
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
    assert set(answers) == {0, Reason.QUOTA_EXCEEDED}
    assert life.outboxes.depths() == [answers.count(0)]


def test_only_so_many_wait_for_it_to_be_made(begin: Begin) -> None:
    life = begin()
    answers: list[int] = []
    for _ in range(WAITING_MAX + 1):
        life.outboxes.append("q", b"", answers.append)
    assert answers == [Reason.QUOTA_EXCEEDED]


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


class Choice:
    """A group with `write_policy: local` and who leads it: ``leader`` on this node, ``elsewhere`` on another, or nobody."""

    def __init__(self, life: Life) -> None:
        self.here = True
        self.somebody = Somebody()
        leader = Leaders().of("default")
        leader.peer = 1
        self.term = leader.term

        def target(_leader: Leader) -> QueueHost | None:
            return self.somebody

        direct = LeaderHost(
            leader, target, lambda _leader, _queue: None, lambda _queue: 5.0, None, 7, lambda: 0.0
        )
        self.leader = direct
        self.host = LocalHost(direct, life.outboxes, lambda: self.here)


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


def test_an_append_keeps_the_name_that_it_came_with(begin: Begin) -> None:
    choice = Choice(begin())
    choice.leader.append("q", b"a", None, Identity(9, 44, 40))
    (_, identity, _) = choice.somebody.appends[0]
    assert identity == Identity(9, 44, 40, choice.term)
