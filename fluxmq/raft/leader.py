"""A leader's work: replicate, commit, confirm reads, hand over. Exists for the duration of one
leadership.

Proposals and answers send nothing by themselves: they only change what a peer is owed, and `flush`,
called once per `Node.ready`, sends it. So a turn's proposals leave in one append per peer.

Commit: an index counts for this node only once it is durable here, for a peer once the peer has
answered that it is durable there. The rule (`commits`) says which index that commits, and only an
entry of the leader's own term is committed by it (paper section 5.4.2, figure 8); those before it
are committed with it. A group of one commits what its own disk has, whatever the rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from fluxmq.raft.commits import MAJORITY
from fluxmq.raft.errors import Compacted
from fluxmq.raft.memberships import changed, encode_membership, takes_vote
from fluxmq.raft.progress import ENTRY_OVERHEAD_BYTES, Progress
from fluxmq.raft.state import NodeState
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
    ReplicationMode,
    Role,
    Snapshot,
)

READS_MAX: Final = 65_536
"""Maximum number of waiting reads: as many as a shard's clients may request in a heartbeat."""


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

    def __init__(self, state: NodeState, *, unopposed: bool) -> None:
        """Begin a leadership with an empty entry. `unopposed`: won without another node's vote."""
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
        """True once this term is known to be durable here. Others' votes prove it. Without any, a
        crash could undo the vote: then this node could lead the term again with other entries, or
        vote for another node in it. So until the term's first entry is durable nothing of it
        reaches a peer, and the visible role is still CANDIDATE.
        """
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
        """Apply the membership in effect."""
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
        """Append a membership change, in effect at once; see ``memberships`` for the refusals."""
        state = self._state
        log = state.log
        if self.transferee:
            return NotLeader(self.transferee)
        before = state.memberships.current
        appointed = state.config.appointed
        if appointed and change.node == state.id:
            return ChangeRefused.APPOINTED
        if not (appointed and takes_vote(before, change)):
            if log.commit < self.first_index:
                return ChangeRefused.TERM_NOT_COMMITTED
            if state.memberships.since > log.commit:
                return ChangeRefused.UNCOMMITTED
        after = changed(before, change)
        if not isinstance(after, Membership):
            return after
        index = log.last_index + 1
        log.append_one(Entry(state.term, index, MEMBERSHIP, encode_membership(after)))
        state.memberships.append(index, after)
        self._configure()
        if appointed:
            self.advance_commit()  # what only a former voter lacked
            self._confirm_reads()
        return ProposalAccepted(index, state.term)

    # Commit

    def advance_commit(self) -> None:
        """Raise the commit index to the one that counts by the rule, if that is of this term."""
        state = self._state
        log = state.log
        if self._alone:
            index = log.persisted
        else:
            voters = state.memberships.current.voters
            index = state.config.commit_rule.committed(voters, self._held(voters))
        if index > log.commit and index >= self.first_index:
            log.commit = index

    def _held(self, voters: Sequence[int]) -> list[int]:
        """Return the last index that is proven to be durable at each of the voters."""
        own, persisted, peers = self._state.id, self._state.log.persisted, self.peers
        return [persisted if voter == own else peers[voter].match for voter in voters]

    def persisted(self) -> None:
        """Handle progress of the log's durability here."""
        if not self.term_durable and self._state.log.persisted >= self.first_index:
            self.term_durable = True
            self._show_role()
        self.advance_commit()

    def removed(self) -> bool:
        """Return whether a committed change has removed this leader, so that it must step down."""
        memberships = self._state.memberships
        return (
            self._state.id not in memberships.current.voters
            and memberships.since <= self._state.log.commit
        )

    # Sending

    def announce(self) -> None:
        """Send the commit index with the next `flush`."""
        self._announces = True

    @property
    def unannounced(self) -> bool:
        """True if a peer that replicates does not know the commit index."""
        commit = self._state.log.commit
        for progress in self.peers.values():
            if progress.commit_sent < commit and progress.state is ReplicationMode.REPLICATE:
                return True
        return False

    def flush(self) -> None:
        """Send each peer the entries it lacks, as far as its in-flight limit allows."""
        if self._reads_asked and self._state.log.commit >= self.first_index:
            self._start_read_round()
        for peer, progress in self.peers.items():
            while self._feed(peer, progress):
                pass
        self._announces = False

    def _feed(self, peer: int, progress: Progress) -> bool:
        """Send one append if there is reason and room; return whether another may follow."""
        log = self._state.log
        if progress.state is ReplicationMode.SNAPSHOT:
            return False
        if progress.state is ReplicationMode.PROBE:
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
        elif not progress.due and not self._missing(progress):
            return False
        # The window is full or nothing is new: send the commit index, or probe for losses.
        self._append_to(peer, progress, empty=True)
        return False

    def _missing(self, progress: Progress) -> bool:
        """Return whether a peer needs the commit index although nothing else is to be sent."""
        if progress.commit_sent >= self._state.log.commit:
            return False
        return self._announces or self._state.config.eager_commit

    def _append_to(self, peer: int, progress: Progress, *, empty: bool) -> bool:
        """Send an append from `progress.next` on; return False if that needs a snapshot."""
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
        """Send heartbeats, each with the commit index as far as the peer provably matches."""
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
        """Count time; return False if a majority was silent for an election timeout (dissertation
        section 6.2). An appointed leader stays one: nobody else can lead until it is replaced.
        """
        state = self._state
        state.elapsed += 1
        if self.transferee:
            self._transfer_elapsed += 1
            if self._transfer_elapsed >= state.config.election_ticks:
                self.transferee = 0
        if state.elapsed >= state.config.election_ticks:
            state.elapsed = 0
            if (
                state.config.check_quorum
                and not self._quorum_is_active()
                and not state.config.appointed
            ):
                return False
        self._heartbeat_elapsed += 1
        if self._heartbeat_elapsed >= state.config.heartbeat_ticks:
            self._send_heartbeats()
        return True

    def _quorum_is_active(self) -> bool:
        """Return whether a majority of voters was heard since the last check; begin a new check."""
        voters = self._state.memberships.current.voters
        active = sum(voter == self._state.id or self.peers[voter].active for voter in voters)
        for progress in self.peers.values():
            progress.active = False
        return active > len(voters) // 2

    def resume(self, heard: Collection[int]) -> None:
        """Go on after a time without ticks, with heartbeats at the next one; only the peers in
        ``heard`` count as heard since the last check of the quorum."""
        self._heartbeat_elapsed = self._state.config.heartbeat_ticks
        for peer, progress in self.peers.items():
            progress.active = peer in heard

    # Answers

    def on_append_answer(self, message: Message) -> None:
        """Handle a peer's answer: it appended entries, or hints where its log diverges."""
        progress = self.peers.get(message.source)
        if progress is None:
            return
        progress.active = True
        log = self._state.log
        if message.reject:
            hint = min(message.hint, log.last_index)
            if message.hint_term:
                # Entries of this log with terms above the peer's cannot match; one rejection per
                # term, not per entry.
                hint, _ = log.last_possible_match(hint, message.hint_term, progress.match)
            progress.rejected(message.index, hint)
            return
        if message.index > log.last_index:
            return  # not about this log; the peer claims more than was sent
        advanced = progress.accepted(message.index)
        if progress.state is ReplicationMode.SNAPSHOT:
            if progress.match >= log.base_index:
                progress.replicate()
        elif progress.state is ReplicationMode.PROBE and (
            advanced or message.index == progress.match == progress.next - 1
        ):
            progress.replicate()
        if advanced:
            self.advance_commit()
            self._hand_over(message.source, progress)

    def on_heartbeat_answer(self, message: Message) -> None:
        """Note that a peer is alive, and probe again for unanswered appends, which may be lost."""
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
        """Return the message that gives a peer a snapshot; see `Node.offer_snapshot`."""
        progress = self.peers.get(peer)
        if progress is None or progress.state is not ReplicationMode.SNAPSHOT:
            return None
        progress.pending_snapshot = snapshot.mark.index
        state = self._state
        return Message(MessageKind.SNAPSHOT, state.id, peer, state.term, snapshot=snapshot)

    def report_snapshot(self, peer: int, *, ok: bool) -> None:
        """Handle the outcome of a snapshot's delivery to a peer."""
        progress = self.peers.get(peer)
        if progress is None or progress.state is not ReplicationMode.SNAPSHOT:
            return
        if not ok:
            progress.pending_snapshot = 0
        progress.probe()
        # The peer's own answer or its next heartbeat answer resumes sending.
        progress.paused = True

    def report_unreachable(self, peer: int) -> None:
        """Probe a peer whose messages are being lost, instead of streaming."""
        progress = self.peers.get(peer)
        if progress is not None and progress.state is ReplicationMode.REPLICATE:
            progress.probe()

    def start_over(self, peer: int) -> bool:
        """Forget all knowledge of a learner's log; see `Node.start_over`."""
        if peer not in self._state.memberships.current.learners:
            return False
        self.peers[peer] = Progress(self._state.log.last_index + 1)
        return True

    # Reads

    def read_index(self, context: int) -> Overloaded | None:
        """Request an index at which a read is linearizable (dissertation section 6.4)."""
        if self._reads_waiting >= READS_MAX:
            return Overloaded(self._reads_waiting)
        self._reads_asked.append(context)
        self._reads_waiting += 1
        return None

    def _start_read_round(self) -> None:
        """Start one exchange of heartbeats, which confirms all reads requested before it."""
        self._read_round += 1
        self._rounds.append((self._read_round, self._state.log.commit, self._reads_asked))
        self._reads_asked = []
        self._send_heartbeats()
        self._confirm_reads()

    def _confirm_reads(self) -> None:
        """Release the reads for which a majority has since confirmed this leader.

        None before an entry of the leader's own term is committed: only then does the commit index
        cover everything that earlier leaders have committed.

        In an appointed group every voter has to confirm. The next leader is a voter here (see
        `EveryVoter`) and answers nothing in this term once it leads, so if all have answered since, none
        had committed anything when the read was requested. A majority may not include it.
        """
        state = self._state
        if not self._rounds:
            return
        voters = state.memberships.current.voters
        answered = [
            self._read_round if voter == state.id else self.peers[voter].read_answered
            for voter in voters
        ]
        confirmed = (
            min(answered) if state.config.appointed else MAJORITY.committed(voters, answered)
        )
        while self._rounds and self._rounds[0][0] <= confirmed:
            _, index, contexts = self._rounds.popleft()
            self._reads_waiting -= len(contexts)
            self.reads.extend((context, index) for context in contexts)

    def reads_open(self) -> list[int]:
        """Return contexts whose answer was not handed out."""
        contexts = [context for context, _ in self.reads]
        contexts += [context for _, _, each in self._rounds for context in each]
        return contexts + self._reads_asked

    # Transfer

    def transfer(self, to: int) -> bool:
        """Hand over to a voter once it holds the whole log; return False if it cannot lead, or
        would have to be appointed."""
        state = self._state
        if state.config.appointed or to == state.id or to not in state.memberships.current.voters:
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
        """Return the state of every peer."""
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
