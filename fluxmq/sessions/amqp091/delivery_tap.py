"""The common part of similar deliveries, and the ports of those who look at written ones."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fluxmq.model.batch_format import Batch
from fluxmq.sessions.amqp091.channel import Channel
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.takers import Taker


class DeliveryHead(NamedTuple):
    """Common part of similar deliveries. ``offset_at``: position of the offset in ``properties``,
    or -1."""

    exchange: bytes
    routing_key: bytes
    properties: bytes
    offset_at: int


class DeliveryTap(Protocol):
    """Looks at deliveries while it is ``on``."""

    on: bool

    def delivered(
        self,
        channel: Channel,
        taker: Taker,
        batch: Batch,
        first: int,
        count: int,
        redelivered: bool,
        head: DeliveryHead,
    ) -> None:
        """Note messages of a batch that were written to a channel."""


class LinkTap(Protocol):
    """Looks at deliveries over links of AMQP 1.0 while it is ``on``."""

    on: bool

    def delivered_over_link(
        self,
        info: ConnectionInfo,
        session: int,
        queue: str,
        batch: Batch,
        span: tuple[int, int],
        redelivered: bool,
    ) -> None:
        """Note messages of a batch that were written to a link in a session: first index and count."""
