"""This shard's streams for messages between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fluxmq.cluster.dialer import LAST_PAUSE_SECONDS
from fluxmq.cluster.node_links import NodeLinks, greetings
from fluxmq.cluster.shard_endpoint import PUBLISH, ShardEndpoint
from fluxmq.cluster.shard_pairs import counterparts
from fluxmq.shards.node_peers import NodePeers

MEETING_SECONDS = LAST_PAUSE_SECONDS + 0.5
"""Time within which a running node dials this one, or answers it."""


class PublishLinks:
    """Keeps a stream to the counterparts of this shard on every other node.

    ``beside_queues``: the shard has streams for queues as well, whose greetings tell how many
    shards the other nodes have.
    """

    def __init__(
        self,
        endpoint: ShardEndpoint,
        nodes: NodePeers,
        wake: Callable[[], None],
        beside_queues: bool,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        """``wake`` ends the shard's tick after frames were received; ``arrived`` is called
        before."""
        self._links = [NodeLinks(endpoint, PUBLISH, counterparts, nodes, wake, (), arrived)]
        if not beside_queues:
            self._links.append(greetings(endpoint))
        self._endpoint = endpoint
        self._nodes = nodes
        self._started_at: float | None = None
        nodes.shards_of = endpoint.shards_of
        nodes.start()

    def start(self, now: float) -> None:
        """Dial the other nodes and accept their streams; called again, do nothing.

        Called once persistent sessions are restored: other nodes keep the interest that they know,
        and their messages, until this shard has announced its own.
        """
        if self._started_at is not None:
            return
        self._started_at = now
        for links in self._links:
            links.start()

    def met(self, now: float) -> bool:
        """Return whether this shard and its counterparts know each other's interest, or have had
        enough time to tell it. Clients connected earlier could miss messages of other nodes, and
        their messages could miss subscribers there."""
        if self._started_at is None:
            return False
        return now > self._started_at + MEETING_SECONDS or all(
            map(self._has_met, self._endpoint.peers)
        )

    def _has_met(self, node: str) -> bool:
        own, shards = self._endpoint.own, self._endpoint.shards_of(node)
        known = {link.shard for link in self._links[0].of(node) if self._nodes.knows(link)}
        return shards > 0 and known.issuperset(counterparts(own.shard, own.workers, shards))

    def ready(self) -> None:
        """Stop waiting for nodes that are not connected: this shard accepts clients now."""
        self._nodes.started()

    async def stop(self) -> None:
        """End the dialled streams."""
        await asyncio.gather(*(links.stop() for links in self._links))
