"""What the server says of itself in connection.start, and what a client announces in connection.start-ok.

Source: AMQP 0-9-1 section 1.4.2.2; capabilities: https://www.rabbitmq.com/consumer-cancel.html#capabilities and RabbitMQ 3.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fluxmq.protocols.amqp091.sasl import AMQPLAIN, EXTERNAL, PLAIN
from fluxmq.protocols.amqp091.tables import Table

PRODUCT: Final = "FluxMQ"
PLATFORM: Final = "Python"
LOCALES: Final = b"en_US"

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
"""Extensions of the protocol that are served, by RabbitMQ's names."""


def server_properties(version: str, cluster_name: str) -> Table:
    """The table of connection.start."""
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": cluster_name,
        "platform": PLATFORM,
        "product": PRODUCT,
        "version": version,
    }


def mechanisms(*, external: bool) -> bytes:
    """SASL mechanisms for connection.start; `external` where a client certificate was verified."""
    return " ".join((PLAIN, AMQPLAIN, *((EXTERNAL,) if external else ()))).encode()


def announced(client_properties: Mapping[str, object]) -> frozenset[str]:
    """Names of the capabilities that a client's properties say it has; those that are not served are left out."""
    capabilities = client_properties.get("capabilities")
    if not isinstance(capabilities, dict):
        return frozenset()
    return frozenset(name for name in CAPABILITIES if capabilities.get(name) is True)
