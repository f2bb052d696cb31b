"""Automatic spreading of leaders over the nodes.

For a new group, the node that `first_leaders` names campaigns as soon as a majority can be reached,
while the others wait for their election timeout. Later, leaders hand groups over by the rule of
`rebalanced`: only while nodes differ by more than one leader, only when nothing has changed for a
while, and only a group all of whose voters are up and have what is committed. A group that one node
should lead by its name is handed over to that node in the same way, and to no other. If an operator
has moved it, it stays, until one of the two nodes stops. A shard that has handed a group over does
not do so again for a while that doubles each time, so that a group that comes back does not go to and
fro.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from fluxmq.ipc.leader_balance import APART, first_leaders, leader_placement, rebalanced
from fluxmq.logs import get_logger
from fluxmq.net.links import FrameLink
from fluxmq.raft.types import Membership, RaftStatus, ReplicationMode
from fluxmq.replication.leaders import OWN, Leaders
from fluxmq.replication.replica import Replica, committed_membership, contact_seconds, name_of
from fluxmq.replication.shard_links import ShardLinks
from fluxmq.settings.group_names import is_mirrored, preferred_leader
from fluxmq.settings.plans import GroupPlans, UnknownGroup, member_number

QUIET_SECONDS: Final = 10.0
"""Time for which no group has changed its leader, and the voters of a moving one were up to date:
after a failure, and while nodes start one after another, leaders stay where they are.
"""
LOOK_SECONDS: Final = 1.0
"""Interval between two checks."""
GROUPS_PER_SECOND: Final = 200
LOOK_SECONDS_MAX: Final = 5.0
"""With many groups the interval is longer, by a second for each so many, up to that."""
LAG_ENTRIES_MAX: Final = 64
"""Maximum lag in committed entries of a voter that counts as up to date: what is in flight in a few
ticks.
"""
BACK_OFF_SECONDS: Final = 60.0
"""Time before this shard hands a group over again, whether or not the last handover succeeded.
Doubles each time.
"""
BACK_OFF_SECONDS_MAX: Final = 3600.0
"""Maximum back-off; a group that stayed away for longer starts over with the shortest."""

TRANSFERRED: Final = "transferred"
"""Control frame to the shards of the node that an operator moves a group to."""

_log = get_logger("fluxmq.cluster")


class Led(NamedTuple):
    """The leader of a group, and its term."""

    node: str
    term: int


class _Pause(NamedTuple):
    began: float
    seconds: float


class Spreading:
    """Decides which groups a shard of ``node`` hands over, and to which node. No clock, no I/O."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._seen: Mapping[str, Led] = {}
        self._changed = 0.0
        self._whole: dict[str, float] = {}
        self.kept: dict[str, int] = {}
        """Groups that an operator has moved to this node, with the term in which that was asked."""
        self._pauses: dict[str, _Pause] = {}

    def moves(
        self,
        now: float,
        leaders: Mapping[str, Led],
        voters: Mapping[str, Sequence[str]],
        whole: Collection[str],
    ) -> list[tuple[str, str]]:
        """Return groups to hand over now, with the nodes that are to lead them. ``leaders``: all
        groups that have a leader; ``voters``: those of each; ``whole``: the groups led by this
        shard whose voters are all up to date.
        """
        if leaders != self._seen:
            self._seen, self._changed = dict(leaders), now
        self._whole = {group: self._whole.get(group, now) for group in whole}
        self._pauses = {
            group: pause
            for group, pause in self._pauses.items()
            if now - pause.began < pause.seconds + BACK_OFF_SECONDS_MAX
        }
        self.kept = {
            group: term
            for group, term in self.kept.items()
            if self._stays(leaders.get(group), term)
        }
        if now - self._changed < QUIET_SECONDS:
            return []
        if _is_even(leaders, voters) and not any(
            preferred_leader(group) in {*voters.get(group, ())} - {self._node}
            for group in self._whole
            if group not in self.kept
        ):
            return []
        placed = {
            group: leader_placement(
                group, led.node, self._successors(now, group, led, voters.get(group, ()))
            )
            for group, led in leaders.items()
        }
        moves = [move for move in rebalanced(placed) if move[0] in self._whole]
        for group, _ in moves:
            before = self._pauses.get(group)
            seconds = BACK_OFF_SECONDS if before is None else 2 * before.seconds
            self._pauses[group] = _Pause(now, min(seconds, BACK_OFF_SECONDS_MAX))
        return moves

    def _stays(self, led: Led | None, term: int) -> bool:
        """Return whether a group that an operator has moved here is led here, or may be soon."""
        return led is None or led.node == self._node or led.term <= term

    def _successors(
        self, now: float, group: str, led: Led, voters: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the nodes that may lead a group: only its leader if it is not to move."""
        if led.node != self._node:
            # Its leader decides whether it goes to the node that should lead it.
            return (led.node,) if preferred_leader(group) in voters else tuple(voters)
        since = self._whole.get(group)
        pause = self._pauses.get(group)
        resting = pause is not None and now - pause.began < pause.seconds
        if since is None or now - since < QUIET_SECONDS or resting or group in self.kept:
            return (led.node,)
        return tuple(voters)


def _is_even(leaders: Mapping[str, Led], voters: Mapping[str, Sequence[str]]) -> bool:
    """Return whether no node leads so many groups more than another that one could move."""
    loads = Counter([led.node for led in leaders.values()])
    for nodes in {tuple(each) for each in voters.values()}:
        loads.update(dict.fromkeys(nodes, 0))
    return not loads or max(loads.values()) - min(loads.values()) < APART


class LeaderSpread:
    """Carries the decisions out for one shard."""

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        leaders: Leaders,
        links: ShardLinks,
        plans: GroupPlans,
    ) -> None:
        self._replicas = replicas
        self._known = leaders
        self._links = links
        self._plans = plans
        self._names: dict[str, tuple[Membership | None, tuple[str, ...]]] = {}
        """The voters of groups by name, with the membership that they are from."""
        self._spreading = Spreading(links.node)
        self._next_look = 0.0

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {TRANSFERRED: self._on_transferred}

    def _on_transferred(self, _link: FrameLink, group: str, term: int) -> None:
        """Note a group that an operator moves to this node; ``term``: its former leader's."""
        if group in self._replicas:
            self._spreading.kept[group] = term

    def housekeeping(self, now: float) -> None:
        """Look for groups to hand over, when due; called by the shard's timer."""
        if now < self._next_look:
            return
        many = min(len(self._replicas) / GROUPS_PER_SECOND, LOOK_SECONDS_MAX - LOOK_SECONDS)
        self._next_look = now + LOOK_SECONDS + many
        self._begin_new()
        for group in [*self._spreading.kept]:
            if not self._links.of(preferred_leader(group)):
                del self._spreading.kept[group]  # it returns to the node when that is back
        leaders = self._leaders()
        voters = {group: self._voters(group) for group in leaders}
        whole = [group for group, replica in self._replicas.items() if self._is_whole(replica, now)]
        for group, node in self._spreading.moves(now, leaders, voters, whole):
            _log.info(
                "transferring leadership to balance leaders", extra={"group": group, "to": node}
            )
            self._replicas[group].transfer(member_number(node))

    def _leaders(self) -> dict[str, Led]:
        found = {}
        for group, leader in self._known.all().items():
            if "@" in group or is_mirrored(group) or leader.peer is None:
                continue
            node = self._links.node if leader.peer == OWN else self._links.node_of(leader.peer)
            if node:
                found[group] = Led(node, leader.term)
        return found

    def _voters(self, group: str) -> tuple[str, ...]:
        """Return a group's voters: by its log if it is here, or else its initial members."""
        replica = self._replicas.get(group)
        if replica is not None:
            membership = replica.hosted.driver.node.quiescence.membership
            known, names = self._names.get(group, (None, ()))
            if known is not membership:
                names = tuple(name_of(replica, number) for number in membership.voters)
                self._names[group] = (membership, names)
            return names
        try:
            return tuple(member.node for member in self._plans.of(group).members)
        except UnknownGroup:
            return ()

    def _is_whole(self, replica: Replica, now: float) -> bool:
        """Return whether a group is led here and every voter is up and has what is committed."""
        driver = replica.hosted.driver
        if replica.resting and replica.settled:
            return driver.leading
        if not driver.leading or replica.hosted.group.failed or replica.hosted.group.leaving:
            return False
        status = driver.node.status()
        if committed_membership(replica) != status.membership:
            return False
        return all(
            self._is_near(replica, status, number, now)
            for number in status.membership.voters
            if number != status.id
        )

    def _is_near(self, replica: Replica, status: RaftStatus, number: int, now: float) -> bool:
        peer = status.progress[number]
        contact = contact_seconds(replica, number, now)
        return (
            peer.state is ReplicationMode.REPLICATE
            and status.commit - peer.match <= LAG_ENTRIES_MAX
            and replica.acquaintances.believed(number)
            and replica.raft_transport.reaches(number)
            and contact is not None
            and contact <= replica.plan.election_timeout
            and bool(self._links.of(name_of(replica, number)))
        )

    # New groups

    def _begin_new(self) -> None:
        """Campaign for groups that have never had a leader, if this node is to be the first."""
        new = [
            replica
            for replica in self._replicas.values()
            if not replica.resting
            and not (replica.hosted.driver.node.term or replica.hosted.group.failed)
            and not is_mirrored(replica.plan.name)
        ]
        if new:
            configured = self._first_leaders()
            for replica in new:
                group = replica.plan.name
                first = configured.get(group) or self._first_leaders(group)[group]
                self._begin(replica, first)

    def _begin(self, replica: Replica, first: str) -> None:
        """Campaign for a new group as its first leader, if a majority can be reached."""
        driver = replica.hosted.driver
        status = driver.node.status()
        voters = status.membership.voters
        reached = sum(
            number == status.id
            or (replica.raft_transport.reaches(number) and replica.acquaintances.believed(number))
            for number in voters
        )
        if reached > len(voters) // 2 and member_number(first) == status.id:
            driver.campaign()

    def _first_leaders(self, *groups: str) -> dict[str, str]:
        """Return the first leaders of the settings' groups, and of others."""
        plans = self._plans
        voters: dict[str, tuple[str, ...]] = {}
        for name in (*plans.configured(), *groups):
            try:
                voters[name] = tuple(member.node for member in plans.of(name).members)
            except UnknownGroup:
                continue
        return first_leaders(voters)
