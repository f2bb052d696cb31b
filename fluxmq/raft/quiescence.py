"""Quiescence of a node: whether nothing is to be done in its group, and the end of such a time.

A host may leave a quiescent leader and its followers without ticks, and their heartbeats to a
common one of all such groups, while it knows by other means that both sides are there. It calls
`resume` before anything else happens to the node. Safety does not depend on that: no rule of Raft's
safety uses time, and a read is still confirmed by heartbeats of its own (dissertation section
6.4). But the host must not leave a follower quiescent when its leader no longer leads.
"""

from __future__ import annotations

from collections.abc import Collection

from fluxmq.raft.leader import Leadership
from fluxmq.raft.progress import Progress
from fluxmq.raft.state import NodeState
from fluxmq.raft.types import Membership, ReplicationMode, Role


class Quiescence:
    """One node's. ``leadership`` is the node's while it leads."""

    __slots__ = ("_state", "leadership")

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self.leadership: Leadership | None = None

    @property
    def end(self) -> tuple[int, int]:
        """The node's term, and the last index of its log."""
        state = self._state
        return state.term, state.log.last_index

    @property
    def unannounced(self) -> bool:
        """True if this node leads and others do not know its commit index."""
        return self.leadership is not None and self.leadership.unannounced

    @property
    def membership(self) -> Membership:
        """The membership in effect."""
        return self._state.memberships.current

    @property
    def members(self) -> tuple[int, ...]:
        """The group's other members, learners too."""
        voters, learners = self._state.memberships.current
        own = self._state.id
        return tuple([node for node in voters + learners if node != own])

    def leads_quietly(self, peers: Collection[int]) -> bool:
        """Return whether this node leads, and needs nothing but heartbeats to these peers.

        They and this node must suffice. Everything in the log is durable here and at the
        peers, and committed; no read, transfer or snapshot is under way.
        """
        leadership, state = self.leadership, self._state
        if leadership is None or leadership.transferee or leadership.reads_open():
            return False
        log = state.log
        end = log.last_index
        if not leadership.first_index <= end == log.commit == log.persisted == log.handed:
            return False
        if state.id not in state.memberships.current.voters or not self.suffice(peers):
            return False
        return all(self._is_quiet(leadership.peers.get(peer), end) for peer in peers)

    def suffice(self, peers: Collection[int]) -> bool:
        """Return whether these peers and this node can commit: whether they are a majority of the
        voters, or in an appointed group all of them. So that one has ticks while a voter is away,
        and its host sees to the voter although nothing is to be committed.
        """
        voters = self._state.memberships.current.voters
        present = sum([node == self._state.id or node in peers for node in voters])
        if self._state.config.appointed:
            return present == len(voters)
        return present > len(voters) // 2

    @staticmethod
    def _is_quiet(progress: Progress | None, end: int) -> bool:
        return (
            progress is not None
            and progress.state is ReplicationMode.REPLICATE
            and progress.match == end
        )

    def follows_quietly(self, leader: int, term: int, index: int) -> bool:
        """Return whether this node follows that leader of that term, and has everything up to
        `index`, the end of the leader's log, durable and committed."""
        state = self._state
        log = state.log
        return (
            state.role is Role.FOLLOWER
            and state.leader == leader != 0
            and state.term == term
            and log.snapshot is None
            and log.last_index == log.persisted == log.commit == index
        )

    def resume(self, elapsed: int, heard: Collection[int]) -> None:
        """End the quiescence. A follower last heard of its leader ``elapsed`` ticks ago. A leader
        has lately heard from the peers in ``heard``, and begins a check of its quorum with that.
        """
        state = self._state
        if self.leadership is not None:
            state.elapsed = 0
            self.leadership.resume(heard)
        elif state.role is Role.FOLLOWER:
            state.elapsed = elapsed
