"""What Raft promises inside (paper figure 3), checked at every step and over all members at once.

Works on what members write, send and hand out, never on a core's private state, and keeps its own memory of the whole
run: who led and who was voted for in each term, every entry that was ever in a log, and what was committed when. The
checks cost about the same however long a run is: a log is not compared with others, each entry is compared with the
entry of its index and term, whose predecessor's term is part of it, and by induction logs that agree at one index and
term agree before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluxmq.raft.memberships import decode_membership
from fluxmq.raft.types import MEMBERSHIP, Entry, HardState, Membership, Message, MessageKind
from tests.sim.disk import Disk, Record, Store
from tests.sim.history import History

APPEND_ANSWER = MessageKind.APPEND_ANSWER
VOTE_ANSWER = MessageKind.VOTE_ANSWER


class Invariants:
    """The memory of a run and its checks; what is broken goes to the history."""

    def __init__(self, history: History, membership: Membership) -> None:
        self._history = history
        self.leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}
        """By member and term; what was given before a member began anew is under the negative of its number."""
        self._entries: dict[tuple[int, int], tuple[int, int, bytes]] = {}
        self._had: dict[int, list[Store]] = {}
        """What members held before they began anew."""
        self.memberships: list[tuple[int, Membership]] = [(0, membership)]
        """Committed memberships by index."""
        self.committed: list[tuple[int, int]] = [(0, 0)]
        """By index: the entry's term, and the term in which it was committed."""
        self._reads: dict[int, int] = {}
        self._last_answered = 0

    @property
    def commit(self) -> int:
        """The highest index that anybody knows to be committed."""
        return len(self.committed) - 1

    @property
    def membership(self) -> Membership:
        """The last committed one."""
        return self.memberships[-1][1]

    def violated(self, rule: str, what: str) -> None:
        """Keep a violation."""
        self._history.violated(rule, what)

    # Elections

    def hard_state_durable(self, member: int, state: HardState) -> None:
        """A vote is durable now: it is the only one of this member in this term."""
        if state.vote and self._votes.setdefault((member, state.term), state.vote) != state.vote:
            self.violated(
                "one vote per term",
                f"member {member} voted for {self._votes[member, state.term]} and"
                f" {state.vote} in term {state.term}",
            )

    def began_anew(self, member: int, had: Store) -> None:
        """A member has lost its promises; those who counted on them still may, until it has no vote."""
        self._had.setdefault(member, []).append(had)
        for (voter, term), vote in list(self._votes.items()):
            if voter == member:
                self._votes[-member, term] = vote
                del self._votes[member, term]

    def _voted(self, voter: int, term: int, member: int) -> bool:
        votes = self._votes
        return votes.get((voter, term)) == member or votes.get((-voter, term)) == member

    def became_leader(self, member: int, term: int, log: Store, voters: Sequence[int]) -> None:
        """Election safety, leader completeness, and that the votes are durable that elected it."""
        if self.leaders.setdefault(term, member) != member:
            self.violated(
                "election safety",
                f"members {self.leaders[term]} and {member} both lead term {term}",
            )
        votes = sum(self._voted(voter, term, member) for voter in voters)
        # A group's only voter needs nobody's vote; its entries are durable only together with its term.
        if votes <= len(voters) // 2 and len(voters) > 1:
            self.violated(
                "durable votes",
                f"member {member} leads term {term} with {votes} durable votes of {len(voters)}",
            )
        committed = self.committed
        index = len(committed) - 1
        while committed[index][1] >= term and index:
            index -= 1
        if index and (log.last_index() < index or not log.holds(index, committed[index][0])):
            self.violated(
                "leader completeness",
                f"member {member} leads term {term} without entry {index}"
                f" of term {committed[index][0]}",
            )

    def forgotten(self, member: int, term: int, durable: int, lost: Sequence[Record]) -> None:
        """A leader crashed before its term was durable or anybody had heard of it: the term never was.

        Only a group's sole voter can lead without others' votes; it may lead the same term again.
        """
        if durable >= term or self.leaders.get(term, member) != member:
            return
        self.leaders.pop(term, None)
        for _, content in lost:
            if isinstance(content, Entry) and content.term == term:
                self._entries.pop((content.index, term), None)

    # Logs

    def wrote(self, member: int, entries: Sequence[Entry], log: Store) -> None:
        """Log matching: an index and a term name one entry, behind one other entry."""
        first = entries[0]
        previous = log.term(first.index - 1)
        index = first.index
        known = self._entries
        for entry in entries:
            value = (previous, entry.kind, entry.data)
            if known.setdefault((entry.index, entry.term), value) != value or entry.index != index:
                self.violated(
                    "log matching",
                    f"member {member} wrote another entry {entry.index} of term {entry.term}"
                    f" than was known, behind one of term {previous}",
                )
            if entry.term < previous:
                self.violated("terms rise along a log", f"member {member} at {entry.index}")
            previous = entry.term
            index += 1

    def changes(
        self, member: int, before: Membership, after: Membership, *, committed: bool
    ) -> None:
        """Members change one at a time, and a leader waits for one change to be committed before the next."""
        voters = set(before.voters) ^ set(after.voters)
        learners = set(before.learners) ^ set(after.learners)
        if len(voters | learners) > 1 and before.voters:  # a new member knows of none
            self.violated("one member at a time", f"member {member}: {before} to {after}")
        if not committed:
            self.violated(
                "changes follow committed ones", f"member {member}: {before} is not committed"
            )

    def leader_wrote(self, member: int, first: int, log: Store) -> None:
        """Leader append-only."""
        if first <= log.last_index():
            self.violated(
                "leader append-only",
                f"member {member} wrote at {first}, its log went to {log.last_index()}",
            )

    def advanced(
        self,
        member: int,
        commit: int,
        term: int,
        log: Store,
        voters: Sequence[int] | None,
        disks: Mapping[int, Disk],
    ) -> None:
        """Somebody knows of a higher commit index. `voters` are given when it leads and so decided that.

        What a leader commits is of its own term (section 5.4.2) and durable on a majority.
        """
        if log.last_index() < commit:
            self.violated("commit within the log", f"member {member} at {commit}")
            return
        if voters is not None:
            own = log.term(commit)
            holders = sum(self._holds(voter, disks[voter], commit, own) for voter in voters)
            if own != term:
                self.violated(
                    "commit in the own term",
                    f"member {member} of term {term} committed {commit} of term {own}",
                )
            if holders <= len(voters) // 2:
                self.violated(
                    "durable on a majority",
                    f"member {member} committed {commit} of term {own}, durable on {holders}"
                    f" of {len(voters)}",
                )
        base = log.base
        for index in range(len(self.committed), commit + 1):
            if index <= base:  # a snapshot tells of a commit that nobody announced
                self.violated("commit is announced", f"member {member} by a snapshot at {base}")
                return
            entry = log.log[index - base - 1]
            self.committed.append((entry.term, term))
            if entry.kind == MEMBERSHIP:
                self.memberships.append((index, decode_membership(entry.data)))

    def _holds(self, voter: int, disk: Disk, index: int, term: int) -> bool:
        if disk.durable.last_index() >= index and disk.durable.holds(index, term):
            return True
        return any(had.holds(index, term) for had in self._had.get(voter, ()))

    def membership_at(self, index: int) -> Membership:
        """The committed membership as of an applied index."""
        for since, membership in reversed(self.memberships):
            if since <= index:
                return membership
        raise AssertionError("the first is at 0")

    def applies(self, member: int, entry: Entry, durable: Store) -> None:
        """What is handed out is committed, and durable where it is applied."""
        if entry.index > self.commit or self.committed[entry.index][0] != entry.term:
            self.violated(
                "only committed entries are applied",
                f"member {member} applied {entry.index} of term {entry.term}",
            )
        if not durable.holds(entry.index, entry.term):
            self.violated(
                "applied entries are durable",
                f"member {member} applied {entry.index} of term {entry.term}",
            )

    # Messages

    def sends_at_once(self, member: int, message: Message, durable: Store) -> None:
        """What leaves before anything is written promises nothing that is not durable yet."""
        kind = message.kind
        if message.reject or (kind is not APPEND_ANSWER and kind is not VOTE_ANSWER):
            return
        state = durable.hard_state
        if kind is VOTE_ANSWER:
            kept = state.term == message.term and state.vote == message.target
        else:
            kept = state.term >= message.term and durable.last_index() >= message.index
        if not kept:
            self.violated("promises are durable", f"member {member} sent {message} before")

    # Reads

    def read_asked(self, context: int) -> None:
        """A client asks for a read; it must see all that is committed by now."""
        self._reads[context] = self.commit

    def answered(self, context: int) -> bool:
        """Whether the read, or one that was asked after it, has been answered."""
        return self._last_answered >= context

    def read_answered(self, member: int, context: int, index: int) -> None:
        """The read may be served at `index`, member says."""
        self._last_answered = max(self._last_answered, context)
        wanted = self._reads.get(context)
        if wanted is None:
            self.violated("reads that were asked", f"member {member} answered {context}")
        elif index < wanted:
            self.violated(
                "linearizable reads",
                f"member {member} serves a read at {index}; {wanted} was committed when it"
                " was asked",
            )
