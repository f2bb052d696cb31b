"""Direct replies: addresses that stand for a channel, and that any shard can resolve.

An address names its shard and a number there, and ends in an unguessable secret. Frames between
shards::

    REPLY    u8 kind, u16 length of the address, address, batch

Source: the pseudo-queue ``amq.rabbitmq.reply-to`` as RabbitMQ documents it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable

from fluxmq.model.batch_format import BatchError, parse
from fluxmq.net import frames
from fluxmq.net.links import Link
from fluxmq.protocols.amqp091.run import AmqpPublishRun, build_amqp_batches
from fluxmq.sessions.amqp091.ports import AmqpConsumerPort

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
    ) -> None:
        self._shard = shard
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
        self._ports[address] = port
        return address

    def close(self, address: str) -> None:
        """Close an address."""
        self._ports.pop(address, None)

    def send(self, address: str, run: AmqpPublishRun, block: bytes) -> bool:
        """Send a run to an address; return False if it is not known here to exist."""
        shard = shard_in(address)
        if shard == self._shard:
            port = self._ports.get(address)
            if port is None:
                return False
            for data in build_amqp_batches(run, address.encode(), block, self._clock()):
                batch = parse(data)
                port.deliver(batch, 0, batch.count, 1)
            return True
        link = self._links.get(shard)
        if link is None or not link.up:
            return False
        encoded = address.encode()
        head = HEAD.pack(frames.REPLY, len(encoded)) + encoded
        for data in build_amqp_batches(run, encoded, block, self._clock()):
            link.send_frame(head + data)
        return True

    def exists(self, address: str, done: Callable[[bool], None]) -> None:
        """Ask whether a consumer waits at an address, on any shard."""
        shard = shard_in(address)
        if shard == self._shard:
            done(address in self._ports)
            return
        link = self._links.get(shard)
        if link is None or not link.up or len(self._asked) >= ASKED_MAX:
            done(False)
            return
        number = next(self._numbers)
        self._asked[number] = done
        link.send_control("reply asked", number, address)
        self._call_later(WAIT_SECONDS, lambda: self._answered(number, False))

    def _answered(self, number: int, there: bool) -> None:
        done = self._asked.pop(number, None)
        if done is not None:
            done(there)

    # From other shards

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {"reply asked": self._on_asked, "reply told": self._on_told}

    def _on_asked(self, link: Link, number: int, address: str) -> None:
        link.send_control("reply told", number, address in self._ports)

    def _on_told(self, _link: Link, number: int, there: bool) -> None:
        self._answered(number, there)

    def received(self, _link: Link, frame: bytes) -> None:
        """Handle a REPLY frame."""
        _, length = HEAD.unpack_from(frame)
        at = HEAD.size + length
        port = self._ports.get(frame[HEAD.size : at].decode())
        if port is None:
            return  # the requester has gone
        try:
            batch = parse(frame[at:])
        except BatchError:
            return
        port.deliver(batch, 0, batch.count, 1)


def shard_in(address: str) -> int:
    """Return the shard that an address names, -1 for text that is no address."""
    number, dot, _ = address.partition(".")
    return int(number) if dot and number.isascii() and number.isdigit() and len(number) < 6 else -1
