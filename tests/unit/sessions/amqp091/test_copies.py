"""Sender-selected distribution: the routing keys in CC and BCC take the permission that the message's own takes."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.methods import (
    BasicGet,
    BasicGetEmpty,
    BasicPublish,
    ChannelCloseOk,
    ChannelOpen,
    ExchangeDeclare,
    QueueBind,
    QueueDeclare,
    TxSelect,
)
from tests.unit.sessions.amqp091.memory import MemoryBroker, Message, Peer
from tests.unit.sessions.amqp091.scripts import closed

COPIED = "access to topic 'secret.x' in exchange 'bt' in vhost '/' refused for user 'bob'"


def of_bob() -> Peer:
    """A connection of bob, who may publish to a topic exchange with keys that begin with `ok`."""
    peer = Peer(MemoryBroker(), user="bob")
    peer.send(1, ExchangeDeclare("bt", "topic"), QueueDeclare("bq"), QueueBind("bq", "bt", "ok.#"))
    peer.receive()
    return peer


@pytest.mark.parametrize(
    "headers",
    [
        {"CC": ["secret.x"]},
        {"BCC": ["secret.x"]},
        {"CC": ["ok.a", "ok.b", "secret.x"]},
        {"CC": ["ok.a"], "BCC": ["ok.b", "secret.x", "ok.c"]},
        {"CC": ["ok.a", 7, "secret.x", "secret.y"]},
    ],
)
@pytest.mark.parametrize("transacted", [False, True])
def test_every_routing_key_takes_permission(headers: dict[str, object], transacted: bool) -> None:
    """Review finding 10: keys in CC and BCC are checked like the message's own."""
    peer = of_bob()
    if transacted:
        peer.send(1, TxSelect())
        peer.receive()
    peer.publish("bt", "ok.own", headers=headers)
    assert peer.one() == closed(403, COPIED, BasicPublish)
    peer.send(1, ChannelCloseOk())
    peer.send(2, ChannelOpen(), BasicGet("bq", True))
    assert peer.got(2)[-1] == BasicGetEmpty(), "nothing was published, with none of the keys"


def test_keys_that_are_permitted_are_published_with() -> None:
    """Review finding 10: and a header that is refused is refused again behind one that is not."""
    peer = of_bob()
    peer.publish("bt", "ok.own", headers={"CC": ["ok.a"], "BCC": ["ok.b"]})
    peer.send(1, BasicGet("bq", True))
    assert isinstance(peer.one(), Message)
    for _ in range(2):
        peer.publish("bt", "ok.own", headers={"CC": ["ok.a"]})
    peer.publish("bt", "ok.own", headers={"CC": ["secret.x"]})
    assert peer.one() == closed(403, COPIED, BasicPublish)


def test_copies_need_no_permission_where_keys_are_no_topics() -> None:
    """Review finding 10: as with the message's own key, only topic exchanges look at them."""
    peer = Peer(MemoryBroker(), user="bob")
    peer.send(1, ExchangeDeclare("bd", "direct"), QueueDeclare("bq"), QueueBind("bq", "bd", "any"))
    peer.receive()
    peer.publish("bd", "ok", headers={"CC": ["any"]})
    peer.send(1, BasicGet("bq", True))
    assert isinstance(peer.one(), Message)
