"""Links to the shards of other nodes: one stream for each pair of shards, for the traffic between
queues.

Of two nodes the one whose name is smaller dials. Shard 0 of a node is dialled first; its greeting
contains the number of shards. A stream that ends loses what was in flight; the next one begins with
everything that the other side has to know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxmq.cluster.connection import NodeStream, StreamHello
from fluxmq.cluster.dialer import Dialer
from fluxmq.cluster.endpoint import Endpoint
from fluxmq.cluster.security import Security
from fluxmq.logs import RateLimited, get_logger
from fluxmq.net import frames
from fluxmq.net.links import SHARDS_MAX
from fluxmq.settings.listen_addresses import shifted

PURPOSE = "shard"

_log = get_logger("fluxmq.cluster")


class NodeLink:
    """Frames to and from a shard of another node."""

    def __init__(self, peer: int, node: str, shard: int) -> None:
        self.peer = peer
        self.node = node
        self.shard = shard
        self.connection: NodeStream | None = None
        self.sent_bytes = 0
        self.received_bytes = 0

    @property
    def up(self) -> bool:
        """True while there is a stream."""
        return self.connection is not None and self.connection.open

    @property
    def tells_time(self) -> bool:
        """True if the other side understands clock readings; nodes of earlier versions do not."""
        return self.connection is not None and self.connection.hello.tells_time

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return 0 if self.connection is None else self.connection.backlog_bytes

    def send_control(self, name: str, *arguments: object) -> None:
        """Send a control frame."""
        self.send_frame(frames.encode_control(name, *arguments))

    def send_frame(self, frame: bytes) -> None:
        """Send a whole frame; without a stream it is dropped."""
        if self.connection is not None:
            self.sent_bytes += len(frame)
            self.connection.send(frame)


class NodeLinks:
    """This shard's links to other nodes.

    ``added`` is called with a link before its first frame, ``came`` when it is up, ``gone`` when it
    goes down; ``handlers`` take control frames, ``received`` all others; ``wake`` ends the shard's
    tick after frames were received.
    """

    def __init__(
        self,
        security: Security,
        address: str,
        own: StreamHello,
        peers: Mapping[str, str],
        added: Callable[[NodeLink], None],
        came: Callable[[NodeLink], None],
        gone: Callable[[NodeLink], None],
        handlers: Mapping[str, Callable[..., None]],
        received: Callable[[Any, bytes], None],
        wake: Callable[[], None],
    ) -> None:
        self.links: dict[int, NodeLink] = {}
        self._security = security
        self._own = own
        self._peers = dict(peers)
        self._numbers = {node: number for number, node in enumerate(sorted(peers), 1)}
        self._added = added
        self._came = came
        self._gone = gone
        self._handlers = dict(handlers)
        self._received = received
        self._wake = wake
        self._dialers: dict[tuple[str, int], Dialer] = {}
        self.malformed = RateLimited(_log, per_second=1.0, burst=5)
        # Each shard of a node has its own port, one after another.
        self._endpoint = Endpoint(security, shifted(address, own.shard), own, self, self._accept)

    async def start(self) -> None:
        """Listen, and dial the nodes that this one has to dial. Raises EndpointError."""
        await self._endpoint.start()
        for node in self._peers:
            if self._own.node < node:
                self._dial(node, 0)

    async def stop(self) -> None:
        """End every stream."""
        for dialer in self._dialers.values():
            await dialer.stop()
        await self._endpoint.stop()

    def of(self, node: str) -> list[NodeLink]:
        """Return the links to a node that are up."""
        return [link for link in self.links.values() if link.node == node and link.up]

    def _dial(self, node: str, shard: int) -> None:
        if (node, shard) not in self._dialers:
            address = shifted(self._peers[node], shard)
            dialer = Dialer(self._security, address, node, self._own, self)
            self._dialers[node, shard] = dialer
            dialer.start()

    def _accept(self, hello: StreamHello) -> str:
        if hello.purpose != PURPOSE:
            return f"this is the address of a shard, not of {hello.purpose}"
        if hello.node not in self._peers:
            return f"{hello.node} is not among cluster.transport.peers"
        if hello.node > self._own.node:
            return f"{self._own.node} dials {hello.node}, not the other way round"
        return "" if 0 <= hello.shard < SHARDS_MAX else f"there is no shard {hello.shard}"

    # Streams

    def connected(self, connection: NodeStream) -> None:
        """Register a new stream."""
        hello = connection.hello
        peer = self._numbers[hello.node] * SHARDS_MAX + hello.shard
        link = self.links.get(peer)
        if link is None:
            link = self.links[peer] = NodeLink(peer, hello.node, hello.shard)
            self._added(link)
        elif link.connection is not None:
            self._lose(link)
        link.connection = connection
        if self._own.node < hello.node:
            for shard in range(1, min(hello.workers, SHARDS_MAX)):
                self._dial(hello.node, shard)
        _log.info("connected", extra={"node": hello.node, "shard": hello.shard})
        self._came(link)
        self._wake()

    def received(self, connection: NodeStream, records: Sequence[bytes]) -> None:
        """Handle frames that a stream has delivered."""
        link = self._link_of(connection)
        if link is None:
            return
        try:
            for frame in records:
                link.received_bytes += len(frame)
                self._take(link, frame)
        except Exception as error:  # noqa: BLE001 (input of another node must not end this one)
            self.malformed.event(
                logging.WARNING,
                link.node,
                "a frame was not understood",
                node=link.node,
                problem=repr(error),
            )
            connection.close()
        self._wake()

    def _take(self, link: NodeLink, frame: bytes) -> None:
        if frame[0] == frames.CONTROL:
            name, *arguments = frames.decode_control(frame)
            self._handlers[str(name)](link, *arguments)
        else:
            self._received(link, frame)

    def lost(self, connection: NodeStream, why: str) -> None:
        """Unregister a stream that has ended."""
        link = self._link_of(connection)
        if link is not None:
            _log.info("connection lost", extra={"node": link.node, "shard": link.shard, "why": why})
            self._lose(link)
            self._wake()

    def _lose(self, link: NodeLink) -> None:
        link.connection = None
        self._gone(link)

    def _link_of(self, connection: NodeStream) -> NodeLink | None:
        hello = connection.hello
        peer = self._numbers.get(hello.node, 0) * SHARDS_MAX + hello.shard
        link = self.links.get(peer)
        return link if link is not None and link.connection is connection else None
