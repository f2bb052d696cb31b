"""The address of one shard, at which the shards of other nodes open streams of several purposes.

Each purpose has a listener and streams of its own, so that a backlog or a loss of one does not
touch the others. Every shard of a node has an address, one port after another.

How many shards another node has is known from its latest greeting, of whatever purpose. A purpose
that does not connect every shard with shard 0 of the other node depends on another one beside it
that does: on ``SHARD`` in a cluster with replicated groups, and elsewhere on ``GREETING``
(`fluxmq.cluster.node_links.greetings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from fluxmq.cluster.connection import StreamHello, StreamListener
from fluxmq.cluster.endpoint import Endpoint
from fluxmq.cluster.security import Security
from fluxmq.net.links import SHARDS_MAX
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.settings.listen_addresses import shifted

SHARD: Final = "shard"
"""Purpose of streams for the traffic of queues."""
PUBLISH: Final = "publish"
"""Purpose of streams for messages to subscribers of other nodes."""
GREETING: Final = "greeting"
"""Purpose of streams that carry nothing: their greetings say all."""


class PurposeListener(StreamListener, Protocol):
    """Receives the events of one purpose's streams."""

    def problem_with(self, hello: StreamHello) -> str:
        """Return the reason to refuse a stream, empty if it is welcome. The endpoint has checked
        who dials."""

    def resized(self, node: str) -> None:
        """Handle a change of the number of another node's shards."""

    def moved(self, node: str) -> None:
        """Handle a node that has joined, has left, or has another address."""


class ShardEndpoint:
    """Listens for other nodes on a shard's address.

    ``own``: the shard's introduction; each stream states its own purpose. ``peers``: the other
    nodes, with the address of their first shard.
    """

    def __init__(
        self, security: Security, address: str, own: StreamHello, peers: Mapping[str, str]
    ) -> None:
        """``address``: that of the node's first shard."""
        self.security = security
        self.own = own
        self.peers = dict(peers)
        self._numbers = {node: number for number, node in enumerate(sorted(peers), 1)}
        self._shards: dict[str, int] = {}
        self._listeners: dict[str, PurposeListener] = {}
        self._endpoint = Endpoint(
            security, shifted(address, own.shard), own, self._listeners, self._accept
        )

    @classmethod
    def of(cls, cluster: ClusterSettings, shard: int, workers: int, epoch: int) -> ShardEndpoint:
        """Return the endpoint of a shard by the settings. ``epoch``: a number of this shard's life.
        Raises SecurityError."""
        capable = {"tells_time": True, "combines": True}
        own = StreamHello(cluster.node_id, shard, workers, epoch, "", **capable)
        transport = cluster.transport
        return cls(Security.of(cluster), transport.bind_addr, own, transport.peers)

    def follow(self, cluster: ClusterSettings) -> None:
        """Connect with the nodes that these settings name, and with no others."""
        before, self.peers = self.peers, dict(cluster.transport.peers)
        self.security.follow(cluster)
        self._endpoint.follow()
        for node in sorted({*before, *self.peers}):
            if before.get(node) != self.peers.get(node):
                for listener in self._listeners.values():
                    listener.moved(node)

    def number_of(self, node: str) -> int:
        """Return this node's number for another one, which it keeps."""
        return self._numbers.setdefault(node, len(self._numbers) + 1)

    @property
    def address(self) -> str:
        """The address listened on."""
        return self._endpoint.address

    def register(self, purpose: str, listener: PurposeListener) -> None:
        """Accept streams of a purpose, for this listener. Called before `start`."""
        if purpose in self._listeners:
            raise ValueError(f"streams of {purpose} have a listener already")
        self._listeners[purpose] = listener

    async def start(self) -> None:
        """Listen. Raises EndpointError."""
        await self._endpoint.start()

    async def stop(self) -> None:
        """End the accepted streams, notify their listeners, and free the address."""
        await self._endpoint.stop()

    def shards_of(self, node: str) -> int:
        """Return the number of another node's shards, 0 while it is unknown."""
        return self._shards.get(node, 0)

    def met(self, hello: StreamHello) -> None:
        """Note the number of shards in another node's greeting: a node may restart with another."""
        shards = min(hello.workers, SHARDS_MAX)
        if shards != self.shards_of(hello.node):
            self._shards[hello.node] = shards
            for listener in self._listeners.values():
                listener.resized(hello.node)

    def _accept(self, hello: StreamHello) -> str:
        """Return the reason to refuse a stream of a registered purpose, empty for none."""
        own = self.own.node
        if hello.node not in self.peers:
            return f"{hello.node} is not among cluster.transport.peers, and has not joined"
        if hello.node > own:
            return f"{own} dials {hello.node}, not the other way round"
        if not 0 <= hello.shard < SHARDS_MAX:
            return f"there is no shard {hello.shard}"
        return self._listeners[hello.purpose].problem_with(hello)
