"""Joins a group to its Raft node and to the shard's log: entries out to be written, committed ones in.

The group's own disk is one voter of it. An entry is applied when the node says that it is committed, which on a
single node is when the shard's log is synced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fluxmq.logs import get_logger
from fluxmq.raft.node import Node
from fluxmq.raft.types import COMMAND, Entry, ProposalAccepted, Ready, Role
from fluxmq.shards.queues.group import Group
from fluxmq.shards.queues.group_log import GroupLog
from fluxmq.shards.queues.shared_log import SharedLog

_log = get_logger("fluxmq.queues")

COMMIT_EVERY = 256
"""Entries after which a commit index that moved alone is written: it is a hint from where replay may begin (a node
learns it anew from its leader, or by leading), and a record with every entry costs half as much as the entry."""


class RaftKeeper:
    """Implements ``Keeper`` for a durable group."""

    def __init__(
        self,
        group: Group,
        node: Node,
        log: GroupLog,
        shared: SharedLog,
        recovered: Callable[[], None],
    ) -> None:
        self.group = group
        self.node = node
        self.log = log
        self._shared = shared
        self._recovered: Callable[[], None] | None = recovered
        self.leading = False
        """Whether proposals are taken here, and everything before them is applied."""
        self._pumping = False
        self._again = False
        self.hard_state = (0, 0)
        self._commit_written = 0
        shared.join(self)

    @property
    def writable(self) -> bool:
        """Whether no sync is under way: what is written waits for it."""
        return not self._shared.busy

    def start(self) -> None:
        """A group of one elects itself; what its log holds is applied on the way."""
        self.node.campaign()
        self.pump()

    def propose(self, data: bytes) -> tuple[int, int] | None:
        """Take an entry."""
        if self._shared.full:
            return None
        outcome = self.node.propose([data])
        if isinstance(outcome, ProposalAccepted):
            return outcome.first_index, outcome.term
        return None

    def pump(self) -> None:
        """Do what the node says is to be done, until it has nothing more to say."""
        if self._pumping:
            self._again = True
            return  # asked from within: the outer call goes on until nothing is left
        self._pumping = True
        try:
            while (ready := self.node.ready()) is not None:
                self._again = False
                self._persist(ready)
                if ready.committed:
                    self._apply(ready.committed)
                self._lead(ready.role is Role.LEADER)
                if not self._again and not self.node.behind:
                    break  # what a node says at once is all it has, but for what is read in pieces
        finally:
            self._pumping = False

    def _persist(self, ready: Ready) -> None:
        log = self.log
        written = False
        if ready.hard_state is not None:
            term, vote, commit = ready.hard_state
            if (term, vote) != self.hard_state or commit >= self._commit_written + COMMIT_EVERY:
                self.hard_state = (term, vote)
                self._commit_written = commit
                self._shared.wal.append_hard_state(log.number, term, vote, commit)
                written = True
        for entry in ready.entries:
            log.append(entry)
            written = True
        if written:
            self._shared.wrote(self, log.last_index(), log.term(log.last_index()))

    def _apply(self, committed: Sequence[Entry]) -> None:
        group = self.group
        for entry in committed:
            if entry.kind == COMMAND:
                group.apply(entry.index, entry.term, entry.data)
            else:
                group.skip(entry.index, entry.term)
        last = committed[-1].index
        self.log.applied(last)
        self.node.advance(applied=last)

    def _lead(self, leader: bool) -> None:
        """Commands are taken once an entry of the own term is applied: everything acknowledged is seen then."""
        group = self.group
        if leader and not self.leading and group.applied_term == self.node.status().term:
            self.leading = True
            if self._recovered is not None:
                self._recovered()
                self._recovered = None
            group.lead()
        elif not leader and self.leading:
            self.leading = False
            group.dispatch.reset()

    def persisted(self, index: int, term: int) -> None:
        """The log is durable up to an entry. An error of our own, or of the disk, ends this group and no other."""
        if self.group.failed:
            return
        try:
            self.node.advance(persisted=(index, term))
            self.pump()
        except Exception as error:  # noqa: BLE001 (the group's outermost frame)
            _log.exception("a group has failed", extra={"group": self.group.name})
            self.log_failed(repr(error))

    def log_failed(self, why: str) -> None:
        """The log takes nothing more: step down for good."""
        self.leading = False
        self.group.fail(why)


class MemoryKeeper:
    """Commits at once: for queues that live in memory and end with the shard."""

    leading = True
    writable = True

    def __init__(self, group: Group) -> None:
        self._group = group
        self._index = 0
        self._applied = 0
        self._taken: list[bytes] = []
        self._pumping = False

    def propose(self, data: bytes) -> tuple[int, int]:
        """Take an entry."""
        self._index += 1
        self._taken.append(data)
        return self._index, 1

    def pump(self) -> None:
        """Apply what was taken."""
        if self._pumping:
            return  # the outer call goes on until nothing is left
        self._pumping = True
        try:
            while self._taken:
                self._applied += 1
                self._group.apply(self._applied, 1, self._taken.pop(0))
        finally:
            self._pumping = False
