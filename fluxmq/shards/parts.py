"""The parts of a shard between its loop and its sessions."""

from __future__ import annotations

from dataclasses import dataclass

from fluxmq.engine.queue_links import QueueLinks
from fluxmq.engine.wiring import Queues
from fluxmq.shards.amqp.events import BrokerEvents
from fluxmq.shards.amqp.firehose import Firehose
from fluxmq.shards.authentication import Authentication
from fluxmq.shards.counts import Drops
from fluxmq.shards.durable.commit_waiter import CommitWaiter
from fluxmq.shards.durable.links import DurableLinks
from fluxmq.shards.groups import GroupTable
from fluxmq.shards.node_peers import OtherNodes
from fluxmq.shards.publish_rates import PublishRates
from fluxmq.shards.retained import RetainedMessages
from fluxmq.shards.routes import RouteTable
from fluxmq.shards.switch import Switch
from fluxmq.shards.user_limits import UserLimitChecks


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a shard that its sessions use and that exist before them."""

    authentication: Authentication
    queues: Queues
    queue_links: QueueLinks
    switch: Switch
    routes: RouteTable
    groups: GroupTable
    retained: RetainedMessages
    commit_waiter: CommitWaiter
    durable_links: DurableLinks
    drops: Drops
    nodes: OtherNodes
    user_limits: UserLimitChecks
    firehose: Firehose
    events: BrokerEvents
    rates: PublishRates
