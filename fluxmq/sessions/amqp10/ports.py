"""What links need of their session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fluxmq.protocols.amqp10.conditions import ConditionError
from fluxmq.protocols.amqp10.performatives import AttachFrame, DetachFrame
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort
from fluxmq.sessions.amqp10.client import Amqp10Client
from fluxmq.sessions.amqp10.outcomes import PublishOutcomes
from fluxmq.sessions.amqp10.outgoing_window import OutgoingWindow


class LinkSession(Protocol):
    """The session of a link; see `fluxmq.sessions.amqp10.session.Amqp10Session`."""

    client: Amqp10Client
    channel: int
    links: dict[int, Any]
    outcomes: PublishOutcomes
    outgoing: OutgoingWindow
    gathered: Callable[[Any], None]

    @property
    def broker(self) -> AmqpBrokerPort:
        """The shard."""

    def mark(self) -> None:
        """Have the session flushed in this tick, or in the next one."""

    def unbounded(self, delivery: int) -> int:
        """Return an incoming delivery's unbounded id."""

    def published(self, link: Any) -> None:
        """Renew a link's credit behind what it has published, and slow the client down."""

    def send_flow(
        self,
        handle: int,
        delivery_count: int,
        credit: int,
        available: int | None = None,
        drain: bool = False,
        properties: dict[object, object] | None = None,
    ) -> None:
        """Send a link's flow."""

    def detach(self, link: Any, condition: Symbol, text: str) -> None:
        """Detach a link from our side."""

    def fail(self, error: ConditionError) -> None:
        """End the session for an error."""

    def refuse(self, attach: AttachFrame, error: ConditionError) -> None:
        """Answer an attach without the terminus asked for, and detach."""

    def ended_by_client(self, detach: DetachFrame) -> None:
        """Detach a link whose end the client has asked for before it was attached."""
