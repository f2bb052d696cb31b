"""The environment of a shard, as its process or a test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluxmq.net.links import Blocked, Link, Received
from fluxmq.net.reactor import Reactor
from fluxmq.replication.disk import Disk
from fluxmq.shards.durable.row_router import LocalRows
from fluxmq.shards.groups import GroupTable
from fluxmq.shards.routes import RouteTable
from fluxmq.storage.directory import Placement

if TYPE_CHECKING:
    from fluxmq.cluster.shard_endpoint import ShardEndpoint


@dataclass(frozen=True, slots=True)
class Times:
    """The clocks of a shard, and its timer.

    `steady_us`: µs since the epoch, never going back, for queues. `call_later` calls an action
    after this many seconds, and ticks.
    """

    monotonic: Callable[[], float]
    wall_seconds: Callable[[], float]
    wall_ns: Callable[[], int]
    steady_us: Callable[[], int]
    call_later: Callable[[float, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Environment of a shard: its process, disk, clocks and the node's other shards.

    `epoch` identifies this life of the shard. `is_alive` returns whether another shard runs and has
    shown it. `expect_others` adds subscriptions of persistent sessions of shards that may start
    later. `schedule` schedules a tick. `count_connections` gets, by listener, the number of
    connections and how many it has received in all, `take_connections` whether it has received some
    not yet in these numbers; `connected` returns the number of connected clients. `endpoint`: where
    other nodes reach this shard, in a cluster; not started yet.
    """

    index: int
    workers: int
    epoch: int
    loop: asyncio.AbstractEventLoop
    placement: Placement
    times: Times
    disk: Disk
    store: LocalRows
    expect_others: Callable[[RouteTable, GroupTable], None]
    connect: Callable[[Reactor, Received, Blocked], dict[int, Link]]
    is_alive: Callable[[int], bool]
    handoff_fd: int
    schedule: Callable[[], None]
    count_connections: Callable[[int, int, int], None]
    take_connections: Callable[[bool], None]
    connected: Callable[[], int]
    endpoint: ShardEndpoint | None = None
