"""Three members of a group in one process: real groups, logs and disks; a test says which messages arrive, what is synced
and when time passes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from fluxmq.engine.group import ReplicationGroup
from fluxmq.model.message_batch import build_message
from fluxmq.queues.config import QueueConfig
from fluxmq.raft.types import Message
from fluxmq.replication.open_group import Member, open_group
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

NUMBERS = (1, 2, 3)
TICKS = 10
ROUNDS_MAX = 500
"""Of messages until nobody has any more to say."""
NOW_US = 1_700_000_000_000_000


class Replica:
    """One member. ``sent``: its messages that nobody has taken yet; ``syncer`` holds its disk when told."""

    def __init__(self, directory: Path, number: int) -> None:
        self.number = number
        self.marked = 0
        """How often the group asked for the end of a tick."""
        files, paths = Files(), DataPaths(str(directory))
        directory.mkdir()
        self.syncer = StepSyncer()
        options = WalOptions(file_bytes=1 << 20, background=False)
        self.wal = WriteAheadLog.open(files, paths.wal(0), self.syncer, options)
        self.shared = SharedLog(self.wal, lambda: None)
        segments = SegmentOptions()
        self.stores = DiskStores(
            files, paths, "g", segments, BatchCache(1 << 20), OpenSegments(OpenFiles(files))
        )
        self.group = ReplicationGroup(
            "g",
            self.stores,
            lambda _group: self._mark(),
            lambda _group, _dead: None,
            lambda: NOW_US,
            1_000_000,
            1 << 20,
        )
        member = Member(number, NUMBERS, TICKS, 1)
        hosted = open_group(self.group, self.stores, self.shared, files, paths, member)
        self.driver = hosted.driver
        state = self.driver.node._state
        state.random = lambda _ticks: number  # chance is the test's
        state.timeout = TICKS + number
        self.sent: deque[Message] = deque()
        self.driver.send = self.sent.extend
        self.group.events = LeadObserver(
            lambda group: group.declare(QueueConfig("work", max_depth=0))
        )
        self.driver.start()

    def _mark(self) -> None:
        self.marked += 1

    def work(self) -> None:
        """The end of a tick: propose, write, and take note of what is synced."""
        self.shared.begin_tick()
        self.group.propose()
        self.shared.flush()
        if not self.driver.leading:
            self.group.work()
        self.shared.completed()
        self.shared.end_tick()

    def close(self) -> None:
        """Let go of the files."""
        self.stores.close()
        self.syncer.held = False
        self.syncer.sync()  # closing the log waits for it
        self.shared.close()
        self.syncer.close()


class Trio:
    """Three members. ``cut``: those whose messages neither leave nor arrive."""

    def __init__(self, directory: Path) -> None:
        self.members = {number: Replica(directory / str(number), number) for number in NUMBERS}
        self.cut: set[int] = set()

    def __getitem__(self, number: int) -> Replica:
        return self.members[number]

    def settle(self, until: Callable[[], bool] = lambda: False) -> None:
        """Carry messages until there are none."""
        quiet = rounds = 0
        while quiet < 3 and not until():
            rounds += 1
            assert rounds < ROUNDS_MAX, "they do not come to an end"
            moved = False
            for member in self.members.values():
                member.work()
                while member.sent:
                    message = member.sent.popleft()
                    moved = True
                    if not {member.number, message.target} & self.cut:
                        self.members[message.target].driver.step([message])
            quiet = 0 if moved else quiet + 1

    def elect(self, number: int) -> Replica:
        """Have a member lead, with the queue ``work`` declared."""
        leader = self.members[number]
        for _ in range(50 * TICKS):
            if leader.driver.leading and leader.group.machine.queue("work") is not None:
                return leader
            other = next(
                (
                    each
                    for each in self.members.values()
                    if each.driver.leading and each is not leader
                ),
                None,
            )
            if other is not None and other.number not in self.cut:
                other.driver.node.transfer_leadership(number)  # it was faster: timeouts are random
                other.driver.pump()
            elif not leader.driver.leading:
                leader.driver.node.campaign()
                leader.driver.pump()
            self.settle()
            self.tick()
        raise AssertionError("nobody was elected")

    def tick(self) -> None:
        """A tick of everybody's clock."""
        for member in self.members.values():
            member.driver.tick()
        self.settle()

    def close(self) -> None:
        """Let go of all files."""
        for member in self.members.values():
            member.close()


def message(payload: bytes) -> bytes:
    """A batch of one message."""
    return build_message(b"$queue/work", b"", payload, NOW_US)
