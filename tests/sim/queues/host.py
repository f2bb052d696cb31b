"""One simulated node: the engine's group, its Raft driver and its storage, in a directory in memory.

Responsible for what a shard's loop does for one group (turns, ticks, syncs, checkpoints, housekeeping) and for starting
and ending. It decides nothing by chance and knows no faults: its file system fails when told to.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING

from fluxmq.raft.types import Message, MessageKind, Snapshot, SnapshotMark
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.log_reader import OpenSegments
from fluxmq.storage.open_files import OpenFiles
from fluxmq.storage.segments import SegmentOptions
from fluxmq.storage.snapshots import GroupSnapshot as StoredSnapshot
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions
from tests.faults import ManualSyncer
from tests.group_events import LeadObserver
from tests.sim.queues.files import NodeFiles
from tests.sim.queues.parts import (
    DEAD,
    DeadLetters,
    DiskStores,
    Member,
    OpenGroup,
    Parts,
    QueueInfo,
    QueueNames,
    ReplicationGroup,
    Settings,
    SharedLog,
    capture,
    open_group,
    trim,
    write,
)
from tests.sim.queues.swarm import TICK_US

if TYPE_CHECKING:
    from tests.sim.queues.world import World

GROUP = "group"
EPOCH_US = 1_700_000_000_000_000
OFFER_US = 1_000_000
"""A snapshot is offered again after this time, as the program does."""
HOUSEKEEPING_TICKS = 5
"""A tenth of a second."""
SEGMENTS = SegmentOptions(16_384, 0, 4_096)
UNCOMMITTED_MAX = 1 << 20
AUTO_COMMIT_US = 50_000
TURNS_MAX = 100
"""Turns in a row after which a group must have run out of work."""

Captured = Callable[[StoredSnapshot], None]
Checkpoint = tuple[int, int, bytes, Parts]


@cache
def _settings() -> Settings:
    return Settings()


def _names() -> QueueNames:
    names = QueueNames(_settings(), 1, 1)
    names.add(QueueInfo(DEAD, GROUP, 0))
    return names


class _Observer:
    """Follows a node's group on behalf of the other members."""

    def __init__(self, host: Host) -> None:
        self.send = host.send
        self.damaged = host.found_damage
        self.snapshot_wanted = host.offer
        self.unannounced = host.announce_later

    def applied(self) -> None:
        """Do nothing: the group tells the ledger."""

    def leads(self) -> None:
        """Do nothing: the group tells the world."""

    def follows(self) -> None:
        """Do nothing."""

    def hand_lead(self) -> bool:
        """Return False: nobody is asked."""
        return False


