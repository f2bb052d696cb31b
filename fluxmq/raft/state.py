"""Shared state of a node's parts: its id, term, vote and role, the log, and outgoing messages.

Data and the three changes of role that any part may cause by a message; the roles' work is in
``elections``, ``follower`` and ``leader``. It knows nothing of peers' progress or of reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fluxmq.raft.commits import EVERY_VOTER, MAJORITY, CommitRule
from fluxmq.raft.log import RaftLog
from fluxmq.raft.memberships import Memberships
from fluxmq.raft.types import Message, MessageKind, Role


@dataclass(frozen=True, slots=True)
class Config:
    """Configuration of a node. Times are counted in calls of `Node.tick`.

    * `election_ticks`: after so long without a leader, and a random time up to as long again, a
      follower campaigns; a leader that has not heard from a majority for so long steps down. Above
      `heartbeat_ticks`.
    * `max_inflight_bytes`: unanswered data per peer.
    * `max_message_bytes`: data of one append message; an entry larger than that goes alone.
    * `pre_vote`: ask before campaigning whether it would succeed (dissertation section 9.6).
    * `check_quorum`: leaders step down without a majority, and nodes do not vote while there is a
      leader (section 6.2).
    * `max_unstable_bytes`: a leader's entries in memory that are not both durable and committed;
      more are refused.
    * `max_apply_bytes`: data read from disk for one `Ready.committed`.
    * `max_inflight_appends`: unanswered appends with entries per peer. A peer that is slow to
      answer gets more with each, instead of more of them: the cost of an append hardly depends on
      its content.
    * `eager_commit`: a leader sends its commit index at once; otherwise with the next entries, with
      heartbeats, or on `Node.announce`: a message each way less per lone entry and peer.
    * `floor`: (term, index) up to which the log counts as held when votes are weighed. For a node
      that has lost what it promised and returns under its number: a leader gives it the commit
      index when the node has no vote. Until its log is as complete it does not campaign, and it
      votes for no node whose log is not: a candidate removed long ago still counts its vote.
    * `commit_rule`: how far the voters' logs are committed.
    * `appointed`: nobody is elected. A record outside the group names the leader of each term, and
      the host calls `Node.appoint` there. It goes with the rule `EVERY_VOTER`, which says why.
    """

    id: int
    election_ticks: int
    heartbeat_ticks: int
    max_inflight_bytes: int
    max_message_bytes: int
    pre_vote: bool = True
    check_quorum: bool = True
    max_unstable_bytes: int = 64 << 20
    max_apply_bytes: int = 16 << 20
    floor: tuple[int, int] = (0, 0)
    eager_commit: bool = True
    max_inflight_appends: int = 1 << 20
    commit_rule: CommitRule = MAJORITY
    appointed: bool = False

    def __post_init__(self) -> None:
        """Assert valid values; the settings' own checks come before."""
        assert self.id > 0, "0 stands for no node"
        assert 0 < self.heartbeat_ticks < self.election_ticks, "a heartbeat must fit into a timeout"
        assert self.max_inflight_bytes > 0, "nothing could be sent"
        assert self.max_inflight_appends > 0, "nothing could be sent"
        assert self.max_message_bytes > 0, "nothing could be sent"
        assert not self.appointed or self.commit_rule is EVERY_VOTER, "entries could be lost"


class NodeState:
    """Shared state of one node. `messages` may leave at once, `answers` once all is persisted."""

    __slots__ = (
        "answers",
        "config",
        "elapsed",
        "floor",
        "id",
        "leader",
        "log",
        "memberships",
        "messages",
        "random",
        "role",
        "term",
        "timeout",
        "vote",
    )

    def __init__(
        self,
        config: Config,
        log: RaftLog,
        memberships: Memberships,
        term: int,
        vote: int,
        random: Callable[[int], int],
    ) -> None:
        self.config = config
        self.id = config.id
        self.floor = config.floor
        self.log = log
        self.memberships = memberships
        self.term = term
        self.vote = vote
        self.random = random
        self.role = Role.FOLLOWER
        self.leader = 0
        self.elapsed = 0
        """Ticks since the leader was heard, the campaign began, or the quorum was checked."""
        self.timeout = 0
        self.messages: list[Message] = []
        self.answers: list[Message] = []
        self.reset_timeout()

    def reset_timeout(self) -> None:
        """Restart the timeout, with a random duration (paper section 5.2)."""
        self.elapsed = 0
        ticks = self.config.election_ticks
        self.timeout = ticks + self.random(ticks)

    def enter_term(self, term: int) -> None:
        """Enter a term; in a new one no vote is cast yet."""
        assert term >= self.term, "terms only rise"
        if term > self.term:
            self.term = term
            self.vote = 0

    def follow(self, term: int, leader: int) -> None:
        """Become a follower in `term`, of `leader`, or of an unknown one (0)."""
        self.enter_term(term)
        self.role = Role.FOLLOWER
        self.leader = leader
        self.reset_timeout()

    def in_lease(self) -> bool:
        """Return whether a leader was heard within the shortest timeout: no other is needed."""
        return (
            self.config.check_quorum
            and self.leader != 0
            and self.elapsed < self.config.election_ticks
        )

    def is_whole(self) -> bool:
        """Return whether this node's log has all that the node has promised to hold."""
        log = self.log
        return log.snapshot is None and (log.last_term, log.last_index) >= self.floor

    def may_campaign(self) -> bool:
        """Return whether this node may be elected: it is a voter, and its log is whole.

        A node that an uncommitted change removes still may: it can be the only one that can commit
        that change (dissertation section 4.2.2).
        """
        if self.config.appointed or not self.is_whole():
            return False
        memberships = self.memberships
        if self.id in memberships.current.voters:
            return True
        return (
            memberships.since > self.log.commit and self.id in memberships.before_current().voters
        )

    def end(self) -> tuple[int, int]:
        """Return term and index of the log's end, or of the floor above it: the minimum for a log
        that is as complete (section 5.4.1).
        """
        log = self.log
        return max((log.last_term, log.last_index), self.floor)

    def send(self, message: Message) -> None:
        """Send a message that promises nothing about this node's disk."""
        self.messages.append(message)

    def answer(self, message: Message) -> None:
        """Send a message that holds only once everything received so far is durable."""
        self.answers.append(message)

    def reject(self, kind: MessageKind, message: Message) -> None:
        """Reject `message`, in this node's term."""
        self.answer(Message(kind, self.id, message.source, self.term, reject=True))
