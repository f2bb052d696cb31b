"""The server's properties in connection.start, and a client's capabilities in connection.start-ok.

Product and version in there are those whose behaviour is implemented. Some clients decide by them:
kombu how the prefetch of a channel is meant (RabbitMQ from 3.3 to 3.x counts for each consumer
unless ``global`` is set), NServiceBus whether it works with the broker at all (RabbitMQ from 3.10
on). Most go by ``capabilities``.

Source: AMQP 0-9-1 section 1.4.2.2; capabilities:
https://www.rabbitmq.com/consumer-cancel.html#capabilities and RabbitMQ 3.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fluxmq.protocols.amqp091.sasl import AMQPLAIN, EXTERNAL, PLAIN
from fluxmq.protocols.amqp091.tables import Table

PLATFORM: Final = "Python"
COPYRIGHT: Final = "Copyright (c) the FluxMQ authors"
INFORMATION: Final = "Served by FluxMQ; product and version are those whose behaviour it serves"
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
"""Supported protocol extensions, by RabbitMQ's names."""


def server_properties(product: str, version: str, own_version: str, cluster_name: str) -> Table:
    """Return the table of connection.start: the emulated product, and our version as
    ``fluxmq_version``."""
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": cluster_name,
        "copyright": COPYRIGHT,
        "fluxmq_version": own_version,
        "information": INFORMATION,
        "platform": PLATFORM,
        "product": product,
        "version": version,
    }


def mechanisms(*, external: bool) -> bytes:
    """Return the SASL mechanisms for connection.start; `external` after verifying a client
    certificate."""
    return " ".join((PLAIN, AMQPLAIN, *((EXTERNAL,) if external else ()))).encode()


def announced(client_properties: Mapping[str, object]) -> frozenset[str]:
    """Return the supported capabilities that a client's properties announce."""
    capabilities = client_properties.get("capabilities")
    if not isinstance(capabilities, dict):
        return frozenset()
    return frozenset(name for name in CAPABILITIES if capabilities.get(name) is True)
