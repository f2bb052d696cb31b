"""A replicated group on a shard: its clock, its streams to the other members, and its
leadership."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from fluxmq.logs import get_logger
from fluxmq.raft.types import Membership, Message, RaftStatus
from fluxmq.replication.audit import Audit
from fluxmq.replication.incarnation import Acquaintances
from fluxmq.replication.leaders import LeaderNews
from fluxmq.replication.open_group import AnyHosted
from fluxmq.replication.raft_transport import RaftTransport
from fluxmq.settings.group_names import is_mirrored
from fluxmq.settings.plans import GroupPlan

TICKS_PER_ELECTION = 20
"""Ticks of a group's clock in its shortest election timeout: the finer, the more seldom two members
campaign at once.
"""
ANNOUNCE_SECONDS: Final = 0.01
"""Delay before other members are told the commit index, unless entries have carried it: where
nobody reads their copies, it only keeps them near the end.
"""

_log = get_logger("fluxmq.cluster")


class Replica:
    """A replicated group on this shard; implements ``ReplicaObserver``. ``damaged`` is called with
    the reason not to trust a file, ``wanted`` with a member that needs a snapshot, ``wake``
    schedules the end of a tick."""

    def __init__(
        self,
        plan: GroupPlan,
        hosted: AnyHosted,
        raft_transport: RaftTransport,
        acquaintances: Acquaintances,
        audit: Audit,
        news: LeaderNews,
        damaged: Callable[[str, str], None],
        wanted: Callable[[str, int], None],
    ) -> None:
        self.plan = plan
        self.hosted = hosted
        self.raft_transport = raft_transport
        self.acquaintances = acquaintances
        self.audit = audit
        self.starting: asyncio.Task[None] | None = None
        self.caught_up: dict[int, float] = {}
        """On the leader: the time since when learners are close to the log's end."""
        self.resting = False
        """True while the clock stands still, because nothing happens in the group."""
        self.settled = False
        """True if no member is to be told or promoted, so that a resting group needs no look."""
        self.next_tell = 0.0
        """Next time to tell nodes that they are members, or were removed."""
        self._news = news
        self._damaged = damaged
        self._wanted = wanted
        self._timer: asyncio.TimerHandle | None = None
        self._announcement: asyncio.TimerHandle | None = None

    # The group's clock

    def tick(self, wake: Callable[[], None]) -> None:
        """Advance the clock by one tick, even if the shard was held up for longer."""
        if self.hosted.group.failed:
            return
        self.hosted.driver.tick()
        self.resume(wake)
        wake()

    def rest(self) -> None:
        """Stop the clock while nothing happens."""
        self.resting, self.settled = True, False
        if self._timer is not None:
            self._timer.cancel()

    def resume(self, wake: Callable[[], None]) -> None:
        """Let the clock go on: the next tick follows after its duration."""
        self.resting = False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(tick_seconds(self.plan), self.tick, wake)

    def still(self) -> None:
        """Stop the clock."""
        for timer in (self._timer, self._announcement):
            if timer is not None:
                timer.cancel()

    # Reports of the driver

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages to the other members."""
        self.raft_transport.send(messages)

    def applied(self) -> None:
        """Note the hash after an entry was applied."""
        self.audit.applied()

    def leads(self) -> None:
        """Announce this leader once the queues of the settings exist: clients may ask for them at
        once."""
        self.hosted.group.when_applied(self._announce_lead)

    def _announce_lead(self) -> None:
        if self.hosted.driver.leading:
            name, term = self.plan.name, self.hosted.driver.node.term
            _log.info("leading", extra={"group": name, "term": term})
            self._news.leads(name, term)

    def follows(self) -> None:
        """Announce that this member leads no longer."""
        name, term = self.plan.name, self.hosted.driver.node.term
        _log.info("leadership lost", extra={"group": name, "term": term})
        self._news.follows(name, term)
        self.audit.lose()

    def damaged(self, why: str) -> None:
        """Have the copy fetched again."""
        self._damaged(self.plan.name, why)

    def snapshot_wanted(self, member: int) -> None:
        """Offer a snapshot to a member."""
        self._wanted(self.plan.name, member)

    def unannounced(self) -> None:
        """Schedule an announcement of the commit index, in case no other message carries it."""
        if self._announcement is None:
            loop = asyncio.get_running_loop()
            self._announcement = loop.call_later(ANNOUNCE_SECONDS, self._announce)

    def _announce(self) -> None:
        self._announcement = None
        self.hosted.driver.announce()

    def hand_lead(self) -> bool:
        """Ask another member to lead; return whether one was asked."""
        return self.transfer()

    # Leadership

    def transfer(self, to: int = 0) -> bool:
        """Transfer leadership to a member, by default the most advanced; return whether one was
        asked.
        """
        if is_mirrored(self.plan.name):
            return False
        node = self.hosted.driver.node
        reachable = [
            (peer.match, number)
            for number, peer in node.status().progress.items()
            if not peer.learner and self.acquaintances.believed(number) and to in (0, number)
        ]
        if not reachable:
            return False
        asked = node.transfer_leadership(max(reachable)[1])
        self.hosted.driver.pump()
        return asked

    def give_up(self, why: str) -> None:
        """Stop using this copy until it is replaced; if it led, announce that it no longer does."""
        _log.error("a replica is quarantined", extra={"group": self.plan.name, "why": why})
        self.hosted.driver.log_failed(f"quarantined: {why}")
        if self._news.is_own(self.plan.name):
            self.follows()


def tick_seconds(plan: GroupPlan) -> float:
    """Return the duration of a tick of a group's clock, in seconds."""
    return plan.election_timeout / TICKS_PER_ELECTION


def heartbeat_ticks(plan: GroupPlan) -> int:
    """Return the number of ticks between two heartbeats."""
    return min(max(1, int(plan.heartbeat_timeout / tick_seconds(plan))), TICKS_PER_ELECTION - 1)


def leader_of(replica: Replica, status: RaftStatus | None = None) -> str:
    """Return the node that leads a group, as far as its Raft node knows; empty for none."""
    known = status or replica.hosted.driver.node.status()
    return "" if replica.hosted.group.failed else name_of(replica, known.leader)


def name_of(replica: Replica, number: int) -> str:
    """Return a member's node; its number if the settings know no such node; empty for 0."""
    if not number:
        return ""
    names = (member.node for member in replica.plan.nodes if member.number == number)
    return next(names, f"#{number}")


def contact_seconds(replica: Replica, number: int, now: float) -> float | None:
    """Return the seconds since a member was last heard from; None if it never was."""
    heard = replica.raft_transport.heard_at(number)
    return None if heard is None else max(0.0, now - heard)


def committed_membership(replica: Replica) -> Membership:
    """Return the latest committed membership."""
    node = replica.hosted.driver.node
    return node.membership_at(node.status().commit)
