"""A group of nodes in one process: disks that forget what was not synced, a network under the test's control.

Nothing happens by itself. A test drives nodes through `Member.node`, then `Cluster.collect` takes what they want done:
messages that may go at once are put on the network, writes are queued, entries to apply are applied. `Member.sync`
completes writes, in order, and only then do the answers leave. Every step is checked against the safety properties of
the paper's figure 3; a violation raises `Violation`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

from fluxmq.raft.commits import CommitRule
from fluxmq.raft.errors import Compacted
from fluxmq.raft.node import Config, Node
from fluxmq.raft.types import (
    COMMAND,
    Entry,
    HardState,
    Membership,
    Message,
    ProposalAccepted,
    Ready,
    Role,
    Snapshot,
    SnapshotMark,
)

NOTHING = HardState(0, 0, 0)


class Violation(AssertionError):  # noqa: N818 - it is the finding
    """A safety property does not hold."""


class Disk:
    """The durable part of a node: hard state, log behind a snapshot."""

    def __init__(self, membership: Membership, entries: Iterable[Entry] = ()) -> None:
        self.hard_state = NOTHING
        self.mark = SnapshotMark(0, 0, membership)
        self.log: list[Entry] = list(entries)
        self.commands: list[bytes] = []
        """What the snapshot holds: the state machine of these tests is the list of its commands."""

    def first_index(self) -> int:
        return self.mark.index + 1

    def last_index(self) -> int:
        return self.mark.index + len(self.log)

    def term(self, index: int) -> int:
        if index == self.mark.index:
            return self.mark.term
        return self._at(index).term

    def _at(self, index: int) -> Entry:
        if index <= self.mark.index:
            raise Compacted(str(index))
        return self.log[index - self.mark.index - 1]

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        for index in range(low, high):
            entry = self._at(index)
            size += len(entry.data)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    def write(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self.mark = ready.snapshot.mark
            self.commands = ready.snapshot.data.split(b"|") if ready.snapshot.data else []
            self.log = []
        if ready.entries:
            keep = ready.entries[0].index - self.mark.index - 1
            assert 0 <= keep <= len(self.log), "entries follow what is written"
            self.log[keep:] = ready.entries
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state

    def compact(self, index: int, membership: Membership, commands: list[bytes]) -> None:
        term = self.term(index)
        self.log = self.log[index - self.mark.index :]
        self.mark = SnapshotMark(index, term, membership)
        self.commands = commands


class Member:
    """One node with its disk and its state machine."""

    def __init__(self, cluster: Cluster, number: int, disk: Disk) -> None:
        self.cluster = cluster
        self.number = number
        self.disk = disk
        self.start()

    def start(self) -> None:
        disk = self.disk
        self.writes: deque[Ready] = deque()
        self.applied = disk.mark.index
        self.commands = list(disk.commands)
        self.reads: list[tuple[int, int]] = []
        self.reads_failed: list[int] = []
        self.snapshot_wanted: list[int] = []
        self.node = Node(
            Config(self.number, **self.cluster.options),  # type: ignore[arg-type]
            disk,
            disk.hard_state,
            disk.mark.membership,
            disk.mark.index,
            self.cluster.random,
        )

    def collect(self) -> bool:
        """Take everything the node wants done; whether there was something."""
        any_at_all = False
        while (ready := self.node.ready()) is not None:
            any_at_all = True
            self.cluster.check_leader(self.number, ready)
            self.cluster.post(ready.messages)
            self.writes.append(ready)
            self.reads += ready.reads
            self.reads_failed += ready.reads_failed
            self.snapshot_wanted += ready.snapshot_wanted
            for entry in ready.committed:
                self.apply(entry)
            if ready.committed:
                self.node.advance(applied=self.applied)
        return any_at_all

    def apply(self, entry: Entry) -> None:
        if entry.index != self.applied + 1:
            raise Violation(f"{self.number} applies {entry.index} after {self.applied}")
        if entry.index > self.disk.last_index() or self.disk.term(entry.index) != entry.term:
            raise Violation(f"{self.number} applies {entry.index}, which is not on its disk")
        self.cluster.check_applied(self.number, entry)
        self.applied = entry.index
        if entry.kind == COMMAND:
            self.commands.append(entry.data)

    def sync(self, most: int | None = None) -> bool:
        """Complete `most` writes, or all; whether there was one."""
        done = False
        while self.writes and (most is None or most > 0):
            ready = self.writes.popleft()
            self.disk.write(ready)
            if ready.snapshot is not None:
                mark = ready.snapshot.mark
                self.applied = mark.index
                self.commands = list(self.disk.commands)
                self.node.advance(persisted=(mark.index, mark.term), applied=mark.index)
            if ready.entries:
                last = ready.entries[-1]
                self.node.advance(persisted=(last.index, last.term))
            self.cluster.post(ready.messages_after_persistence)
            done = True
            if most is not None:
                most -= 1
        return done

    def crash(self) -> None:
        """Stop and start again with what is durable."""
        self.start()

    def compact(self) -> SnapshotMark:
        """Replace everything applied by a snapshot."""
        index = self.applied
        membership = self.node.membership_at(index)
        self.disk.compact(index, membership, list(self.commands))
        self.node.compact(index, self.disk.mark.term)
        return self.disk.mark

    def snapshot(self) -> Snapshot:
        """The snapshot on disk."""
        return Snapshot(self.disk.mark, b"|".join(self.disk.commands))


class Cluster:
    """Members 1 to `voters`, learners after them, and everything between them."""

    def __init__(
        self,
        voters: int,
        learners: int = 0,
        random: Callable[[int], int] | None = None,
        **options: int | bool | CommitRule,
    ) -> None:
        self.options: dict[str, int | bool | CommitRule] = {
            "election_ticks": 10,
            "heartbeat_ticks": 1,
            "max_inflight_bytes": 1 << 20,
            "max_message_bytes": 1 << 16,
            **options,
        }
        draws = count()
        self.random = random or (lambda below: next(draws) * 7 % below)
        ids = range(1, voters + 1)
        self.membership = Membership(tuple(ids), tuple(range(voters + 1, voters + learners + 1)))
        self.network: list[Message] = []
        self.cuts: set[tuple[int, int]] = set()
        self.divergent: set[int] = set()
        """Members of an appointed group that go on alone: they send nothing, and may lose what they apply."""
        self.leaders: dict[int, int] = {}
        self.committed: dict[int, Entry] = {}
        self.members: dict[int, Member] = {}
        for number in self.membership.voters + self.membership.learners:
            self.add(number, Disk(self.membership))

    def __getitem__(self, number: int) -> Member:
        return self.members[number]

    def add(self, number: int, disk: Disk) -> Member:
        """Put a member with this disk in place of, or beside, the others."""
        self.members[number] = Member(self, number, disk)
        return self.members[number]

    # What must never happen (paper figure 3)

    def check_leader(self, number: int, ready: Ready) -> None:
        if ready.role is Role.LEADER:
            term = self[number].node.status().term
            if self.leaders.setdefault(term, number) != number:
                raise Violation(f"{self.leaders[term]} and {number} lead term {term}")

    def check_applied(self, number: int, entry: Entry) -> None:
        if number in self.divergent:
            return
        known = self.committed.setdefault(entry.index, entry)
        if known != entry:
            raise Violation(f"{number} applies {entry}, another applied {known}")

    def check_logs(self) -> None:
        """Log matching: the same index and term mean the same entries up to there, on any two disks."""
        disks = [member.disk for member in self.members.values()]
        for one in disks:
            for other in disks:
                matched = False
                low = max(one.mark.index, other.mark.index)
                for index in range(min(one.last_index(), other.last_index()), low, -1):
                    mine, theirs = one._at(index), other._at(index)
                    matched = matched or mine.term == theirs.term
                    if matched and mine != theirs:
                        raise Violation(f"logs part at {index}: {mine} and {theirs}")

    # Network

    def post(self, messages: Iterable[Message]) -> None:
        """Put messages on the network, where no cut keeps them from it."""
        self.network += [
            message
            for message in messages
            if (message.source, message.target) not in self.cuts
            and message.source not in self.divergent
        ]

    def cut(self, number: int) -> None:
        """Nothing comes to a member or leaves it any more."""
        for other in self.members:
            self.cuts |= {(number, other), (other, number)}

    def heal(self) -> None:
        self.cuts.clear()

    def collect(self) -> bool:
        """Take what all members want done."""
        return sum(member.collect() for member in self.members.values()) > 0

    def sync(self) -> bool:
        """Complete all writes."""
        return sum(member.sync() for member in self.members.values()) > 0

    def deliver(self, wanted: Callable[[Message], bool] = lambda message: True) -> bool:
        """Deliver the messages that are on the network now and wanted; the others stay."""
        now, self.network = self.network, []
        delivered = False
        for message in now:
            if (message.source, message.target) in self.cuts:
                continue
            if message.target in self.members and wanted(message):
                self[message.target].node.step(message)
                delivered = True
            else:
                self.network.append(message)
        return delivered

    def settle(self, wanted: Callable[[Message], bool] = lambda message: True) -> None:
        """Go on until nothing happens any more."""
        for _ in range(1000):
            busy = self.collect()
            busy = self.sync() or busy
            busy = self.collect() or busy
            busy = self.deliver(wanted) or busy
            if not busy:
                self.check_logs()
                return
        raise AssertionError("the cluster does not come to rest")

    # Shorter ways to say it

    def elect(self, number: int) -> Member:
        """Make a member campaign, and settle."""
        self[number].node.campaign()
        self.settle()
        assert self[number].node.status().role is Role.LEADER, self[number].node.status()
        return self[number]

    def propose(self, number: int, *data: bytes) -> ProposalAccepted:
        """Propose at a member that must be leader; nothing else happens yet."""
        outcome = self[number].node.propose(data)
        assert isinstance(outcome, ProposalAccepted), outcome
        return outcome

    def tick(self, times: int = 1) -> None:
        """Let time pass everywhere, settling after each tick."""
        for _ in range(times):
            for member in self.members.values():
                member.node.tick()
            self.settle()

    def tick_alone(self, number: int, times: int = 1) -> None:
        """Let time pass for one member, and nothing else happen."""
        for _ in range(times):
            self[number].node.tick()

    def leader(self) -> Member | None:
        """The leader of the highest term."""
        leading = [
            member for member in self.members.values() if member.node.status().role is Role.LEADER
        ]
        return max(leading, key=lambda member: member.node.status().term, default=None)
