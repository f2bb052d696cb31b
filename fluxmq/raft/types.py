"""Values of the consensus core: a node's inputs and outputs, and the messages between nodes.

Nothing here decides or has an encoding: the transport encodes messages, and the write-ahead log
encodes entries. Indexes begin at 1 and 0 stands for "before the first"; terms begin at 1 and node
ids at 1, 0 stands for "none". All are below 2**64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, NamedTuple

COMMAND: Final = 0
"""An entry for the state machine: bytes given to `propose`."""

EMPTY: Final = 1
"""The entry with which a leader begins its term (dissertation section 3.6.2), without effect."""

MEMBERSHIP: Final = 2
"""An entry that changes the group's members; its data is the whole new membership."""


@dataclass(slots=True, init=False)
class Entry:
    """One entry of the log. `kind` is COMMAND, EMPTY or MEMBERSHIP."""

    term: int
    index: int
    kind: int
    data: bytes

    def __init__(self, term: int, index: int, kind: int, data: bytes) -> None:
        self.term = term
        self.index = index
        self.kind = kind
        self.data = data


@dataclass(slots=True, init=False)
class HardState:
    """State that a node must remember over a restart besides its log. `vote` is 0 for none.

    `term` and `vote` must be durable before an answer that depends on them leaves. `commit` may be
    stale or lost: it is learned again (paper figure 2), and is kept because it lets a restarted
    node apply without waiting.
    """

    term: int
    vote: int
    commit: int

    def __init__(self, term: int, vote: int, commit: int) -> None:
        self.term = term
        self.vote = vote
        self.commit = commit


class Membership(NamedTuple):
    """Members of the group: voters form majorities, learners only get the log. Sorted, disjoint."""

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()


class ChangeVerb(IntEnum):
    """Effects of a membership change on one node."""

    ADD_VOTER = 1
    """Add a voter, or promote a learner."""
    ADD_LEARNER = 2
    """Add a learner, or demote a voter."""
    REMOVE = 3


class MembershipChange(NamedTuple):
    """A change of one node's place in the group."""

    verb: ChangeVerb
    node: int


class SnapshotMark(NamedTuple):
    """Position of a snapshot in the log: it covers all entries up to `index`, which has `term`."""

    index: int  # type: ignore[assignment] # as in Entry
    term: int
    membership: Membership


class Snapshot(NamedTuple):
    """A snapshot to install. `data` is the host's: the content itself, or where it is stored."""

    mark: SnapshotMark
    data: bytes


class Role(Enum):
    """Role of a node in its term (paper section 5.1, pre-candidate: dissertation section 9.6)."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class MessageKind(IntEnum):
    """Kinds of messages between nodes; numbers are stable, transports may put them on the wire."""

    APPEND = 1
    """Entries after (`index`, `log_term`), and the leader's `commit`."""
    APPEND_ANSWER = 2
    """The log matches the leader's up to `index`; or `reject`: it lacks `index`, see `hint`."""
    HEARTBEAT = 3
    """The leader is alive; `commit` is at most the receiver's match; `context` numbers reads."""
    HEARTBEAT_ANSWER = 4
    VOTE = 5
    """Vote for me in `term`: my log ends at (`index`, `log_term`). `context` 1: a transfer."""
    VOTE_ANSWER = 6
    PRE_VOTE = 7
    """Would you vote for me in `term`? It is one above the sender's own."""
    PRE_VOTE_ANSWER = 8
    SNAPSHOT = 9
    """Install `snapshot`, whole."""
    TIMEOUT_NOW = 10
    """Campaign at once: the leader hands over (dissertation section 3.10)."""


TRANSFER: Final = 1
"""`Message.context` of a VOTE after a TIMEOUT_NOW: receivers answer although they have a leader."""


# Classes instantiated per entry write their own `__init__`: a generated one is never compiled.


