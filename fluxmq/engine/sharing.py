"""Connects a shard's queues to the other nodes of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

from fluxmq.cluster.clock_links import SteeredClock
from fluxmq.engine.hosts import GroupHosts
from fluxmq.engine.wiring import Queues
from fluxmq.replication.replicated_groups import ReplicatedGroups
from fluxmq.settings.schema import Settings


def share(
    queues: Queues,
    settings: Settings,
    workers: int,
    epoch: int,
    clock: SteeredClock,
    now: Callable[[], float] = time.monotonic,
) -> ReplicatedGroups:
    """Share the groups of a shard with other nodes. ``epoch``: a number of this shard's life.

    Called before the shard's groups are opened.
    """
    service = queues.service
    nodes = ReplicatedGroups(
        *(settings, queues.shard, workers, epoch, queues.durable, queues.places, clock),
        now,
    )
    hosts = GroupHosts(
        *(epoch, settings.cluster.raft.local_max_bytes, nodes.queue_plans, nodes.is_member),
        *(nodes.shards, nodes.news, service, now),
    )
    queues.share(nodes, hosts)
    return nodes
