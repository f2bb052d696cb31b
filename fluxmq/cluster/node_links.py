"""Links to the shards of other nodes: streams of one purpose, one for each pair of shards.

Of two nodes the one whose name is smaller dials. A greeting contains the number of the other node's
shards, from which both sides derive the pairs (`fluxmq.cluster.shard_pairs`). A stream that ends
loses what was in flight; the next one begins with everything that the other side has to know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Protocol

from fluxmq.cluster.connection import NodeStream, StreamHello
from fluxmq.cluster.dialer import Dialer
from fluxmq.cluster.shard_endpoint import GREETING, ShardEndpoint
from fluxmq.cluster.shard_pairs import Pairs, first_shard
from fluxmq.logs import RateLimited, get_logger
from fluxmq.net import frames
from fluxmq.net.links import SHARDS_MAX
from fluxmq.settings.listen_addresses import shifted

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
    def combines(self) -> bool:
        """True if the other side understands heartbeats of many groups in one frame."""
        return self.connection is not None and self.connection.hello.combines

    @property
    def epoch(self) -> int:
        """Number of the other process's life, which differs once that has restarted; 0 without a
        stream."""
        return 0 if self.connection is None else self.connection.hello.epoch

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return 0 if self.connection is None else self.connection.backlog_bytes

    def close(self) -> None:
        """End the stream; the next one begins soon."""
        if self.connection is not None:
            self.connection.close()

    def send_control(self, name: str, *arguments: object) -> None:
        """Send a control frame."""
        self.send_frame(frames.encode_control(name, *arguments))

    def send_frame(self, frame: bytes) -> None:
        """Send a whole frame; without a stream it is dropped."""
        if self.connection is not None:
            self.sent_bytes += len(frame)
            self.connection.send(frame)


class NodeLinkObserver(Protocol):
    """Receives the events and frames of links."""

    def added(self, link: NodeLink) -> None:
        """Note a link, before its first frame. Called once for each."""

    def came(self, link: NodeLink) -> None:
        """Handle a new stream, which may be sent to."""

    def gone(self, link: NodeLink) -> None:
        """Handle the end of the stream."""

    def handlers(self) -> Mapping[str, Callable[..., None]]:
        """Return the handlers of control frames by name; each gets the link first. Called once."""

    def received(self, link: NodeLink, frame: bytes) -> None:
        """Handle a frame that is not a control frame. An exception ends the stream."""


class NodeLinks:
    """This shard's links to other nodes, for one purpose.

    ``pairs`` names the shards that this one has streams with; ``wake`` ends the shard's tick after
    frames were received. ``links`` has them by ``peer``, a number that this node gives to a shard
    of another node, the same for all purposes; a link stays when its stream is lost, even if the
    other node restarts without that shard.
    """

    def __init__(
        self,
        endpoint: ShardEndpoint,
        purpose: str,
        pairs: Pairs,
        observer: NodeLinkObserver,
        wake: Callable[[], None],
        quiet: Container[str] = (),
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        """Register with the endpoint, which is started afterwards. ``quiet``: names of control
        frames that leave a tick nothing to do; their handlers call ``wake`` if one does.
        ``arrived`` is called before anything is handled: the last tick may be long ago."""
        self.links: dict[int, NodeLink] = {}
        self._endpoint = endpoint
        self._own = endpoint.own._replace(purpose=purpose)
        self._pairs = pairs
        self._observer = observer
        self._handlers = dict(observer.handlers())
        self._wake = wake
        self._quiet = quiet
        self._arrived = arrived
        self._started = False
        self._dialers: dict[tuple[str, int], Dialer] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Dialers of shards that are no longer paired with this one."""
        self.malformed = RateLimited(_log, per_second=1.0, burst=5)
        endpoint.register(purpose, self)

    def start(self) -> None:
        """Dial the nodes that this one has to dial. The endpoint listens already, or will."""
        self._started = True
        for node in self._endpoint.peers:
            self._follow(node)

    async def stop(self) -> None:
        """End the dialled streams; the endpoint ends the accepted ones."""
        self._started = False
        dialers = [dialer.stop() for dialer in self._dialers.values()]
        await asyncio.gather(*dialers, *self._ending)

    def of(self, node: str) -> list[NodeLink]:
        """Return the links to a node that are up."""
        return [link for link in self.links.values() if link.node == node and link.up]

    # Pairs

    def problem_with(self, hello: StreamHello) -> str:
        """Return the reason to refuse a stream; empty if its two shards are a pair, and this one
        has started."""
        own = self._own
        others = min(hello.workers, SHARDS_MAX)
        if hello.shard in self._pairs(own.shard, own.workers, others):
            return "" if self._started else f"streams of {own.purpose} are not accepted yet"
        return (
            f"there is no stream of {own.purpose} between shard {hello.shard} of {hello.workers}"
            f" and shard {own.shard} of {own.workers}"
        )

    def resized(self, node: str) -> None:
        """Handle a change of the number of another node's shards."""
        self._follow(node)

    def moved(self, node: str) -> None:
        """Handle a node that has joined, has left, or has another address."""
        for each in [each for each in self._dialers if each[0] == node]:
            self._end(each)
        if node not in self._endpoint.peers:
            for link in self.of(node):
                link.close()
        self._follow(node)

    def _end(self, each: tuple[str, int]) -> None:
        task = asyncio.get_running_loop().create_task(self._dialers.pop(each).stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _follow(self, node: str) -> None:
        """Dial the shards of a node that this one is paired with, and no others."""
        own = self._own
        if not self._started or node <= own.node or node not in self._endpoint.peers:
            return
        wanted = self._pairs(own.shard, own.workers, self._endpoint.shards_of(node))
        for shard in wanted:
            if (node, shard) not in self._dialers:
                self._dial(node, shard)
        for each in [each for each in self._dialers if each[0] == node and each[1] not in wanted]:
            self._end(each)

    def _dial(self, node: str, shard: int) -> None:
        endpoint = self._endpoint
        address = shifted(endpoint.peers[node], shard)
        dialer = Dialer(endpoint.security, address, node, self._own, self)
        self._dialers[node, shard] = dialer
        dialer.start()

    # Streams

    def connected(self, connection: NodeStream) -> None:
        """Register a new stream."""
        self._arrived()
        hello = connection.hello
        self._endpoint.met(hello)
        peer = self._endpoint.number_of(hello.node) * SHARDS_MAX + hello.shard
        link = self.links.get(peer)
        if link is None:
            link = self.links[peer] = NodeLink(peer, hello.node, hello.shard)
            self._observer.added(link)
        elif link.connection is not None:
            self._lose(link)
        link.connection = connection
        _log.info(
            "connected",
            extra={"node": hello.node, "shard": hello.shard, "purpose": hello.purpose},
        )
        self._observer.came(link)
        self._wake()

    def received(self, connection: NodeStream, records: Sequence[bytes]) -> None:
        """Handle frames that a stream has delivered."""
        link = self._link_of(connection)
        if link is None:
            return
        quiet = True
        self._arrived()
        try:
            for frame in records:
                link.received_bytes += len(frame)
                quiet = self._take(link, frame) and quiet
        except Exception as error:  # noqa: BLE001 (input of another node must not end this one)
            self.malformed.event(
                logging.WARNING,
                link.node,
                "closing a stream: a frame from another node is malformed",
                node=link.node,
                problem=repr(error),
            )
            connection.close()
            quiet = False
        if not quiet:
            self._wake()

    def _take(self, link: NodeLink, frame: bytes) -> bool:
        """Handle a frame; return whether it leaves a tick nothing to do."""
        if frame[0] == frames.CONTROL:
            name, *arguments = frames.decode_control(frame)
            self._handlers[str(name)](link, *arguments)
            return str(name) in self._quiet
        self._observer.received(link, frame)
        return False

    def lost(self, connection: NodeStream, why: str) -> None:
        """Unregister a stream that has ended."""
        self._arrived()
        link = self._link_of(connection)
        if link is not None:
            place = {"node": link.node, "shard": link.shard, "purpose": self._own.purpose}
            _log.info("connection lost", extra={**place, "why": why})
            self._lose(link)
            self._wake()

    def _lose(self, link: NodeLink) -> None:
        link.connection = None
        self._observer.gone(link)

    def _link_of(self, connection: NodeStream) -> NodeLink | None:
        hello = connection.hello
        peer = self._endpoint.number_of(hello.node) * SHARDS_MAX + hello.shard
        link = self.links.get(peer)
        return link if link is not None and link.connection is connection else None


class SilentLinks:
    """Observer of links that carry nothing."""

    def added(self, link: NodeLink) -> None:
        """Need nothing of it."""

    def came(self, link: NodeLink) -> None:
        """Send nothing: the greeting has been sent."""

    def gone(self, link: NodeLink) -> None:
        """Keep what its greeting said."""

    def handlers(self) -> Mapping[str, Callable[..., None]]:
        """Handle no frame."""
        return {}

    def received(self, link: NodeLink, frame: bytes) -> None:
        """Refuse a frame. Raises ValueError, which ends the stream."""
        raise ValueError("a stream of greetings carries no frames")


def greetings(endpoint: ShardEndpoint) -> NodeLinks:
    """Return links that only tell the number of the other nodes' shards, for clusters in which no
    other purpose connects every shard with each node's first one."""
    return NodeLinks(endpoint, GREETING, first_shard, SilentLinks(), lambda: None)
