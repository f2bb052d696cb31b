"""What a leader does: replicate, commit, confirm reads, hand over. It exists as long as one leadership lasts.

Nothing is sent in reaction to a proposal or an answer: both only change what a peer is owed, and `flush`, called once
per `Node.ready`, sends it. So a turn's proposals leave in one append per peer.

Commit: an index counts for this node only when it is durable here, for a peer when the peer has answered that it is
durable there, and only an entry of the leader's own term is committed by counting (paper section 5.4.2, figure 8);
those before it are committed with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from fluxmq.raft.errors import Compacted
from fluxmq.raft.memberships import changed, encode_membership
from fluxmq.raft.progress import ENTRY_OVERHEAD_BYTES, Progress
from fluxmq.raft.state import State
from fluxmq.raft.types import (
    COMMAND,
    EMPTY,
    MEMBERSHIP,
    ChangeRefused,
    Entry,
    Membership,
    MembershipChange,
    Message,
    MessageKind,
    NotLeader,
    Overloaded,
    PeerStatus,
    ProposalAccepted,
    Replication,
    Role,
    Snapshot,
)

READS_MAX: Final = 65_536
"""Reads that wait for a majority: as many as a shard's connections may ask in a heartbeat interval."""


class Leadership:
    """One leadership: from winning an election to stepping down."""

    __slots__ = (
        "_alone",
        "_announces",
        "_heartbeat_elapsed",
        "_read_round",
        "_reads_asked",
        "_reads_waiting",
        "_rounds",
        "_state",
        "_transfer_elapsed",
        "first_index",
        "peers",
        "reads",
        "snapshot_wanted",
        "term_durable",
        "transferee",
    )

    def __init__(self, state: State, *, unopposed: bool) -> None:
        """Begin a leadership with an empty entry. `unopposed`: won without anybody else's vote."""
        self._state = state
        self.peers: dict[int, Progress] = {}
        self._alone = False
        self.transferee = 0
        self._transfer_elapsed = 0
        self._heartbeat_elapsed = 0
        self._announces = False
        self._reads_asked: list[int] = []
        self._reads_waiting = 0
        self._rounds: deque[tuple[int, int, list[int]]] = deque()
        self._read_round = 0
        self.reads: list[tuple[int, int]] = []
        self.snapshot_wanted: list[int] = []
        self.term_durable = not unopposed
        """Whether this term is known to be durable here. Others' votes prove it. Without any, a crash could undo the
        vote: then this node could lead the term again with other entries, or vote for another node in it. So until
        the term's first entry is durable nothing of it reaches a peer, and the role shown is still CANDIDATE."""
        self._show_role()
        self.first_index = state.log.last_index + 1
        """The first entry of this term."""
        self._configure()
        state.log.append_one(Entry(state.term, self.first_index, EMPTY, b""))

    def _show_role(self) -> None:
        if self.term_durable:
            self._state.role = Role.LEADER
            self._state.leader = self._state.id

    def _configure(self) -> None:
        """Take on the membership in effect."""
        membership = self._state.memberships.current
        own = self._state.id
        members = [node for node in membership.voters + membership.learners if node != own]
        following = self._state.log.last_index + 1
        self.peers = {node: self.peers.get(node) or Progress(following) for node in members}
        self._alone = membership.voters == (own,)
        if self.transferee and self.transferee not in membership.voters:
            self.transferee = 0

    # Proposals

    def propose(self, data: Sequence[bytes]) -> ProposalAccepted | NotLeader | Overloaded:
        """Append commands; see `Node.propose`."""
        state = self._state
        log = state.log
        if self.transferee:
            return NotLeader(self.transferee)
        held = log.tail_bytes + ENTRY_OVERHEAD_BYTES * len(log.tail)
        if held > state.config.max_unstable_bytes:
            return Overloaded(held)
        term = state.term
        first = log.last_index + 1
        if len(data) == 1:
            log.append_one(Entry(term, first, COMMAND, data[0]))
        elif data:
            log.append(
                [Entry(term, index, COMMAND, each) for index, each in enumerate(data, first)]
            )
        return ProposalAccepted(first, term)

    def propose_membership(
        self, change: MembershipChange
    ) -> ProposalAccepted | NotLeader | ChangeRefused:
        """Append a membership change, which is in effect at once; see ``memberships`` for the two refusals."""
        state = self._state
        log = state.log
        if self.transferee:
            return NotLeader(self.transferee)
        if log.commit < self.first_index:
            return ChangeRefused.TERM_NOT_COMMITTED
        if state.memberships.since > log.commit:
            return ChangeRefused.UNCOMMITTED
        after = changed(state.memberships.current, change)
        if not isinstance(after, Membership):
            return after
        index = log.last_index + 1
        log.append_one(Entry(state.term, index, MEMBERSHIP, encode_membership(after)))
        state.memberships.append(index, after)
        self._configure()
        return ProposalAccepted(index, state.term)

    # Commit

    def advance_commit(self) -> None:
        """Raise the commit index to what a majority holds durably, if that is of this term."""
        state = self._state
        log = state.log
        index = log.persisted if self._alone else self._majority_match()
        if index > log.commit and index >= self.first_index:
            log.commit = index

    def _majority_match(self) -> int:
        """The highest index that a majority of the voters holds durably."""
        own = self._state.id
        voters = self._state.memberships.current.voters
        matches = sorted(
            self._state.log.persisted if voter == own else self.peers[voter].match
            for voter in voters
        )
        return matches[(len(voters) - 1) // 2]

    def persisted(self) -> None:
        """More of the log is durable here."""
        if not self.term_durable and self._state.log.persisted >= self.first_index:
            self.term_durable = True
            self._show_role()
        self.advance_commit()

    def removed(self) -> bool:
        """Whether a committed change has taken this leader out of the voters, so that it must step down."""
        memberships = self._state.memberships
        return (
            self._state.id not in memberships.current.voters
            and memberships.since <= self._state.log.commit
        )

    # Sending

    def announce(self) -> None:
        """Say with the next `flush` what is committed."""
        self._announces = True

    @property
    def unannounced(self) -> bool:
        """Whether a peer that follows was not told of all that is committed."""
        commit = self._state.log.commit
        for progress in self.peers.values():
            if progress.commit_sent < commit and progress.state is Replication.REPLICATE:
                return True
        return False

    def flush(self) -> None:
        """Send what every peer is owed and has room for."""
        if self._reads_asked and self._state.log.commit >= self.first_index:
            self._start_read_round()
        for peer, progress in self.peers.items():
            while self._feed(peer, progress):
                pass
        self._announces = False

    def _feed(self, peer: int, progress: Progress) -> bool:
        """Send one append if there is reason and room; whether another may follow."""
        log = self._state.log
        if progress.state is Replication.SNAPSHOT:
            return False
        if progress.state is Replication.PROBE:
            if not progress.paused:
                self._append_to(peer, progress, empty=False)
            return False
        if progress.next <= log.last_index:
            config = self._state.config
            if (
                progress.inflight_bytes < config.max_inflight_bytes
                and progress.inflight_appends < config.max_inflight_appends
            ):
                return self._append_to(peer, progress, empty=False)
            if not progress.due:
                return False
        elif not progress.due and not self._owed(progress):
            return False
        # The window is full or nothing is new: the commit index, or the question whether all has arrived.
        self._append_to(peer, progress, empty=True)
        return False

    def _owed(self, progress: Progress) -> bool:
        """Whether a peer is to be told what is committed though there is nothing else to tell."""
        if progress.commit_sent >= self._state.log.commit:
            return False
        return self._announces or self._state.config.eager_commit

    def _append_to(self, peer: int, progress: Progress, *, empty: bool) -> bool:
        """Send an append from `progress.next` on; False when the entries are gone and a snapshot is wanted."""
        state = self._state
        log = state.log
        previous = progress.next - 1
        term = log.term(previous)
        entries: list[Entry] = []
        if term is not None and not empty:
            try:
                entries = log.slice(progress.next, state.config.max_message_bytes)
            except Compacted:
                term = None
        if term is None:
            progress.want_snapshot()
            if peer not in self.snapshot_wanted:
                self.snapshot_wanted.append(peer)
            return False
        message = Message(
            MessageKind.APPEND, state.id, peer, state.term, previous, term, entries, log.commit
        )
        progress.sent(entries)
        progress.commit_sent = log.commit
        state.send(message)
        return True

    def _send_heartbeats(self) -> None:
        """Tell everybody that the leader is there, and of the commit index what each is proven to hold."""
        state = self._state
        self._heartbeat_elapsed = 0
        for peer, progress in self.peers.items():
            commit = min(progress.match, state.log.commit)
            state.send(
                Message(
                    MessageKind.HEARTBEAT,
                    state.id,
                    peer,
                    state.term,
                    commit=commit,
                    context=self._read_round,
                )
            )

    def tick(self) -> bool:
        """Count time; False when a majority has been silent for an election timeout (dissertation section 6.2)."""
        state = self._state
        state.elapsed += 1
        if self.transferee:
            self._transfer_elapsed += 1
            if self._transfer_elapsed >= state.config.election_ticks:
                self.transferee = 0
        if state.elapsed >= state.config.election_ticks:
            state.elapsed = 0
            if state.config.check_quorum and not self._quorum_is_active():
                return False
        self._heartbeat_elapsed += 1
        if self._heartbeat_elapsed >= state.config.heartbeat_ticks:
            self._send_heartbeats()
        return True

    def _quorum_is_active(self) -> bool:
        """Whether a majority of the voters was heard since the last check; begins a new one."""
        voters = self._state.memberships.current.voters
        active = sum(voter == self._state.id or self.peers[voter].active for voter in voters)
        for progress in self.peers.values():
            progress.active = False
        return active > len(voters) // 2

    # Answers

    def on_append_answer(self, message: Message) -> None:
        """A peer took an append, or says where its log parts from this one."""
        progress = self.peers.get(message.source)
        if progress is None:
            return
        progress.active = True
        log = self._state.log
        if message.reject:
            hint = min(message.hint, log.last_index)
            if message.hint_term:
                # Nothing of this log's terms above the peer's can match; one rejection per term, not per entry.
                hint, _ = log.last_possible_match(hint, message.hint_term, progress.match)
            progress.rejected(message.index, hint)
            return
        if message.index > log.last_index:
            return  # not from this log; whoever says so knows more than was sent
        advanced = progress.accepted(message.index)
        if progress.state is Replication.SNAPSHOT:
            if progress.match >= log.base_index:
                progress.replicate()
        elif progress.state is Replication.PROBE and (
            advanced or message.index == progress.match == progress.next - 1
        ):
            progress.replicate()
        if advanced:
            self.advance_commit()
            self._hand_over(message.source, progress)

    def on_heartbeat_answer(self, message: Message) -> None:
        """A peer is there. What it has not answered may be lost, so it is asked again."""
        progress = self.peers.get(message.source)
        if progress is None:
            return
        progress.active = True
        progress.paused = False
        if progress.match < self._state.log.last_index:
            progress.due = True
        if message.context > progress.read_answered:
            progress.read_answered = message.context
            self._confirm_reads()

    # Snapshots

    def offer_snapshot(self, peer: int, snapshot: Snapshot) -> Message | None:
        """The message with which a host gives a peer a snapshot; see `Node.offer_snapshot`."""
        progress = self.peers.get(peer)
        if progress is None or progress.state is not Replication.SNAPSHOT:
            return None
        progress.pending_snapshot = snapshot.mark.index
        state = self._state
        return Message(MessageKind.SNAPSHOT, state.id, peer, state.term, snapshot=snapshot)

    def report_snapshot(self, peer: int, *, ok: bool) -> None:
        """A snapshot has been handed to the peer, or could not be."""
        progress = self.peers.get(peer)
        if progress is None or progress.state is not Replication.SNAPSHOT:
            return
        if not ok:
            progress.pending_snapshot = 0
        progress.probe()
        # Its own answer or the next heartbeat's says when to go on.
        progress.paused = True

    def report_unreachable(self, peer: int) -> None:
        """Messages to the peer are being lost: stop sending without waiting."""
        progress = self.peers.get(peer)
        if progress is not None and progress.state is Replication.REPLICATE:
            progress.probe()

    def start_over(self, peer: int) -> bool:
        """Know nothing of a learner's log any more; see `Node.start_over`."""
        if peer not in self._state.memberships.current.learners:
            return False
        self.peers[peer] = Progress(self._state.log.last_index + 1)
        return True

    # Reads

    def read_index(self, context: int) -> Overloaded | None:
        """Ask for an index at which a read is linearizable (dissertation section 6.4)."""
        if self._reads_waiting >= READS_MAX:
            return Overloaded(self._reads_waiting)
        self._reads_asked.append(context)
        self._reads_waiting += 1
        return None

    def _start_read_round(self) -> None:
        """One exchange of heartbeats confirms all reads that were asked before it."""
        self._read_round += 1
        self._rounds.append((self._read_round, self._state.log.commit, self._reads_asked))
        self._reads_asked = []
        self._send_heartbeats()
        self._confirm_reads()

    def _confirm_reads(self) -> None:
        """Give the reads for which a majority has said, after they were asked, that this is the leader.

        None before an entry of the own term is committed: only then does the commit index cover all that earlier
        leaders have committed.
        """
        state = self._state
        if not self._rounds:
            return
        voters = state.memberships.current.voters
        answered = sorted(
            self._read_round if voter == state.id else self.peers[voter].read_answered
            for voter in voters
        )
        confirmed = answered[(len(voters) - 1) // 2]
        while self._rounds and self._rounds[0][0] <= confirmed:
            _, index, contexts = self._rounds.popleft()
            self._reads_waiting -= len(contexts)
            self.reads.extend((context, index) for context in contexts)

    def reads_open(self) -> list[int]:
        """Contexts whose answer was not handed out."""
        contexts = [context for context, _ in self.reads]
        contexts += [context for _, _, each in self._rounds for context in each]
        return contexts + self._reads_asked

    # Transfer

    def transfer(self, to: int) -> bool:
        """Hand over to a voter once it holds the whole log; False when it is none."""
        voters = self._state.memberships.current.voters
        if to == self._state.id or to not in voters:
            return False
        self.transferee = to
        self._transfer_elapsed = 0
        progress = self.peers[to]
        progress.due = True
        self._hand_over(to, progress)
        return True

    def _hand_over(self, peer: int, progress: Progress) -> None:
        if peer == self.transferee and progress.match == self._state.log.last_index:
            state = self._state
            state.send(Message(MessageKind.TIMEOUT_NOW, state.id, peer, state.term))

    def status(self) -> dict[int, PeerStatus]:
        """What is known of every peer."""
        learners = self._state.memberships.current.learners
        return {
            peer: PeerStatus(
                each.match,
                each.next,
                each.state,
                each.inflight_bytes,
                peer in learners,
                each.active,
            )
            for peer, each in self.peers.items()
        }
