"""Moves of queues, as control reports them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fluxmq.control.deciding import Set
from fluxmq.control.listings import Listings
from fluxmq.control.migrating import Migrations
from fluxmq.control.peers import Peer
from fluxmq.ipc.messages import Body, Hello, Message
from fluxmq.ipc.migrations import MIGRATION, Migrate, Migrating
from fluxmq.ipc.row_messages import Page
from fluxmq.ipc.topology_messages import TopologyChanged
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue, MigrateQueue
from fluxmq.routing.topology.records import Queue, Vhost
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings import Settings


class Shard(Peer):
    """A shard that has one queue on its way."""

    def __init__(self) -> None:
        self.hello = Hello("shard", 0, 1)

    async def ask(self, kind: str, body: Body, seconds: float) -> Body:
        row = {"vhost": "/", "name": "q", "migration": "3 of 7 messages"}
        return Page((row,)).to_body()


async def _nothing(_sets: Sequence[Set]) -> TopologyChanged:
    return TopologyChanged(0, ())


def test_how_far_a_move_is_comes_from_the_shard() -> None:
    topology = Topology()
    queue = Queue("/", "q", type="quorum", durable=True, group="g")
    for change in (
        AddVhost(Vhost("/")),
        DeclareQueue(queue),
        MigrateQueue("/", "q", "g", "h", "00" * 8),
    ):
        topology.apply(change)
    listings = Listings(lambda: topology, lambda: [Shard()])
    migrations = Migrations(Settings(), lambda: topology, _nothing, listings)
    answer = asyncio.run(migrations.answer(Message(MIGRATION, 1, Migrate("/", "q").to_body())))
    assert Migrating.from_body(answer) == Migrating("g", "h", "3 of 7 messages")
