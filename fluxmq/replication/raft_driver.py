"""Connects a group to its Raft node and the shard's log: writes entries and applies committed ones.

The group's own disk is one of its voters. An entry is applied once the node reports it as
committed: on a single node when the shard's log is synced, else when a majority has it on disk. A
group of one member may apply some entries as soon as they are given to the log; then whatever
outlives the process waits for their sync (`Ahead`).
Messages to other members go through ``send``: requests at once, answers when what they promise is
durable here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from fluxmq.logs import get_logger
from fluxmq.raft.commits import MAJORITY, CommitRule
from fluxmq.raft.errors import MalformedMessage
from fluxmq.raft.node import Node
from fluxmq.raft.types import COMMAND, Entry, Message, ProposalAccepted, Ready, Role
from fluxmq.replication.group_log import RaftGroupLog
from fluxmq.replication.ports import UNOBSERVED, ReplicaObserver, StateMachine
from fluxmq.replication.shared_log import SharedLog
from fluxmq.storage.errors import Corruption

_log = get_logger("fluxmq.queues")

COMMIT_EVERY = 256
"""Entries after which a commit index that moved alone is written: it only hints where replay may
begin (a node learns it from its leader, or by leading), and a record per entry would cost half as
much as the entry."""


GATHERED_ENTRIES = 8
GATHERED_BYTES = 64 << 10
"""Maximum that a gathering follower leaves unapplied at the end of a tick: beyond it entries are
applied at once, and a new leader applies the rest in negligible time."""


class RaftDriver:
    """Implements ``Driver`` for a durable group."""

    def __init__(
        self,
        group: StateMachine,
        node: Node,
        log: RaftGroupLog,
        shared: SharedLog,
        recovered: Callable[[], None],
        rule: CommitRule = MAJORITY,
    ) -> None:
        self.group = group
        self.node = node
        self.log = log
        self._shared = shared
        self._rule = rule
        self._recovered: Callable[[], None] | None = recovered
        self._recovered_at = log.last_index()
        """Index up to which entries may have been applied before this node started."""
        self.leading = False
        """True while this node leads and has applied everything before its term: it accepts
        proposals."""
        self.observer: ReplicaObserver = UNOBSERVED
        self.send: Callable[[Sequence[Message]], None] = UNOBSERVED.send
        """Sends messages to the group's other members."""
        self.alone = True
        """True if this node is the group's only member and leads without elections."""
        self.elections = 0
        """Number of times this node became leader."""
        self._confirming: dict[int, Callable[[bool], None]] = {}
        """Callbacks of leadership checks by request number."""
        self._asked = 0
        self._after: deque[tuple[int, list[Message]]] = deque()
        """Messages to send once the write of a number is durable."""
        self._written = 0
        """Number of the last write given to the log."""
        self._durable = 0
        self._pumping = False
        self._again = False
        self.changed = False
        """True if the last `step` left work for the end of the tick."""
        self.gathers = False
        """True if a follower may leave a few committed entries unapplied, because its replica has
        no readers."""
        self._unapplied: list[Entry] = []
        """Committed entries that a follower applies during or after the log write of what came with
        them."""
        self._unapplied_bytes = 0
        self.hard_state = (0, 0)
        """Term and vote written since the start."""
        self._commit_written = 0
        self.halted = False
        """True while this member is out of the group, because its log is about to be copied."""
        self._send_again: Callable[[Sequence[Message]], None] = UNOBSERVED.send
        shared.join(self)

    def join(self, observer: ReplicaObserver) -> None:
        """Follow the group on behalf of its other members."""
        self.observer = observer
        self.send = observer.send

    def hand_lead(self) -> bool:
        """Ask another member to lead; return whether one was asked."""
        return self.observer.hand_lead()

    def damaged(self, why: str) -> None:
        """Report that a file of this member proved corrupt; the group may already have failed."""
        self.observer.damaged(why)

    @property
    def writable(self) -> bool:
        """True while no sync is in flight; otherwise writes wait for it."""
        return not self._shared.busy

    def start(self) -> None:
        """Start; a group of one elects itself and applies its log. Others wait for their election
        timeout."""
        if self.alone:
            self.node.campaign()
        self.pump()

    def tick(self) -> None:
        """Advance the group's clock by one tick. Errors as in `persisted`."""
        if self.halted:
            return
        self.catch_up(at_once=True)
        self._guarded(self.node.tick)

    def confirm(self, callback: Callable[[bool], None]) -> None:
        """Confirm leadership with a majority from now on (dissertation section 6.4); ``callback``
        gets the result."""
        self._asked += 1
        if not self.leading or self.node.read_index(self._asked) is not None:
            callback(False)
            return
        self._confirming[self._asked] = callback
        self.pump()

    def announce(self) -> None:
        """Tell the others the commit index if they do not know it. Errors as in `persisted`."""
        if self.node.quiescence.unannounced:
            self._guarded(self.node.announce)

    def campaign(self) -> None:
        """Campaign now, without waiting for the election timeout. Errors as in `persisted`."""
        self._guarded(self.node.campaign)

    def appoint(self, term: int) -> bool:
        """Lead this term of an appointed group, as its record says; return whether this member
        does. Not a halted or failed one. Errors as in `persisted`."""
        if self.halted or self.group.failed:
            return False
        appointed: list[bool] = []
        self._guarded(lambda: appointed.append(self.node.appoint(term)))
        return appointed == [True] and not self.group.failed

    def step(self, messages: Sequence[Message]) -> None:
        """Handle messages of another member. Errors as in `persisted`; impossible messages are
        refused.

        While too much waits to be written to the log, entries are dropped, as a network may drop
        them: the leader resends them. Raises MalformedMessage.
        """
        self.changed = False  # work that this node caused itself is done
        if self.halted:
            return  # as if lost: the sender retries
        malformed: list[MalformedMessage] = []

        def step() -> None:
            try:
                for message in messages:
                    if message.entries and self._shared.wal.above_high_watermark:
                        continue
                    self.node.step(message)
            except MalformedMessage as error:
                malformed.append(error)

        self._guarded(step)
        if malformed:
            raise malformed[0]

    def _guarded(self, action: Callable[[], object]) -> None:
        """Run a node action and process its output. An internal or disk error fails this group
        only."""
        if self.group.failed:
            return
        try:
            action()
            self.pump()
        except Exception as error:  # noqa: BLE001 (the group's outermost frame)
            _log.exception("a group has failed", extra={"group": self.group.name})
            self.log_failed(repr(error))
            if isinstance(error, Corruption):
                self.observer.damaged(str(error))

    def propose(self, data: bytes) -> tuple[int, int] | None:
        """Propose an entry."""
        if self._shared.full or self.halted or self._shared.wal.above_high_watermark:
            return None
        outcome = self.node.propose([data])
        if isinstance(outcome, ProposalAccepted):
            return outcome.first_index, outcome.term
        return None

    def pump(self) -> None:
        """Process the node's output until there is none left."""
        if self._pumping:
            self._again = True
            return  # reentrant: the outer call continues until nothing is left
        self._pumping = True
        try:
            while (ready := self._ready()) is not None:
                self._again = False
                if ready.messages:
                    self.send(ready.messages)
                self._persist(ready)
                if ready.committed:
                    self.changed = True
                    if self._may_wait(ready):
                        self._unapplied += ready.committed
                        self._unapplied_bytes += sum([len(each.data) for each in ready.committed])
                        if self.node.behind or not self._gathering:
                            self.group.wake()
                    else:
                        self._apply_rest()
                        self._apply(ready.committed)
                self._lead(ready.role is Role.LEADER)
                self._run_ahead()
                if self._confirming:
                    self._confirmed(ready)
                for member in ready.snapshot_wanted:
                    self.observer.snapshot_wanted(member)
                if not self._again and (self._unapplied or not self.node.behind):
                    break  # the node's output is complete, except what is read in pieces
            if self.leading and self.group.answers.held:
                self.changed = True
                self.group.answers.advance()  # also after a member's answer without effect
            if self.gathers and self.node.quiescence.unannounced:
                self.observer.unannounced()
        finally:
            self._pumping = False

    def _run_ahead(self) -> None:
        """Have the next entry applied before its sync, if it may be: the node counts it as durable.

        The log keeps the order: what a crash leaves of it has no later entry without this one, and
        no commit index beyond it.
        """
        ahead = self.group.answers.ahead
        if not ahead.wanted or not self.leading or not self.alone:
            return
        entry = self.log.next_unapplied()
        if entry is None or entry.kind != COMMAND or self.node.behind:
            return
        if ahead.lets_through(entry.index, entry.data):
            self.node.advance(persisted=(entry.index, entry.term))

    def _ready(self) -> Ready | None:
        """Return the node's next output, after applying earlier entries unless they gather."""
        if not self._gathering:
            self._apply_rest()
        return self.node.ready()

    @property
    def _gathering(self) -> bool:
        """True while the unapplied entries are few enough to wait for more."""
        return (
            self.gathers
            and len(self._unapplied) < GATHERED_ENTRIES
            and self._unapplied_bytes < GATHERED_BYTES
        )

    def _may_wait(self, ready: Ready) -> bool:
        """Return whether committed entries may wait for the end of the tick: the leader waits for
        the entries that came with them."""
        return bool(ready.entries) and ready.role is Role.FOLLOWER and self._recovered is None

    def catch_up(self, *, at_once: bool = False) -> None:
        """Apply entries that waited for the log write, and gathered ones if they are many (or
        `at_once`).

        Errors as in `persisted`.
        """
        if self._unapplied and (at_once or self.node.behind or not self._gathering):
            self._guarded(self._apply_rest)

    def _apply_rest(self) -> None:
        if self._unapplied:
            committed, self._unapplied = self._unapplied, []
            self._unapplied_bytes = 0
            self._apply(committed)

    def _confirmed(self, ready: Ready) -> None:
        for question, _index in ready.reads:
            self._confirming.pop(question)(True)
        for question in ready.reads_failed:
            self._confirming.pop(question)(False)

    def _persist(self, ready: Ready) -> None:
        log = self.log
        written = False
        if ready.hard_state is not None:
            state = ready.hard_state
            term, vote, commit = state.term, state.vote, state.commit
            if (term, vote) != self.hard_state or commit >= self._commit_written + COMMIT_EVERY:
                self.hard_state = (term, vote)
                self._commit_written = commit
                self._shared.wal.append_hard_state(log.number, term, vote, commit)
                written = True
        for entry in ready.entries:
            if entry.index <= self._recovered_at:
                self._recovered_at = entry.index - 1  # those replaced were never applied
            log.append(entry)
            written = True
        if written:
            self.changed = True
            self._written += 1
            self._shared.wrote(self, log.last_index(), log.term(log.last_index()), self._written)
        if ready.messages_after_persistence:
            if self._durable < self._written:
                self._after.append((self._written, ready.messages_after_persistence))
            else:
                self.send(ready.messages_after_persistence)

    def _apply(self, committed: Sequence[Entry]) -> None:
        group = self.group
        for entry in committed:
            data = entry.data if entry.kind == COMMAND else None
            group.apply(entry.index, entry.term, data)
            self.observer.applied()
        last = committed[-1].index
        self.log.applied(last)
        self.node.advance(applied=last)

    def _lead(self, leader: bool) -> None:
        """Accept commands once an entry of the own term is applied: it follows everything
        acknowledged."""
        group = self.group
        leader = leader and not self.halted
        led = leader and not self.leading and group.applied_term == self.node.term
        if leader != self.leading:
            self.changed = True
        if self._recovered is not None and (led or group.applied_index >= self._recovered_at):
            self._recovered()
            self._recovered = None
        if led:
            self.leading = True
            self.elections += 1
            group.lead()
            self.observer.leads()
        elif not leader and self.leading:
            self.leading = False
            self.observer.follows()
            group.follow()

    def persisted(self, index: int, term: int, number: int) -> None:
        """Handle durability up to an entry. An internal or disk error fails this group and no
        other."""
        self._guarded(lambda: self._advance(index, term, number))

    def _advance(self, index: int, term: int, number: int) -> None:
        self._durable = number
        after = self._after
        while after and after[0][0] <= number:
            self.send(after.popleft()[1])
        self.group.answers.ahead.synced(index)  # before entries behind it are applied
        self.node.advance(persisted=(index, term))
        if self.leading and self.group.answers.early:
            self.group.answer_written(index)

    def in_sync(self, members: int) -> int:
        """Return the last index that this many members have on disk."""
        status = self.node.status()
        voters = status.membership.voters
        held = [
            status.persisted if voter == status.id else status.progress[voter].match
            for voter in voters
            if voter == status.id or voter in status.progress
        ]
        return self._rule.acknowledged(held, members)

    def halt(self) -> None:
        """Leave the group for now: accept, answer and send nothing, and give no vote.

        What was accepted before is still written, and applied if known to be committed; see
        `at_rest`.
        """
        self.halted = True
        self._send_again, self.send = self.send, UNOBSERVED.send
        self._lead(False)

    def resume(self) -> None:
        """Rejoin the group; to the others messages seem to have been lost. Errors as in
        `persisted`."""
        self.halted = False
        if self.group.failed:
            return
        self.send = self._send_again
        self._lead(self.node.status().role is Role.LEADER)
        self._guarded(self.pump)

    def at_rest(self) -> bool:
        """Apply what a halted member can; return whether its log is durable and all it committed is
        applied."""
        self._guarded(self._apply_rest)
        durable = self._durable == self._written
        return durable and not self._unapplied and not self.node.behind

    def log_failed(self, why: str) -> None:
        """Handle a failed log: step down for good and send nothing to the others any more."""
        self.leading = False
        self.send = UNOBSERVED.send
        self.group.fail(why)
