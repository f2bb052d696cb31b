"""One node of a replication group: events go in, and work comes out.

`step`, `tick`, `propose` and the other verbs change the node's state and send nothing; `ready`
returns what is new since its last call. It consumes: several `Ready` may be in flight at once, and
the host handles each as its docstring says, in order. `advance` reports what has been done. The
host drives it like this::

    node.step(message) / node.tick() / node.propose([...])
    while (ready := node.ready()) is not None:
        send ready.messages; write ready.entries and ready.hard_state; apply ready.committed; ...
    when a write is durable:
        send its messages_after_persistence, node.advance(persisted=(index, term)), again

A node alone in its group goes through the same steps: it votes for itself, and leads and commits
when its own write is durable.

It knows nothing of sockets, files, clocks, chance (times are ticks, random numbers are injected),
the meaning of entries, or whether a directory is the one the node has always had (a node restored
from a copy has broken its promises; opening the directory has to detect that).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fluxmq.raft.elections import Elections, VoteOutcome
from fluxmq.raft.errors import InconsistentLog
from fluxmq.raft.follower import on_append, on_heartbeat, on_snapshot
from fluxmq.raft.leader import Leadership
from fluxmq.raft.log import RaftLog, StableLog
from fluxmq.raft.memberships import Memberships, decode_membership
from fluxmq.raft.quiescence import Quiescence
from fluxmq.raft.state import Config, NodeState
from fluxmq.raft.types import (
    MEMBERSHIP,
    TRANSFER,
    ChangeRefused,
    Entry,
    HardState,
    Membership,
    MembershipChange,
    Message,
    MessageKind,
    NotLeader,
    Overloaded,
    ProposalAccepted,
    RaftStatus,
    Ready,
    Role,
    Snapshot,
)

__all__ = ["Config", "Node", "StableLog"]

_FROM_LEADER = (MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT)
_REQUESTS = (MessageKind.VOTE, MessageKind.PRE_VOTE)
_OF_ELECTIONS = (
    *_REQUESTS,
    MessageKind.VOTE_ANSWER,
    MessageKind.PRE_VOTE_ANSWER,
    MessageKind.TIMEOUT_NOW,
)


class Node:
    """A member of a replication group.

    `membership` is the one in effect at `applied` (that of the snapshot, or the group's first);
    changes in the log after it are found by reading the log once. `random(n)` returns a number from
    0 to n - 1. Raises InconsistentLog when `applied`, or the known commit index, is not within the
    log.
    """

    __slots__ = (
        "_applied",
        "_config",
        "_elections",
        "_given",
        "_given_leader",
        "_given_role",
        "_leadership",
        "_log",
        "_reads_failed",
        "_state",
        "quiescence",
    )

    def __init__(
        self,
        config: Config,
        log: StableLog,
        hard_state: HardState,
        membership: Membership,
        applied: int,
        random: Callable[[int], int],
    ) -> None:
        self._config = config
        self._log = RaftLog(log, hard_state.commit, applied)
        memberships = Memberships(applied, membership)
        self._read_memberships(memberships, applied)
        term, vote = hard_state.term, hard_state.vote
        if self._log.last_term > term:
            # Written together and torn apart. No answer left in this term, so no vote was cast in
            # it.
            term, vote = self._log.last_term, 0
        self._state = NodeState(config, self._log, memberships, term, vote, random)
        self._elections = Elections(self._state)
        self._leadership: Leadership | None = None
        self.quiescence = Quiescence(self._state)
        self._reads_failed: list[int] = []
        self._applied = applied
        self._given = hard_state
        self._given_role = Role.FOLLOWER
        self._given_leader = 0

    def _read_memberships(self, memberships: Memberships, applied: int) -> None:
        """Find the changes behind `applied`, for a change is in effect from its entry on."""
        index = applied + 1
        while index <= self._log.last_index:
            entries = self._log.slice(index, self._config.max_apply_bytes)
            for entry in entries:
                if entry.kind == MEMBERSHIP:
                    memberships.append(entry.index, decode_membership(entry.data))
            index = entries[-1].index + 1

    # Events

    def step(self, message: Message) -> None:
        """Process a peer's message. Late, duplicate and reordered ones do no harm.

        Raises InconsistentLog when it shows that this node or the sender has lost what it
        acknowledged, and MalformedMessage for a message that no node sends.
        """
        state = self._state
        if self._config.appointed and message.kind in _OF_ELECTIONS:
            return  # terms come from the record alone
        if message.term > state.term:
            if not self._meet_higher_term(message):
                return
        elif message.term < state.term:
            self._meet_lower_term(message)
            return
        kind = message.kind
        if kind in _FROM_LEADER:
            self._from_leader(message)
        elif kind in _OF_ELECTIONS:
            self._of_election(message)
        elif self._leadership is not None:
            if kind is MessageKind.APPEND_ANSWER:
                self._leadership.on_append_answer(message)
            else:
                self._leadership.on_heartbeat_answer(message)
            self._step_down_if_removed()

    def _of_election(self, message: Message) -> None:
        kind = message.kind
        if kind in _REQUESTS:
            self._elections.on_request(message)
        elif self._leadership is not None:
            return
        elif kind is not MessageKind.TIMEOUT_NOW:
            self._settle(self._elections.on_answer(message))
        elif self._state.may_campaign():
            self._campaign(pre_vote=False, transfer=True)

    def _meet_higher_term(self, message: Message) -> bool:
        """Handle a higher term; return whether the message is to be processed.

        A vote request does not count while there is a leader: a node that was cut off, or removed,
        must not depose it (dissertation sections 4.2.3 and 6.4.1). Requesting or granting a
        pre-vote does not start a new term.
        """
        kind = message.kind
        if kind in _REQUESTS and message.context != TRANSFER and self._state.in_lease():
            return False
        asks = kind is MessageKind.PRE_VOTE
        if not asks and (kind is not MessageKind.PRE_VOTE_ANSWER or message.reject):
            self._follow(message.term, message.source if kind in _FROM_LEADER else 0)
        return True

    def _meet_lower_term(self, message: Message) -> None:
        """Answer a leader or a candidate of a lower term, which could otherwise wait for ever.

        Two candidates that do not hear of each other's terms raise theirs at the same pace: without
        an answer (paper figure 2, RequestVote 1) the one behind stays behind.
        """
        if message.kind in _FROM_LEADER:
            self._state.reject(MessageKind.APPEND_ANSWER, message)
        elif message.kind is MessageKind.PRE_VOTE:
            self._state.reject(MessageKind.PRE_VOTE_ANSWER, message)
        elif message.kind is MessageKind.VOTE:
            self._state.reject(MessageKind.VOTE_ANSWER, message)

    def _from_leader(self, message: Message) -> None:
        state = self._state
        if state.role is Role.LEADER or (self._config.appointed and self._leadership is not None):
            raise InconsistentLog(
                f"node {message.source} leads term {state.term} as well as this node"
            )
        if state.role is not Role.FOLLOWER or state.leader != message.source:
            self._follow(message.term, message.source)
        state.elapsed = 0
        if message.kind is MessageKind.APPEND:
            on_append(state, message)
        elif message.kind is MessageKind.HEARTBEAT:
            on_heartbeat(state, message)
        else:
            on_snapshot(state, message)

    def tick(self) -> None:
        """Advance time by one tick."""
        state = self._state
        if self._leadership is not None:
            if not self._leadership.tick():
                self._follow(state.term, 0)
            return
        state.elapsed += 1
        if state.elapsed < state.timeout:
            return
        if state.may_campaign():
            self.campaign()
        else:
            state.leader = 0  # it hears from no leader, and may not take its place

    def campaign(self) -> None:
        """Try to become leader now; a leader stays one.

        A group's only voter accepts proposals at once, and shows itself as leader when `advance`
        reports that the first entry of its term is durable. Nothing happens in an appointed group.
        """
        if self._leadership is None and self._state.may_campaign():
            self._campaign(pre_vote=self._config.pre_vote)

    def appoint(self, term: int) -> bool:
        """Lead exactly this term of an appointed group (see ``commits``), for which its record
        names this node; return whether it does. The role shows when the term is durable here.

        False for a term that has passed here: after a restart, what this node sent as its leader
        may differ from what it has kept. False for one that is no voter by its own log, or lacks
        what it has promised to hold: no record names it by right.
        """
        state = self._state
        if self._leadership is not None and term == state.term:
            return True
        allowed = self._config.appointed and state.is_whole()
        if term <= state.term or not allowed or state.id not in state.memberships.current.voters:
            return False
        self._follow(term, 0)
        state.vote = state.id
        state.role = Role.CANDIDATE
        self._lead(unopposed=True)
        return True

    def _campaign(self, *, pre_vote: bool, transfer: bool = False) -> None:
        outcome = self._elections.campaign(pre_vote=pre_vote, transfer=transfer)
        if outcome is VoteOutcome.WON and pre_vote:
            outcome = self._elections.campaign(pre_vote=False)
        if outcome is VoteOutcome.WON:
            self._lead(unopposed=True)

    def _settle(self, outcome: VoteOutcome) -> None:
        """Act on the result of an election."""
        state = self._state
        if outcome is VoteOutcome.LOST:
            self._follow(state.term, 0)
        elif outcome is VoteOutcome.WON:
            if state.role is Role.PRE_CANDIDATE:
                self._campaign(pre_vote=False)
            else:
                self._lead(unopposed=False)

    def _lead(self, *, unopposed: bool) -> None:
        self._state.elapsed = 0
        self._leadership = Leadership(self._state, unopposed=unopposed)
        self.quiescence.leadership = self._leadership

    def _follow(self, term: int, leader: int) -> None:
        if self._leadership is not None:
            self._reads_failed.extend(self._leadership.reads_open())
            self._leadership = self.quiescence.leadership = None
        self._state.follow(term, leader)

    def _step_down_if_removed(self) -> None:
        """Step down if removed, once the removal is committed (dissertation section 4.2.2)."""
        if self._leadership is not None and self._leadership.removed():
            self._leadership.announce()
            self._leadership.flush()  # tells the others the commit index
            self._follow(self._state.term, 0)

    # Requests

    def propose(self, data: Sequence[bytes]) -> ProposalAccepted | NotLeader | Overloaded:
        """Append commands, one entry each, in order; they leave with the next `ready`.

        Return Overloaded when more than `max_unstable_bytes` are neither durable nor committed, and
        NotLeader also while leadership is being handed over.
        """
        if self._leadership is None:
            return NotLeader(self._state.leader)
        return self._leadership.propose(data)

    def propose_membership(
        self, change: MembershipChange
    ) -> ProposalAccepted | NotLeader | ChangeRefused:
        """Change a node's place in the group, at once; undone if another leader overwrites it."""
        if self._leadership is None:
            return NotLeader(self._state.leader)
        return self._leadership.propose_membership(change)

    def transfer_leadership(self, to: int) -> bool:
        """Hand leadership to a voter; proposals are refused until it has taken over or a timeout
        passes.

        Return False when this node does not lead or `to` is not another voter.
        """
        return self._leadership is not None and self._leadership.transfer(to)

    def read_index(self, context: int) -> NotLeader | Overloaded | None:
        """Request the applied index from which a read sees everything acknowledged before this
        call.

        None: the answer comes in `Ready.reads`, or in `Ready.reads_failed` when leadership is lost.
        `context` is the caller's name for the read.
        """
        if self._leadership is None:
            return NotLeader(self._state.leader)
        return self._leadership.read_index(context)

    def offer_snapshot(self, peer: int, snapshot: Snapshot) -> Message | None:
        """Return the SNAPSHOT message for a peer in `Ready.snapshot_wanted`; None if it is not
        wanted.

        The host transfers it in as many pieces as it likes and steps it at the peer once, whole;
        then it calls `report_snapshot`. The peer answers by itself when the snapshot is durable
        there. The log behind the snapshot should be kept until then, or the peer needs the next
        snapshot.
        """
        return None if self._leadership is None else self._leadership.offer_snapshot(peer, snapshot)

    def report_snapshot(self, peer: int, ok: bool) -> None:
        """Report whether the snapshot offered to a peer has arrived; if not, it is wanted again."""
        if self._leadership is not None:
            self._leadership.report_snapshot(peer, ok=ok)

    def report_unreachable(self, peer: int) -> None:
        """Report that the connection to a peer is gone; messages may be lost."""
        if self._leadership is not None:
            self._leadership.report_unreachable(peer)

    def hold(self, term: int, index: int) -> None:
        """Vote from now on as if the log ended with that entry, or later: see `Config.floor`.

        For a member that has lost what it promised, when a leader of that term readmits it.
        """
        self._state.floor = max(self._state.floor, (term, index))
        if term > self._state.term:
            self._follow(term, 0)

    def announce(self) -> None:
        """Send the commit index with the next `ready`; for leaders without `eager_commit`."""
        if self._leadership is not None:
            self._leadership.announce()

    def start_over(self, peer: int) -> bool:
        """Forget the progress of a learner that has lost its log, or part of it, and fill it anew.

        Nothing was committed by counting a learner, so this undoes nothing. Return False when this
        node does not lead, or the peer is no learner: a voter that has lost its log must become one
        first. The host ensures that no earlier answer of the peer is stepped afterwards.
        """
        return self._leadership is not None and self._leadership.start_over(peer)

    def compact(self, index: int, term: int) -> None:
        """Begin the log on disk after `index`, which has `term`; a snapshot holds the rest."""
        self._log.compact(index, term)
        self._state.memberships.compact(self._log.base_index)

    # Work to do, and work done

    def ready(self) -> Ready | None:
        """Return what is new since the last call, or None. Call it until it returns None."""
        state = self._state
        log = self._log
        leadership = self._leadership
        reads: list[tuple[int, int]] = []
        wanted: list[int] = []
        if leadership is not None:
            leadership.flush()
            if leadership.reads:
                reads, leadership.reads = leadership.reads, reads
            if leadership.snapshot_wanted:
                wanted, leadership.snapshot_wanted = leadership.snapshot_wanted, wanted
        committed = log.take_committed(self._config.max_apply_bytes)
        snapshot = log.take_snapshot() if log.snapshot is not None else None
        entries: list[Entry] = log.take_entries() if log.given < log.last_index else []
        hard_state = self._new_hard_state(with_commit=bool(entries) or snapshot is not None)
        if not (
            entries
            or committed
            or state.messages
            or state.answers
            or hard_state is not None
            or reads
            or wanted
            or snapshot is not None
            or self._reads_failed
            or state.role is not self._given_role
            or state.leader != self._given_leader
        ):
            return None
        self._given_role = state.role
        self._given_leader = state.leader
        messages, state.messages = state.messages, []
        answers, state.answers = state.answers, []
        if messages and leadership is not None and not leadership.term_durable:
            messages, answers = [], answers + messages
        failed, self._reads_failed = self._reads_failed, []
        return Ready(
            hard_state,
            entries,
            messages,
            answers,
            committed,
            snapshot,
            reads,
            failed,
            wanted,
            state.role,
            state.leader,
        )

    @property
    def term(self) -> int:
        """The term this node is in."""
        return self._state.term

    @property
    def behind(self) -> bool:
        """True while `ready` has more committed entries to return, which it does in pieces."""
        log = self._log
        return log.handed < min(log.commit, log.persisted)

    def _new_hard_state(self, *, with_commit: bool) -> HardState | None:
        """Return the hard state if it is to be written: a commit index alone waits for entries.

        The commit index in it covers only what is durable already, so a write torn between entries
        and hard state, in whichever order, never marks as committed what the entries would have
        overwritten.
        """
        state = self._state
        given = self._given
        commit = given.commit
        if with_commit:
            commit = max(commit, min(self._log.commit, self._log.persisted))
        if state.term == given.term and state.vote == given.vote and commit == given.commit:
            return None
        self._given = HardState(state.term, state.vote, commit)
        return self._given

    def advance(self, persisted: tuple[int, int] | None = None, applied: int | None = None) -> None:
        """Report that a `Ready` has been handled.

        `persisted`: the (index, term) of the last entry of a Ready, or of its snapshot's mark, now
        that it and everything returned before it are durable. Entries overwritten meanwhile do not
        count. `applied`: the state machine has applied everything up to this index.
        """
        if applied is not None:
            assert self._applied <= applied <= self._log.handed, (
                "only what was given out is applied"
            )
            self._applied = applied
        if persisted is not None and self._log.persist(*persisted) and self._leadership is not None:
            self._leadership.persisted()
            self._step_down_if_removed()

    # Status

    def membership_at(self, index: int) -> Membership:
        """Return the membership for a snapshot at `index`, in the log or the last snapshot's."""
        return self._state.memberships.at(index)

    def status(self) -> RaftStatus:
        """Return a summary of the node."""
        state = self._state
        return RaftStatus(
            id=state.id,
            role=state.role,
            term=state.term,
            vote=state.vote,
            leader=state.leader,
            commit=self._log.commit,
            applied=self._applied,
            persisted=self._log.persisted,
            last_index=self._log.last_index,
            membership=state.memberships.current,
            progress={} if self._leadership is None else self._leadership.status(),
        )
