"""What server and client say of themselves."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.server import (
    CAPABILITIES,
    announced,
    mechanisms,
    server_properties,
)
from fluxmq.protocols.amqp091.tables import decode_table, encode_table


def test_server_properties() -> None:
    properties = server_properties("RabbitMQ", "3.10.8", "1.2.3", "node@host")
    assert decode_table(encode_table(properties)) == properties
    assert properties["product"] == "RabbitMQ"
    assert properties["version"] == "3.10.8"
    assert properties["fluxmq_version"] == "1.2.3"
    assert properties["platform"] == "Python"
    assert "FluxMQ" in str(properties["copyright"])
    assert "FluxMQ" in str(properties["information"])
    assert properties["cluster_name"] == "node@host"
    assert properties["capabilities"] == {
        "publisher_confirms": True,
        "exchange_exchange_bindings": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "consumer_priorities": True,
        "authentication_failure_close": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
    }


def test_mechanisms() -> None:
    assert mechanisms(external=False) == b"PLAIN AMQPLAIN"
    assert mechanisms(external=True) == b"PLAIN AMQPLAIN EXTERNAL"


@pytest.mark.parametrize(
    ("properties", "names"),
    [
        ({}, set()),
        ({"capabilities": True}, set()),
        ({"capabilities": {}}, set()),
        ({"capabilities": {"basic.nack": True, "other": True}}, {"basic.nack"}),
        ({"capabilities": {"basic.nack": False, "connection.blocked": 1}}, set()),
        ({"capabilities": dict.fromkeys(CAPABILITIES, True)}, set(CAPABILITIES)),
    ],
)
def test_announced(properties: dict[str, object], names: set[str]) -> None:
    assert announced(properties) == names
