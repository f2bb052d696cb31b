"""Direct replies: addresses that stand for a channel, and that any shard of any node can resolve.

An address names its shard, an unguessable secret and, in a cluster, its node:
``<shard>.<secret>@<node>``. What is for another node goes to any of its shards, which passes it on.
Frames between shards, and between nodes::

    REPLY    u8 kind, u16 length of the address, address, batch

Source: the pseudo-queue ``amq.rabbitmq.reply-to`` as RabbitMQ documents it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable

from fluxmq.model.batch_format import BatchError, parse
from fluxmq.net import frames
from fluxmq.net.links import FrameLink, Link
from fluxmq.protocols.amqp091.run import AmqpPublishRun, build_amqp_batches
from fluxmq.sessions.amqp091.ports import AmqpConsumerPort
from fluxmq.shards.node_paths import PublishLink

HEAD = struct.Struct("<BH")
ASKED_MAX = 65_536
"""Maximum number of open questions to other shards; the answer to more is no."""
WAIT_SECONDS = 5.0
"""Time to wait for another shard's answer."""


class Replies:
    """The addresses of one shard, and the links to those of others."""

    def __init__(
        self,
        shard: int,
        links: dict[int, Link],
        unique: Callable[[], str],
        clock: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], None],
        node: str = "",
    ) -> None:
        """``node``: this one's name in a cluster."""
        self._shard = shard
        self._node = node
        self._of_nodes: dict[int, PublishLink] = {}
        self._links = links
        self._unique = unique
        self._clock = clock
        self._call_later = call_later
        self._ports: dict[str, AmqpConsumerPort] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[int, Callable[[bool], None]] = {}

    def open(self, port: AmqpConsumerPort) -> str:
        """Return a new address."""
        address = f"{self._shard}.{self._unique()}"
        if self._node:
            address = f"{address}@{self._node}"
        self._ports[address] = port
        return address

    def close(self, address: str) -> None:
        """Close an address."""
        self._ports.pop(address, None)

    def send(self, address: str, run: AmqpPublishRun, block: bytes) -> bool:
        """Send a run to an address; return False if it is not known here to exist."""
        if self._is_own(address):
            port = self._ports.get(address)
            if port is None:
                return False
            for data in build_amqp_batches(run, address.encode(), block, self._clock()):
                batch = parse(data)
                port.deliver(batch, 0, batch.count, 1)
            return True
        link = self._link_to(address)
        if link is None:
            return False
        encoded = address.encode()
        head = HEAD.pack(frames.REPLY, len(encoded)) + encoded
        for data in build_amqp_batches(run, encoded, block, self._clock()):
            link.send_frame(head + data)
        return True

    def exists(self, address: str, done: Callable[[bool], None]) -> None:
        """Ask whether a consumer waits at an address, on any shard of any node."""
        if self._is_own(address):
            done(address in self._ports)
            return
        link = self._link_to(address)
        if link is None or len(self._asked) >= ASKED_MAX:
            done(False)
            return
        number = next(self._numbers)
        self._asked[number] = done
        link.send_control("reply asked", number, address)
        self._call_later(WAIT_SECONDS, lambda: self._answered(number, False))

    def _is_own(self, address: str) -> bool:
        """Return whether an address is one of this shard's."""
        return shard_in(address) == self._shard and node_in(address) == self._node

    def _link_to(self, address: str) -> FrameLink | None:
        """Return a link on the way to another shard's address; None if there is none."""
        node = node_in(address)
        if node == self._node:
            link = self._links.get(shard_in(address))
            return link if link is not None and link.up else None
        return next((each for each in self._of_nodes.values() if each.node == node), None)

    def _answered(self, number: int, there: bool) -> None:
        done = self._asked.pop(number, None)
        if done is not None:
            done(there)

    # Streams to other nodes

    def came(self, link: PublishLink) -> None:
        """Note a stream to another node."""
        self._of_nodes[link.peer] = link

    def gone(self, link: PublishLink) -> None:
        """Forget a stream that has ended; questions over it are answered in time."""
        self._of_nodes.pop(link.peer, None)

    def housekeeping(self) -> None:
        """Do nothing: each question has a timer of its own."""

    def frame_handlers(self) -> dict[int, Callable[[PublishLink, bytes], None]]:
        """Return the handlers of frames by kind."""
        return {frames.REPLY: self.received}

    # From other shards

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {"reply asked": self._on_asked, "reply told": self._on_told}

    def _on_asked(self, link: FrameLink, number: int, address: str) -> None:
        def answer(there: bool) -> None:
            if link.up:
                link.send_control("reply told", number, there)

        # Not on to another node: this one was asked, and is the one that the address names.
        if node_in(address) == self._node:
            self.exists(address, answer)
        else:
            answer(False)

    def _on_told(self, _link: FrameLink, number: int, there: bool) -> None:
        self._answered(number, there)

    def received(self, _link: FrameLink, frame: bytes) -> None:
        """Handle a REPLY frame, or pass it on to the shard that it is for."""
        _, length = HEAD.unpack_from(frame)
        at = HEAD.size + length
        address = frame[HEAD.size : at].decode()
        if node_in(address) != self._node:
            return  # the other node takes this one for another
        if not self._is_own(address):
            link = self._link_to(address)
            if link is not None:
                link.send_frame(frame)
            return
        port = self._ports.get(address)
        if port is None:
            return  # the requester has gone
        try:
            batch = parse(frame[at:])
        except BatchError:
            return
        port.deliver(batch, 0, batch.count, 1)


def node_in(address: str) -> str:
    """Return the node that an address names, empty without one."""
    return address.partition("@")[2]


def shard_in(address: str) -> int:
    """Return the shard that an address names, -1 for text that is no address."""
    number, dot, _ = address.partition(".")
    return int(number) if dot and number.isascii() and number.isdigit() and len(number) < 6 else -1
