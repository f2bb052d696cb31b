"""Moves of queues, as control reports them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fluxmq.control.listings import Listings
from fluxmq.control.peers import Peer
from fluxmq.control.ports import Set
from fluxmq.control.queue_migrations import MigrationRequests
from fluxmq.ipc.clusters import RaftListing
from fluxmq.ipc.messages import Body, ControlMessage, ProcessHello
from fluxmq.ipc.migrations import MIGRATION, Migrate, Migrating
from fluxmq.ipc.row_messages import RowsPage
from fluxmq.ipc.topology_messages import TopologyChanged
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue, MigrateQueue
from fluxmq.routing.topology.records import QueueRecord, Vhost
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings import Settings


class Shard(Peer):
    """A shard that has one queue on its way."""

    def __init__(self) -> None:
        self.hello = ProcessHello("shard", 0, 1)

    async def ask(self, kind: str, body: Body, seconds: float) -> Body:
        row = {"vhost": "/", "name": "q", "migration": "3 of 7 messages"}
        return RowsPage((row,)).to_body()


async def _nothing(_sets: Sequence[Set]) -> TopologyChanged:
    return TopologyChanged(0, ())


async def _no_groups() -> RaftListing:
    return RaftListing(())


def test_how_far_a_move_is_comes_from_the_shard() -> None:
    topology = Topology()
    queue = QueueRecord("/", "q", type="quorum", durable=True, group="g")
    for change in (
        AddVhost(Vhost("/")),
        DeclareQueue(queue),
        MigrateQueue("/", "q", "g", "h", "00" * 8),
    ):
        topology.apply(change)
    listings = Listings(lambda: topology, lambda: [Shard()])
    migrations = MigrationRequests(
        *(Settings, lambda: topology, _nothing, listings), _no_groups, lambda: True
    )
    answer = asyncio.run(
        migrations.answer(ControlMessage(MIGRATION, 1, Migrate("/", "q").to_body()))
    )
    assert Migrating.from_body(answer) == Migrating("g", "h", "3 of 7 messages", "quorum")
