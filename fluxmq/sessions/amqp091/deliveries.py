"""Encoding of deliveries: the converted properties are cached for further messages with the same
ones.

Neighbouring messages of a batch with the same key and properties are written at once.
"""

from __future__ import annotations

from typing import Any, Final

from fluxmq.model.batch_format import ATTRIBUTE_REDELIVERED, ATTRIBUTES, Batch
from fluxmq.model.properties import PropertyError
from fluxmq.protocols.amqp091.content import NO_PROPERTIES
from fluxmq.protocols.amqp091.delivery import encode_deliveries, encode_get_ok
from fluxmq.protocols.amqp091.message_properties import address_of, from_block, stream_properties
from fluxmq.protocols.amqp091.tables import FieldTableError
from fluxmq.sessions.amqp091.channel import Channel
from fluxmq.sessions.amqp091.delivery_tap import DeliveryHead, DeliveryTap
from fluxmq.sessions.amqp091.takers import Taker

HEADS_MAX: Final = 512
"""Maximum number of heads a shard caches; then the cache is cleared."""
HEAD_BYTES_MAX: Final = 2048
"""Maximum bytes of key and properties of a cached head: all of them take a megabyte or two."""

_DELIVERY_COUNT: Final = "x-delivery-count"


class DeliveryHeads:
    """Writes deliveries, and caches heads. ``tap``: gets them as well, if there is one."""

    def __init__(self) -> None:
        self.tap: DeliveryTap | None = None
        self._kept: dict[tuple[bytes, bytes, int, bool], DeliveryHead] = {}

    def head(self, block: bytes, key: bytes, redelivered: int, stream: bool) -> DeliveryHead:
        """Return the head for these properties and this key, delivered ``redelivered`` times before
        (-1: omitted)."""
        known = (block, key, redelivered, stream)
        head = self._kept.get(known)
        if head is None:
            head = make_head(block, key, redelivered, stream)
            if len(block) + len(key) <= HEAD_BYTES_MAX:
                if len(self._kept) >= HEADS_MAX:
                    self._kept.clear()
                self._kept[known] = head
        return head

    def _of(self, taker: Taker, batch: Batch, index: int, attempts: int) -> DeliveryHead:
        told = taker.counts_deliveries and attempts >= taker.counts_from
        redelivered = attempts - 1 if told else -1
        return self.head(batch.properties(index), batch.key(index), redelivered, taker.is_stream)

    def write(
        self,
        channel: Channel,
        consumer: Taker,
        batch: Batch,
        first: int,
        count: int,
        attempts: int,
    ) -> None:
        """Write basic.deliver for ``count`` messages from index ``first``, with the next delivery
        tags."""
        client = channel.client
        owner = None if consumer.automatic else consumer
        index, end = first, first + count
        while index < end:
            stop = same_until(batch, index, end)
            head = self._of(consumer, batch, index, attempts)
            tag = channel.ledger.given(owner, stop - index, batch.base_offset + index)
            redelivered = _redelivered(batch, index, attempts)
            frames = encode_deliveries(
                batch,
                index,
                stop - index,
                channel.number,
                consumer.tag_bytes,
                tag,
                redelivered,
                head.exchange,
                head.routing_key,
                head.properties,
                client.connection.frame_max,
                head.offset_at,
            )
            client.connection.append(frames)
            client.connection.tally.delivered(stop - index, len(frames), redelivered)
            if self.tap is not None and self.tap.on:
                self.tap.delivered(channel, consumer, batch, index, stop - index, redelivered, head)
            index = stop

    def write_get_ok(
        self,
        channel: Channel,
        getter: Taker,
        batch: Batch,
        index: int,
        attempts: int,
        ready: int,
    ) -> None:
        """Write basic.get-ok with its message; ``ready``: how many more there are."""
        client = channel.client
        head = self._of(getter, batch, index, attempts)
        owner = None if getter.automatic else getter
        tag = channel.ledger.given(owner, 1, batch.base_offset + index)
        redelivered = _redelivered(batch, index, attempts)
        frames = encode_get_ok(
            batch,
            index,
            channel.number,
            tag,
            redelivered,
            head.exchange,
            head.routing_key,
            min(ready, 0xFFFF_FFFF),
            head.properties,
            client.connection.frame_max,
            head.offset_at,
        )
        client.connection.append(frames)
        client.connection.tally.delivered(1, len(frames), redelivered)
        client.connection.tally.amqp_got += 1
        if self.tap is not None and self.tap.on:
            self.tap.delivered(channel, getter, batch, index, 1, redelivered, head)


def make_head(block: bytes, key: bytes, redelivered: int, stream: bool) -> DeliveryHead:
    """Make a head, see ``DeliveryHeads.head``. Drops properties that AMQP cannot express, not the
    message."""
    extra: dict[str, Any] = {_DELIVERY_COUNT: redelivered} if redelivered >= 0 else {}
    try:
        exchange, routing_key = address_of(block, key)
        if stream:
            return DeliveryHead(exchange, routing_key, *stream_properties(block, extra=extra))
        return DeliveryHead(exchange, routing_key, from_block(block, extra=extra), -1)
    except (PropertyError, FieldTableError, ValueError):
        return DeliveryHead(b"", key[:255], NO_PROPERTIES, -1)


def same_until(batch: Batch, first: int, end: int) -> int:
    """Return the end of the messages with the same key, properties and redelivered flag as
    ``first``."""
    marked = batch.flags & ATTRIBUTES
    if batch.uniform_key and batch.uniform_properties and not marked:
        return end
    key, block = batch.key(first), batch.properties(first)
    mark = batch.attributes(first) & ATTRIBUTE_REDELIVERED if marked else 0
    index = first + 1
    while (
        index < end
        and batch.key(index) == key
        and batch.properties(index) == block
        and (not marked or batch.attributes(index) & ATTRIBUTE_REDELIVERED == mark)
    ):
        index += 1
    return index


def _redelivered(batch: Batch, index: int, attempts: int) -> bool:
    if attempts > 1:
        return True
    return bool(batch.flags & ATTRIBUTES and batch.attributes(index) & ATTRIBUTE_REDELIVERED)