@dataclass(slots=True, init=False)
class Message:
    """A message from one node to another; its kind decides which fields are used."""

    kind: MessageKind
    source: int
    target: int
    term: int
    index: int
    log_term: int
    entries: Sequence[Entry]
    commit: int
    reject: bool
    hint: int
    """In a rejection: no index above this one can match."""
    hint_term: int
    """In a rejection: the term of `hint` in the sender's log."""
    context: int
    snapshot: Snapshot | None

    def __init__(
        self,
        kind: MessageKind,
        source: int,
        target: int,
        term: int,
        index: int = 0,
        log_term: int = 0,
        entries: Sequence[Entry] = (),
        commit: int = 0,
        reject: bool = False,
        hint: int = 0,
        hint_term: int = 0,
        context: int = 0,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.kind = kind
        self.source = source
        self.target = target
        self.term = term
        self.index = index
        self.log_term = log_term
        self.entries = entries
        self.commit = commit
        self.reject = reject
        self.hint = hint
        self.hint_term = hint_term
        self.context = context
        self.snapshot = snapshot


@dataclass(slots=True, init=False)
class Ready:
    """Everything new since the last call of `Node.ready`, in the order in which it may be done.

    * `messages` may leave at once, before anything is written.
    * `snapshot` is installed first and `entries` are then written after it; the first entry may
      overwrite entries written before, which cuts the log there. `hard_state` may be written before
      or after them. All of it has to be synced; a commit index that moved alone is not included, it
      comes with the next entries.
    * `messages_after_persistence` leave when everything to be persisted in this **and every
      earlier** Ready is.
    * `committed` is applied in order, after the snapshot; EMPTY and MEMBERSHIP entries mean nothing
      to a state machine but count as applied. All of it is persisted here, so a state machine is
      never ahead of the log. At most a piece is returned at a time: call `ready` until it returns
      None.
    * `reads` are (context, index): the read may be served when everything up to index is applied.
      `reads_failed` are contexts that will not be answered, because leadership was lost.
    * `snapshot_wanted` are peers that need entries which the log no longer holds; see
      `Node.offer_snapshot`.
    """

    hard_state: HardState | None
    entries: list[Entry]
    messages: list[Message]
    messages_after_persistence: list[Message]
    committed: list[Entry]
    snapshot: Snapshot | None
    reads: list[tuple[int, int]]
    reads_failed: list[int]
    snapshot_wanted: list[int]
    role: Role
    leader: int

    def __init__(
        self,
        hard_state: HardState | None,
        entries: list[Entry],
        messages: list[Message],
        messages_after_persistence: list[Message],
        committed: list[Entry],
        snapshot: Snapshot | None,
        reads: list[tuple[int, int]],
        reads_failed: list[int],
        snapshot_wanted: list[int],
        role: Role,
        leader: int,
    ) -> None:
        self.hard_state = hard_state
        self.entries = entries
        self.messages = messages
        self.messages_after_persistence = messages_after_persistence
        self.committed = committed
        self.snapshot = snapshot
        self.reads = reads
        self.reads_failed = reads_failed
        self.snapshot_wanted = snapshot_wanted
        self.role = role
        self.leader = leader


@dataclass(slots=True, init=False)
class ProposalAccepted:
    """The entries are in the leader's log from `first_index` on. They are committed when an entry
    of this very index **and term** is handed out; another term there means that they were lost.
    """

    first_index: int
    term: int

    def __init__(self, first_index: int, term: int) -> None:
        self.first_index = first_index
        self.term = term


class NotLeader(NamedTuple):
    """This node accepts no proposals or reads now; `leader` might, 0 if it is unknown."""

    leader: int


class Overloaded(NamedTuple):
    """The leader holds the maximum of unpersisted or uncommitted data, `bytes`. Try again later."""

    bytes: int


class ChangeRefused(Enum):
    """Reason for refusing a membership change."""

    UNCOMMITTED = "an earlier change is not committed yet"
    TERM_NOT_COMMITTED = "nothing of the leader's own term is committed yet"
    NO_CHANGE = "the node already has this place"
    LAST_VOTER = "the group would have no voter"
    TOO_MANY = "the group has as many members as it may"
    APPOINTED = "the node was appointed to lead the group"


class ReplicationMode(Enum):
    """A leader's way of sending to a peer (see ``progress``)."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class PeerStatus(NamedTuple):
    """A peer's state: `match` is proven, `next` is sent next, `inflight_bytes` unanswered."""

    match: int
    next: int
    state: ReplicationMode
    inflight_bytes: int
    learner: bool
    active: bool


@dataclass(slots=True)
class RaftStatus:
    """Summary of a node; `progress` is empty unless it leads."""

    id: int
    role: Role
    term: int
    vote: int
    leader: int
    commit: int
    applied: int
    persisted: int
    last_index: int
    membership: Membership
    progress: dict[int, PeerStatus] = field(default_factory=dict)
