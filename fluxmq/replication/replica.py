"""A replicated group on a shard with its parts there, and the rate of its clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fluxmq.engine.replica_host import ReplicaHost
from fluxmq.replication.carrier import Carrier
from fluxmq.replication.hosted import Hosted
from fluxmq.replication.incarnation import Acquaintances
from fluxmq.settings.plans import GroupPlan

TICKS_PER_ELECTION = 20
"""Ticks of a group's clock in its shortest election timeout: the finer, the more seldom two members
campaign at once.
"""


@dataclass(slots=True)
class Replica:
    """A replicated group on this shard."""

    plan: GroupPlan
    hosted: Hosted
    carrier: Carrier
    copy: ReplicaHost
    acquaintances: Acquaintances
    timer: asyncio.TimerHandle | None = None
    announcement: asyncio.TimerHandle | None = None
    starting: asyncio.Task[None] | None = None
    tick_seconds: float = 0.1
    caught_up: dict[int, float] = field(default_factory=dict)
    """On the leader: the time since when learners are close to the log's end."""
    next_tell: float = 0.0
    """Next time to tell nodes that they are members, or were removed."""


def tick_seconds(plan: GroupPlan) -> float:
    """Return the duration of a tick of a group's clock, in seconds."""
    return plan.election_timeout / TICKS_PER_ELECTION


def heartbeat_ticks(plan: GroupPlan) -> int:
    """Return the number of ticks between two heartbeats."""
    return min(max(1, int(plan.heartbeat_timeout / tick_seconds(plan))), TICKS_PER_ELECTION - 1)
