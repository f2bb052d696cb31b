"""A broker for other people's clients of AMQP 1.0."""

from __future__ import annotations

from tests.interop.amqp091.conftest import AmqpBroker, amqp, name

__all__ = ["AmqpBroker", "amqp", "name"]
