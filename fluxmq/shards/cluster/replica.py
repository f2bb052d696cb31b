"""A replicated group on a shard, with all that belongs to it there; and how fast its clock runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fluxmq.settings.plans import GroupPlan
from fluxmq.shards.cluster.carrier import Carrier
from fluxmq.shards.cluster.incarnation import Acquaintances
from fluxmq.shards.queues.hosted import Hosted
from fluxmq.shards.queues.replica_host import ReplicaHost

TICKS_PER_ELECTION = 20
"""Ticks of a group's clock in its shortest election timeout: the finer, the seldomer two campaign at once."""


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
    """Since when learners are close to the log's end; where it is led."""
    next_tell: float = 0.0
    """When nodes are told next that they are members, or are none."""


def tick_seconds(plan: GroupPlan) -> float:
    """How long a tick of a group's clock takes."""
    return plan.election_timeout / TICKS_PER_ELECTION


def heartbeat_ticks(plan: GroupPlan) -> int:
    """Ticks between two heartbeats."""
    return min(max(1, int(plan.heartbeat_timeout / tick_seconds(plan))), TICKS_PER_ELECTION - 1)
