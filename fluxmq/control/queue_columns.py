"""One column of very many queues, by which a list is sorted before the rows of its page are made.

A row is dear: the shard that holds the queue is asked for it by name, and policies are matched. The
values of one column come from the topology, from the placement of groups, or from the shards, which
tell them a thousand at a time and leave out what is 0. Nothing is kept from one list to the next, so
that no list shows an old order, and nothing is done while nobody asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from fluxmq.control.clustering import in_contact
from fluxmq.control.columns import LISTS, QUEUE_MIRRORS, QUEUE_REPLICAS, QUEUE_STATIC
from fluxmq.control.mirrors import MirrorStates, mirror_columns, not_mirrored
from fluxmq.control.peers import Peer, PeerError
from fluxmq.ipc.clusters import RaftListing, RaftRow
from fluxmq.ipc.column_messages import QUEUE_COLUMN, QueueColumn, QueueColumnPage
from fluxmq.ipc.messages import MessageError
from fluxmq.ipc.row_messages import QUEUES, TableRow, plain
from fluxmq.routing.topology.effective import policy_definition, policy_of
from fluxmq.routing.topology.records import Policy, QueueRecord
from fluxmq.routing.topology.topology import Topology

PAGE_SECONDS: Final = 2.0
"""Time to wait for one page of a shard."""
PAGES_MAX: Final = 2000
"""Pages of one shard: two million queues, more than there may be."""

ABSENT: Final = {"state": "down"}
"""Value of a column when no shard tells of a queue; otherwise 0."""


class QueueColumns:
    """Reads columns; see `fluxmq.control.listings.Listings` for the arguments."""

    def __init__(
        self,
        topology: Callable[[], Topology],
        shards: Callable[[], list[Peer]],
        replicas: Callable[[], Awaitable[RaftListing]] | None,
        node: str,
        mirrors: MirrorStates = not_mirrored,
    ) -> None:
        self._topology = topology
        self._shards = shards
        self._replicas = replicas
        self._node = node
        self._mirrors = mirrors

    async def values(self, queues: Sequence[QueueRecord], column: str) -> list[Any]:
        """Return the values of a column of these queues; None for all if there is no such column."""
        if column in QUEUE_STATIC:
            read = static_reader(self._topology(), column)
            return [read(each) for each in queues]
        if column in QUEUE_MIRRORS:
            return [mirror_columns(each, self._mirrors(each))[column] for each in queues]
        if column in QUEUE_REPLICAS:
            return await self._placements(queues, column)
        if column not in LISTS[QUEUES].columns:
            return [None] * len(queues)
        told = await self._told(column)
        absent = ABSENT.get(column, 0)
        return [told.get(each.internal_name, absent) for each in queues]

    async def _placements(self, queues: Sequence[QueueRecord], column: str) -> list[Any]:
        """Return the nodes of queues; each group is looked at once."""
        groups: Mapping[str, RaftRow] = {}
        if self._replicas is not None:
            groups = {row.group: row for row in (await self._replicas()).groups}
        known: dict[str, Any] = {}
        for each in queues:
            if each.group not in known:
                known[each.group] = placed(each, groups, self._node)[column]
        return [known[each.group] for each in queues]

    async def _told(self, column: str) -> dict[str, Any]:
        """Return what shards tell of a column, by the queue engine's names; those that do not answer
        tell nothing."""
        found: dict[str, Any] = {}
        await asyncio.gather(*(_ask(shard, column, found) for shard in self._shards()))
        return found


async def _ask(shard: Peer, column: str, found: dict[str, Any]) -> None:
    """Add what a shard tells, up to its first answer that does not come."""
    after = 0
    for _ in range(PAGES_MAX):
        try:
            body = QueueColumn(column, after).to_body()
            page = QueueColumnPage.from_body(await shard.ask(QUEUE_COLUMN, body, PAGE_SECONDS))
        except (PeerError, MessageError, TimeoutError):
            return
        found.update(zip(page.names, page.values, strict=True))
        if page.following <= after:
            return
        after = page.following


def placed(queue: QueueRecord, groups: Mapping[str, RaftRow], node: str) -> TableRow:
    """Return the nodes that have a queue: those of its group, or its only one. ``node``: this one."""
    group = groups.get(queue.group)
    if group is not None:
        return {
            "leader": group.leader,
            "members": sorted(each.node for each in group.members),
            "online": sorted(each.node for each in group.members if in_contact(each)),
        }
    home = queue.group.partition("@")[2] or node
    others = (each for row in groups.values() for each in row.members if in_contact(each))
    online = home == node or any(each.node == home for each in others)
    return {"leader": home, "members": [home], "online": [home] if online else []}


def static_reader(topology: Topology, column: str) -> Callable[[QueueRecord], Any]:
    """Return the reader of a column that the topology has."""
    match column:
        case "policy":
            return lambda queue: policy_name(policy_of(topology, queue))
        case "operator_policy":
            return lambda queue: policy_name(policy_of(topology, queue, operator=True))
        case "effective_policy_definition":
            return lambda queue: plain(policy_definition(topology, queue))
        case "owner_pid":
            return lambda queue: queue.owner
        case "arguments":
            return lambda queue: plain(queue.arguments)
    return lambda queue: getattr(queue, column)


def policy_name(policy: Policy | None) -> str:
    """Return a policy's name; empty without one."""
    return "" if policy is None else policy.name