class Host:
    """A node. `hosted` is None while it is down or its group is being replaced."""

    files_type: type[NodeFiles] = NodeFiles

    def __init__(self, world: World, number: int, voters: tuple[int, ...]) -> None:
        self.world = world
        self.number = number
        self.voters = voters
        """Of a new group."""
        self.root = f"{world.root}/{number}"
        self.paths = DataPaths(f"{self.root}/data")
        self.files = self.files_type(f"{self.root}/stash")
        self.random = Random(f"host {world.seed} {number}")
        self.ahead_us = int(world.swarm.skew_us * self.random.random())
        self.tick_us = int(TICK_US * (0.9 + 0.2 * self.random.random()))
        self.hosted: OpenGroup[ReplicationGroup] | None = None
        self.up = False
        self.life = 0
        """Counts starts."""
        self.opening = 0
        """Counts openings of the group; consumers of an earlier one are gone."""
        self.faulted = False
        """Its disk has failed in this life, or since the last one."""
        self.damaged = False
        """Bits have flipped in its files."""
        self.gone = False
        """It never comes back: lost, or removed from the group."""
        self.marked = False
        self.turn_due = False
        self.sync_due = False
        self.announce_due = False
        self.fetching = False
        self._ticks = 0
        self._checkpoint: Checkpoint | None = None
        self._offered: dict[int, int] = {}

    # Life

    def start(self) -> None:
        """Start from what is on the disk. Raises StorageError."""
        self.life += 1
        self.up = True
        self.fetching = self.sync_due = self.turn_due = self.announce_due = False
        self._checkpoint = None
        self._offered.clear()
        self.syncer = ManualSyncer(self.files)
        swarm = self.world.swarm
        wal = WriteAheadLog.open(
            self.files,
            self.paths.wal(0),
            self.syncer,
            WalOptions(
                swarm.wal_file_bytes,
                spare_files=1,
                cache_bytes=swarm.cache_bytes,
                retry_seconds=0.0,
                background=False,
            ),
            clock=lambda: self.world.now_us / 1e6,
        )
        self.shared = SharedLog(wal, self._wake)
        self.open()

    def open(self) -> None:
        """Open the group from its files. Raises StorageError."""
        self.opening += 1
        swarm, files = self.world.swarm, self.files
        cached = swarm.cache_bytes
        stores = DiskStores(
            files,
            self.paths,
            GROUP,
            SEGMENTS,
            BatchCache(cached, cached),
            OpenSegments(OpenFiles(files)),
        )
        letters = DeadLetters(_names(), lambda _group: group, self.clock)
        group = ReplicationGroup(
            *(GROUP, stores, self._mark, letters.dead_letter, self.clock, AUTO_COMMIT_US),
            UNCOMMITTED_MAX,
            swarm.wal_file_bytes // 4,
        )
        group.batch_max = swarm.wal_file_bytes // 4
        member = Member(
            self.number,
            self.voters,
            swarm.election_ticks,
            swarm.heartbeat_ticks,
            eager_commit=swarm.eager_commit,
        )
        draw = self.random.random
        try:
            hosted = open_group(
                group,
                stores,
                self.shared,
                files,
                self.paths,
                member,
                lambda below: int(draw() * below),
            )
        except StorageError:
            stores.close()
            raise
        self.hosted = hosted
        opening = self.opening
        group.on_applied = lambda: self._applied(opening)
        group.events = LeadObserver(self._leads)
        driver = hosted.driver
        driver.join(_Observer(self))
        driver.gathers = swarm.gathers and not member.alone
        self.world.ledger.opened(self.number, group)
        driver.start()
        self._mark(group)

    @property
    def group(self) -> ReplicationGroup:
        """The group, which is open."""
        assert self.hosted is not None, "only who hosts the group is asked"
        return self.hosted.group

    @property
    def leads(self) -> bool:
        """Whether this node takes clients' requests."""
        hosted = self.hosted
        return self.up and hosted is not None and hosted.driver.leading and not hosted.group.failed

    @property
    def listens(self) -> bool:
        """Whether its group is open and has not failed."""
        return self.up and self.hosted is not None and not self.hosted.group.failed

    def holds(self, index: int) -> bool:
        """Whether its log or its state has an entry that is committed."""
        return self.hosted is not None and self.hosted.log.last_index() >= index

    def end(self, *, power: bool, mode: str = "sectors") -> None:
        """End the process, or the machine with it: then only what was synced stays, and what `mode` says besides."""
        self.up = False
        self.hosted = None
        files = self.files
        if power:
            files.dead = False
            files.cut(self.random, mode)
            self.files = self.files_type(f"{self.root}/stash")
        else:
            self.syncer.land()
            files.kill()
        self.syncer.close()

    def forget_everything(self) -> None:
        """Lose the directory, while the node is down."""
        self.files.close_all()
        shutil.rmtree(self.root, ignore_errors=True)
        self.files = self.files_type(f"{self.root}/stash")

    def destroy(self) -> None:
        """End for good, and leave nothing."""
        if self.up:
            self.end(power=False)
        self.gone = True
        self.files.close_all()
        shutil.rmtree(self.root, ignore_errors=True)

    def clock(self) -> int:
        """The node's time, µs."""
        return EPOCH_US + self.world.now_us + self.ahead_us

    # What the driver wants

    def _mark(self, _group: ReplicationGroup) -> None:
        self.marked = True

    def _wake(self) -> None:
        self.marked = True

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages to the other members."""
        if not self.files.dead:
            for message in messages:
                self.world.send(message)

    def announce_later(self) -> None:
        """The commit index is to be announced at the end of the turn."""
        self.announce_due = not self.world.swarm.eager_commit

    def _applied(self, opening: int) -> None:
        hosted = self.hosted
        if hosted is None or opening != self.opening:
            return
        index = hosted.group.applied_index
        entry = hosted.log.entries(index, index + 1, 1 << 30)[0]
        self.world.ledger.applied(self.number, entry, hosted.group)

    def _leads(self, group: ReplicationGroup) -> None:
        self.world.leads(self, group)

    def found_damage(self, why: str) -> None:
        """A file of this node proved corrupt."""
        self.world.trace_line(f"{self.number} has found damage: {why}")
        self.world.damage_found(self)

    def offer(self, member: int) -> None:
        """Offer this node's last checkpoint to a member that is behind the log."""
        hosted = self.hosted
        assert hosted is not None, "only leaders are asked"
        node, index = hosted.driver.node, hosted.snapshot_index
        mark = SnapshotMark(index, hosted.log.term(index), node.membership_at(index))
        message = node.offer_snapshot(member, Snapshot(mark, b""))
        if message is not None:
            self._offered[member] = self.world.now_us + OFFER_US
            hosted.driver.send([message])

    # What happens to it

    def tick(self) -> None:
        """One tick of the group's clock."""
        hosted = self.hosted
        if hosted is None:
            return
        hosted.driver.tick()
        self._ticks += 1
        if self._ticks % HOUSEKEEPING_TICKS == 0:
            self._housekeep(hosted)
        group = hosted.group
        due = group.next_due
        if (due is not None and due <= self.clock()) or group.asked:
            self.marked = True

    def _housekeep(self, hosted: OpenGroup[ReplicationGroup]) -> None:
        group = hosted.group
        if group.writes.waiting:
            group.write()
        if not group.failed:
            group.full = not group.write() or self.shared.full
        if self.shared.wal.buffered_bytes:
            self.marked = True
        hosted.pressed = hosted.log.number in self.shared.wal.lagging(4)
        trim(hosted)
        if hosted.entries_behind >= self.world.swarm.checkpoint_every or hosted.pressed:
            self.begin_checkpoint()
        for member, until in list(self._offered.items()):
            if self.world.now_us >= until:
                self.report(member, 0)

    def report(self, member: int, index: int) -> None:
        """A member has installed the snapshot of an entry, or failed to (0), as the program's own report."""
        hosted = self.hosted
        self._offered.pop(member, None)
        if hosted is None or hosted.group.failed:
            return
        driver = hosted.driver
        driver.node.report_snapshot(member, index > 0)
        if index and driver.leading:
            answer = Message(
                MessageKind.APPEND_ANSWER, member, self.number, driver.node.term, index
            )
            driver.step([answer])

    def is_fetched(self, member: int) -> None:
        """A member reports that it is fetching what it was offered."""
        if member in self._offered:
            self._offered[member] = self.world.now_us + 10 * OFFER_US

    def step(self, message: Message) -> None:
        """A message of another member has come."""
        hosted = self.hosted
        assert hosted is not None, "only who listens is told"
        offered = message.snapshot
        node = hosted.driver.node
        if (
            message.kind is not MessageKind.SNAPSHOT
            or offered is None
            or message.term < node.term
            or offered.mark.index <= node.status().commit
        ):
            hosted.driver.step([message])
        elif not self.fetching:
            self.world.fetch(self, message.source, offered.mark.index)
        if hosted.driver.changed:
            self.marked = True

    def turn(self) -> None:
        """The end of a tick of the shard's loop."""
        hosted = self.hosted
        if hosted is None:
            return
        group, shared = hosted.group, self.shared
        for _ in range(TURNS_MAX):
            self.marked = False
            shared.begin_tick()
            group.propose()
            shared.flush()
            more = group.work()
            shared.end_tick()
            if not (more or self.marked) or self.files.dead:
                break
        else:
            self.world.violated("turns end", f"node {self.number} always has more to do")
        self.marked = False

    def synced(self, error: int = 0) -> None:
        """The oldest sync has ended."""
        self.sync_due = False
        if self.syncer.waiting:
            self.syncer.sync(error)
        self.shared.ready()

    def announce(self) -> None:
        """Tell followers what is committed."""
        self.announce_due = False
        if self.hosted is not None:
            self.hosted.driver.announce()

    # Checkpoints

    def begin_checkpoint(self, captured: Captured | None = None) -> bool:
        """Capture the group's state; `Checkpoints.begin` of the program without its thread."""
        hosted = self.hosted
        if hosted is None or hosted.checkpointing or hosted.group.failed:
            return False
        group = hosted.group
        if not group.applied_index or (
            captured is None and group.applied_index == hosted.snapshot_index
        ):
            return False
        if group.writes.waiting:
            group.write()
        if group.writes.refused or group.writes.held or group.failed:
            return False
        try:
            self._checkpoint = index, term, content, _ = self.captured(hosted)
        except StorageError:
            return False
        hosted.checkpointing = True
        if captured is not None:
            captured(StoredSnapshot(index, term, content))
        self.world.checkpoint_later(self)
        return True

    def captured(self, hosted: OpenGroup[ReplicationGroup]) -> Checkpoint:
        """The group's state, and what has to be synced for it."""
        return capture(hosted)

    def end_checkpoint(self) -> None:
        """Make what was captured durable, and free the log behind it."""
        hosted, checkpoint = self.hosted, self._checkpoint
        self._checkpoint = None
        if hosted is None or checkpoint is None:
            return
        index, term, content, parts = checkpoint
        failure: StorageError | None = None
        try:
            write(self.files, self.paths, GROUP, index, term, content, parts)
        except StorageError as error:
            failure = error
        hosted.stores.synced(parts, failure)
        hosted.checkpointing = False
        if failure is None and not hosted.group.failed:
            self.world.seen["checkpoints"] += 1
            hosted.snapshot_index = index
            trim(hosted)
        self.marked = True

    # Another member's snapshot

    def is_at_rest(self) -> bool:
        """Whether its files may be replaced."""
        hosted = self.hosted
        return hosted is not None and not (
            hosted.checkpointing or self.shared.has_pending(hosted.driver)
        )

    def close(self) -> None:
        """Close the group's files, as before they are replaced."""
        hosted = self.hosted
        assert hosted is not None, "it was open"
        self.hosted = None
        hosted.group.fail("the group is being replaced")
        hosted.shared.leave(hosted.driver)
        hosted.stores.close()

    # Damage

    def flip(self) -> bool:
        """Flip a bit in a file of the node; whether there is one."""
        found = [
            os.path.join(folder, name)
            for folder, _, names in sorted(os.walk(self.paths.root))
            for name in sorted(names)
        ]
        found = [path for path in found if os.path.getsize(path)]
        if not found:
            return False
        path = found[int(self.random.random() * len(found))]
        position = self.files.flip(path, self.random)
        self.damaged = True
        self.world.trace_line(f"{self.number} {os.path.relpath(path, self.root)} bit at {position}")
        return True
