"""One member of a simulated group: what a host does around a `fluxmq.raft.Node`, with a disk that can lose writes.

Responsible for doing what a `Ready` says in the order it says, for asynchronous syncs of which one is under way at a
time (as in the shard's write-ahead log: what is written meanwhile goes with the next), for the state machine, for
snapshots, and for telling the invariants what it does. It does not know which faults there are: it is crashed,
started, ticked and handed messages. What it finds for itself is that its directory is not the one it had, or that a
record in it is damaged: it then gives up for ever, for nobody can say what it had promised.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from fluxmq.raft.memberships import decode_membership
from fluxmq.raft.node import Config, Node
from fluxmq.raft.types import (
    COMMAND,
    MEMBERSHIP,
    Entry,
    HardState,
    Membership,
    Message,
    MessageKind,
    Ready,
    Role,
    Snapshot,
    SnapshotMark,
)
from tests.sim.disk import ENTRIES, HARD_STATE, SNAPSHOT, Damaged, Disk

if TYPE_CHECKING:
    from tests.sim.world import World

COMMAND_ID_BYTES = 8
APPEND_ANSWER = MessageKind.APPEND_ANSWER
PRE_VOTES = (MessageKind.PRE_VOTE, MessageKind.PRE_VOTE_ANSWER)
"""Their term is none that the sender is in."""
UNHEARD = (Role.LEADER, Role.CANDIDATE)
"""Who nobody may have heard of; a sole voter that does not know yet that its term is durable shows as a candidate."""

Answers = list[Message]


class Member:
    """A node, its disk and its state machine; `node` is None while it is down."""

    def __init__(self, world: World, me: int, membership: Membership) -> None:
        self.world = world
        self.id = me
        self.disk = Disk(membership)
        self.node: Node | None = None
        self.life = 0
        """Counts starts: what an earlier life asked for comes to nothing."""
        self.announced = 0
        """The highest term in which another member has heard from it."""
        self.removed = False
        self.lost = False
        """It will never come back, and is still a member as far as the others know."""
        self.incarnations = 0
        """How often it has begun anew."""
        self.sync_fails = False
        self.found: Disk | None = None
        """Another directory than its own, which somebody has put in its place."""
        self.earlier: Disk | None = None
        """A copy of its directory from before the last start."""
        self.paused_until = 0
        self._memberships = [(0, membership)]
        swarm = world.swarm
        self.config = Config(
            me,
            swarm.election_ticks,
            swarm.heartbeat_ticks,
            swarm.max_inflight_bytes,
            swarm.max_message_bytes,
            swarm.pre_vote,
            swarm.check_quorum,
            swarm.max_unstable_bytes,
            swarm.max_apply_bytes,
            max_inflight_appends=swarm.max_inflight_appends,
        )
        self.random = Random(f"member {world.seed} {me}")
        self.tick_us = int(world.tick_us * (0.9 + 0.2 * self.random.random()))

    # Life

    def start(self) -> None:
        """Start or restart from what is on the disk, unless that is not what was there or cannot be read."""
        if not self.recognises_its_directory():
            self.world.operator.lose(self, "directory not its own")
            return
        if self.world.swarm.old_directory:
            self.earlier = self.disk.copy()
        self.disk.incarnation += 1
        self.world.incarnations[self.id] = self.disk.incarnation
        store = self.disk.view
        self.life += 1
        self.sync_fails = False
        try:
            store.check(store.base, store.last_index())
        except Damaged:
            self.world.operator.lose(self, "damage found at a start")
            return
        self.applied = self.told_applied = store.base
        self._restore(store.snapshot)
        self.applied_membership = store.snapshot.mark.membership
        self._memberships = [(store.base, self.applied_membership)]
        for entry in store.log:
            if entry.kind == MEMBERSHIP:
                self._memberships.append((entry.index, decode_membership(entry.data)))
        self.role = Role.FOLLOWER
        self.leader = 0
        self.term = store.hard_state.term
        self.proposed: dict[int, tuple[int, int]] = {}
        """Index to (term, command) of what clients wait for."""
        self._written = self._synced = 0
        self._syncing = False
        self._sync_to = 0
        self._sync_wanted = False
        self._waiting: deque[tuple[int, tuple[int, int] | None, Answers]] = deque()
        self._marks: deque[tuple[int, SnapshotMark]] = deque()
        random = self.random.random
        self.node = self.world.make_node(
            replace(self.config, floor=self.disk.floor),
            store,
            store.hard_state,
            self.applied_membership,
            self.applied,
            lambda below: int(random() * below),
        )
        self.pump()

    def recognises_its_directory(self) -> bool:
        """Whether the directory found is the one of the last start, by what the list of members says."""
        directory = self.found or self.disk
        return directory.incarnation >= self.world.incarnations.get(self.id, 0)

    def give_up(self) -> None:
        """Stop for ever."""
        self.node = None
        self.lost = self.removed = True

    def begin_anew(self, incarnation: int, state: HardState, floor: tuple[int, int]) -> Disk:
        """Be ready to start with what was found in place of the directory, or with nothing; the new disk."""
        self.incarnations += 1
        self.lost = self.removed = False
        self.disk = self.found or Disk(Membership((), ()))
        self.disk.incarnation = incarnation
        self.disk.floor = floor
        for store in (self.disk.view, self.disk.durable):
            store.hard_state = state
        self.found = self.earlier = None
        self._memberships = [(0, self.disk.view.snapshot.mark.membership)]
        return self.disk

    def crash(self) -> None:
        """Lose the process, and of the disk what was not synced."""
        self.node = None
        disk = self.disk
        written = disk.pending.copy()
        before = len(disk.pending)
        lost = disk.crash(self.random, self.world.swarm.torn)
        self.world.seen["records lost"] += lost
        kept = before - lost
        if lost and kept:
            self.world.seen["torn writes"] += 1
        if kept:
            self._hard_states_durable()
        if self.role in UNHEARD and self.announced < self.term:
            term = disk.durable.hard_state.term
            self.world.invariants.forgotten(self.id, self.term, term, written[kept:])

    # What the host does

    def pump(self) -> None:
        """Do what the node wants done until it wants nothing."""
        node = self.node
        assert node is not None, "only who runs is pumped"
        try:
            while (ready := node.ready()) is not None:
                self._handle(ready)
        except Damaged:
            self.world.operator.lose(self, "damage found while running")
            return
        if self._sync_wanted and not self._syncing:
            self._sync_wanted = False
            self._syncing = True
            self._sync_to = self._written
            self.world.sync_later(self)

    def _handle(self, ready: Ready) -> None:
        world = self.world
        role_before, term_before = self.role, self.term
        if ready.hard_state is not None:
            self.term = ready.hard_state.term
        self.leader = ready.leader
        leads = ready.role is Role.LEADER
        led = leads and role_before is Role.LEADER and term_before == self.term
        self.role = ready.role
        if leads and not led:
            log = self.disk.view
            world.invariants.became_leader(self.id, self.term, log, self.voters)
        if ready.messages:
            self._send_at_once(ready.messages)
        writes = bool(ready.entries) or ready.snapshot is not None or ready.hard_state is not None
        if writes:
            self._write(ready, led)
        answers = ready.messages_after_persistence
        if writes or answers:
            entries = ready.entries
            last: tuple[int, int] | None = None
            if entries:
                last = (entries[-1].index, entries[-1].term)
            elif ready.snapshot is not None:
                last = (ready.snapshot.mark.index, ready.snapshot.mark.term)
            if not writes and not self._waiting:
                for message in answers:
                    self._send(message)
            else:
                self._waiting.append((self._written, last, answers))
                self._sync_wanted = True
        if ready.committed:
            self._committed(ready.committed[-1].index)
            self._apply(ready.committed)
        for context, index in ready.reads:
            world.seen["reads"] += 1
            world.invariants.read_answered(self.id, context, index)
        for peer in ready.snapshot_wanted:
            world.snapshot_later(self, peer)

    def _send_at_once(self, messages: list[Message]) -> None:
        world = self.world
        durable = self.disk.durable
        for message in messages:
            # A leader tells of a commit before it hands out the entries, if others were faster than its own disk.
            if message.commit > world.invariants.commit and message.kind is not APPEND_ANSWER:
                self._committed(message.commit)
            world.invariants.sends_at_once(self.id, message, durable)
            self._send(message)

    def _send(self, message: Message) -> None:
        if message.term > self.announced and message.kind not in PRE_VOTES:
            self.announced = message.term
        if self.world.rests is not None and message.kind is not MessageKind.HEARTBEAT_ANSWER:
            self.world.rests.stirs(self)
        self.world.send(message)

    @property
    def voters(self) -> tuple[int, ...]:
        """The voters by the last membership in its log, committed or not."""
        return self._memberships[-1][1].voters

    @property
    def memberships(self) -> list[tuple[int, Membership]]:
        """Those in its log, the last is in effect; of who is down, those it had."""
        return self._memberships

    def _write(self, ready: Ready, led: bool) -> None:
        disk = self.disk
        before = len(disk.pending)
        if ready.snapshot is not None:
            self._install(ready.snapshot)
        hard_state_first = self.world.swarm.hard_state_first
        if hard_state_first and ready.hard_state is not None:
            disk.write((HARD_STATE, ready.hard_state))
        if ready.entries:
            entries = ready.entries
            invariants = self.world.invariants
            first = entries[0].index
            if first <= disk.view.last_index():
                self.world.seen["logs cut"] += 1
            if led:
                invariants.leader_wrote(self.id, first, disk.view)
            invariants.wrote(self.id, entries, disk.view)
            memberships = self._memberships
            while memberships[-1][0] >= first and len(memberships) > 1:
                memberships.pop()
            for entry in entries:
                disk.write((ENTRIES, entry))
                if entry.kind == MEMBERSHIP:
                    after = decode_membership(entry.data)
                    self._changes(memberships[-1], after, led)
                    memberships.append((entry.index, after))
        if not hard_state_first and ready.hard_state is not None:
            disk.write((HARD_STATE, ready.hard_state))
        self._written += len(disk.pending) - before

    def _changes(self, last: tuple[int, Membership], after: Membership, led: bool) -> None:
        """A membership goes into the log behind another."""
        since, before = last
        assert self.node is not None, "who is down writes nothing"
        commit = self.node.status().commit if led else since
        self.world.invariants.changes(self.id, before, after, committed=since <= commit)

    def _install(self, snapshot: Snapshot) -> None:
        """Take another member's state in place of the own."""
        self.world.seen["snapshots installed"] += 1
        self.disk.write((SNAPSHOT, snapshot))
        self._restore(snapshot)
        self.applied = snapshot.mark.index
        self.applied_membership = snapshot.mark.membership
        self._memberships = [(snapshot.mark.index, snapshot.mark.membership)]
        history = self.world.history
        for index, command in enumerate(self.content, 1):
            history.applied(self.id, index, command)

    def _restore(self, snapshot: Snapshot) -> None:
        """The state machine as of a snapshot: its chained hash, then the commands."""
        self.content = array("q")
        self.content.frombytes(snapshot.data)
        self.state = self.content.pop(0) if snapshot.data else 0

    def _committed(self, commit: int) -> None:
        invariants = self.world.invariants
        if commit > invariants.commit:
            voters = None
            if self.role is Role.LEADER:
                voters = self.voters
                assert self.node is not None, "who is down learns nothing"
                commit = self.node.status().commit  # what is handed out may be a portion
            log, disks = self.disk.view, self.world.disks
            invariants.advanced(self.id, commit, self.term, log, voters, disks)

    def _apply(self, entries: list[Entry]) -> None:
        world = self.world
        durable = self.disk.durable
        for entry in entries:
            index = entry.index
            if index != self.applied + 1:
                world.invariants.violated(
                    "applied in order", f"member {self.id} at {index} after {self.applied}"
                )
            world.invariants.applies(self.id, entry, durable)
            command = 0
            if entry.kind == COMMAND:
                command = int.from_bytes(entry.data[:COMMAND_ID_BYTES], "little")
            elif entry.kind == MEMBERSHIP:
                self.applied_membership = decode_membership(entry.data)
                world.membership_applied()
            self.content.append(command)
            self.applied = index
            self.state = hash((self.state, command))
            world.history.applied(self.id, index, command)
            world.history.came_to(self.id, index, self.state)
            if self.proposed and index in self.proposed:
                term, proposed = self.proposed.pop(index)
                if term == entry.term:
                    world.history.acknowledge(index, proposed)
        world.applied_later(self, self.applied)
        every = world.swarm.snapshot_every
        if every and self.applied - self.disk.view.base >= every:
            self.take_snapshot()

    def take_snapshot(self) -> None:
        """Write a snapshot of what is applied, unless one is being written; the log is cut when it is durable."""
        if self._marks or self.applied <= self.disk.view.base:
            return
        term = self.disk.view.term(self.applied)
        mark = SnapshotMark(self.applied, term, self.applied_membership)
        data = array("q", (self.state,)).tobytes() + self.content.tobytes()
        self.disk.pending.append((SNAPSHOT, Snapshot(mark, data)))
        self._written += 1
        self._marks.append((self._written, mark))
        self._sync_wanted = True

    # What completes later

    def synced(self) -> None:
        """The sync that was under way has completed."""
        node = self.node
        assert node is not None, "a sync of an earlier life is not told"
        self._syncing = False
        self._hard_states_durable(self._sync_to - self._synced)
        self.disk.synced(self._sync_to - self._synced)
        self._synced = self._sync_to
        while self._marks and self._marks[0][0] <= self._synced:
            self.world.seen["snapshots taken"] += 1
            mark = self._marks.popleft()[1]
            self.disk.view.write((SNAPSHOT, self.disk.durable.snapshot))
            node.compact(mark.index, mark.term)
        persisted: tuple[int, int] | None = None
        each = not self.world.swarm.sync_covers_all
        while self._waiting and self._waiting[0][0] <= self._synced:
            _, last, answers = self._waiting.popleft()
            for message in answers:
                self._send(message)
            persisted = last or persisted
            if each and last is not None:
                node.advance(persisted=last)
        if persisted is not None and not each:
            node.advance(persisted=persisted)
        self.pump()

    def _hard_states_durable(self, count: int | None = None) -> None:
        if count is None:
            self.world.invariants.hard_state_durable(self.id, self.disk.durable.hard_state)
            return
        for kind, content in self.disk.pending[:count]:
            if kind == HARD_STATE:
                self.world.invariants.hard_state_durable(self.id, content)  # type: ignore[arg-type]
