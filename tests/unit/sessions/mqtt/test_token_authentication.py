"""Tokens as an authentication method of MQTT 5: CONNECT with one, and renewal by AUTH."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.auth.bans import USER, Ban, BanTable
from fluxmq.ipc.login_messages import LoginAnswer, LoginQuestion
from tests.conformance import wire
from tests.conformance.client import Client, Packet
from tests.unit.shards.node import LOOPBACK, Node, drain, messages, stream_of
from tests.unit.shards.test_backend_logins import (
    LASTING,
    MAXIMUM_CONNECT_TIME,
    NOT_AUTHORIZED,
    RIGHTS,
    TOKEN,
    Doors,
    granted,
    settings,
)

METHODS = ("JWT", "OAUTH2", "OAUTH2-JWT")


@pytest.fixture
def doors(make_node: Callable[..., Node]) -> Doors:
    """A shard that accepts tokens."""
    return Doors(make_node(1, {"auth": settings("internal", "oauth2")}))


def proof(method: str = "JWT", token: bytes = TOKEN) -> wire.Properties:
    """The properties that carry a token."""
    return ((wire.AUTHENTICATION_METHOD, method), (wire.AUTHENTICATION_DATA, token))


def opened(doors: Doors, *answers: LoginAnswer, props: wire.Properties, **fields: Any) -> Client:
    """A client that has sent CONNECT without a password, and maybe been decided about."""
    found = doors.node.client(0, 5)
    found.send(wire.connect(5, "c", keep_alive=0, props=props, **fields))
    doors.node.run()
    for answer in answers:
        doors.control.answer(answer)
    doors.node.run()
    return found


def renew(doors: Doors, found: Client, answer: LoginAnswer, method: str = "JWT") -> Packet:
    """Re-authenticate; the answer."""
    found.send(wire.auth(0x19, proof(method)))
    doors.node.run()
    assert drain(found) == []
    doors.control.answer(answer)
    doors.node.run()
    (packet,) = drain(found)
    return packet


@pytest.mark.parametrize("method", METHODS)
def test_a_token_is_an_authentication_method(doors: Doors, method: str) -> None:
    found = opened(doors, granted(*RIGHTS, name="device"), props=proof(method))
    (connack,) = drain(found)
    assert (connack.reason, connack.property(wire.AUTHENTICATION_METHOD)) == (0, method)
    assert doors.control.asked == [
        LoginQuestion("", TOKEN, LOOPBACK.rpartition(":")[0], ("oauth2",))
    ]
    assert doors.shard.session("c").principal == "device"
    assert found.publish("b", b"x", qos=1) in (0x00, 0x10)
    answer = renew(doors, found, granted(*RIGHTS, name="device"), method)
    assert (answer.kind, answer.reason) == (wire.AUTH, 0)
    assert answer.property(wire.AUTHENTICATION_METHOD) == method
    assert found.ping() == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (LoginAnswer("wrong", "oauth2"), 0x87),
        (LoginAnswer("busy", "oauth2"), 0x89),
        (LoginAnswer("unavailable", "oauth2"), 0x88),
    ],
)
def test_a_token_that_is_refused_as_a_method(
    doors: Doors, answer: LoginAnswer, reason: int
) -> None:
    found = opened(doors, answer, props=proof())
    assert [each.reason for each in drain(found)] == [reason]
    assert found.closed


@pytest.mark.parametrize("data", [b"", b"secret", TOKEN + b" "])
def test_what_is_no_token_is_given_to_no_backend(
    make_node: Callable[..., Node], data: bytes
) -> None:
    node = make_node(1, {"auth": settings("internal", "http", "oauth2")})
    doors = Doors(node)
    found = opened(doors, props=proof(token=data))
    assert [each.reason for each in drain(found)] == [NOT_AUTHORIZED]
    found = opened(doors, granted(*RIGHTS), props=proof())
    drain(found)
    found.send(wire.auth(0x19, proof(token=data)))
    node.run()
    assert [(each.kind, each.reason) for each in drain(found)] == [
        (wire.DISCONNECT, NOT_AUTHORIZED)
    ]
    assert len(doors.control.asked) == 1


def test_without_a_backend_for_tokens_they_are_no_method(make_node: Callable[..., Node]) -> None:
    doors = Doors(make_node(1, {"auth": settings("internal", "http")}))
    for method in METHODS:
        found = opened(doors, props=proof(method))
        assert [each.reason for each in drain(found)] == [0x8C]
    assert doors.control.asked == []


def test_a_renewed_login_has_the_end_and_the_rights_of_the_new_token(doors: Doors) -> None:
    found = opened(doors, granted(*RIGHTS, expires_in=60), props=proof())
    drain(found)
    found.publish("b", b"x", qos=1)
    doors.node.advance(50)
    new = granted("write:%2F/amq.topic/a.*", expires_in=60)
    assert renew(doors, found, new).reason == 0
    doors.node.advance(59)
    assert found.ping() == []
    assert found.publish("b", b"x", qos=1) == NOT_AUTHORIZED
    assert found.publish("a/b", b"x", qos=1) in (0x00, 0x10)
    doors.node.advance(2)
    assert [each.reason for each in drain(found)] == [MAXIMUM_CONNECT_TIME]


def test_a_renewed_login_without_an_end_has_none(doors: Doors) -> None:
    found = opened(doors, granted(*RIGHTS, expires_in=60), props=proof())
    drain(found)
    assert renew(doors, found, granted(*RIGHTS)).reason == 0
    doors.node.advance(61)
    assert found.ping() == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (LoginAnswer("wrong", "oauth2"), 0x87),
        (LoginAnswer("busy", "oauth2"), 0x89),
        (LoginAnswer("unavailable", "oauth2"), 0x89),
        (granted(*RIGHTS, name="another"), 0x87),
    ],
)
def test_a_renewal_that_fails_ends_the_connection(
    doors: Doors, answer: LoginAnswer, reason: int
) -> None:
    """[MQTT-4.12.1-2], and nobody becomes somebody else."""
    found = opened(doors, granted(*RIGHTS), props=proof())
    drain(found)
    packet = renew(doors, found, answer)
    assert (packet.kind, packet.reason) == (wire.DISCONNECT, reason)
    assert found.closed


def test_a_subscription_that_the_new_token_does_not_permit_ends_with_the_connection(
    doors: Doors,
) -> None:
    found = opened(doors, granted(*RIGHTS), props=(*proof(), *LASTING))
    drain(found)
    found.subscribe("a/1", qos=1)
    found.subscribe("a/2", qos=1)
    packet = renew(doors, found, granted("read:%2F/amq.topic/a.2"))
    assert (packet.kind, packet.reason) == (wire.DISCONNECT, NOT_AUTHORIZED)
    assert list(doors.shard.session("c").subscriptions) == [b"a/2"]


def test_a_will_that_the_new_token_does_not_permit_is_dropped(doors: Doors) -> None:
    watcher = doors.node.connect(0, "w")
    watcher.subscribe("gone/#")
    found = opened(doors, granted(*RIGHTS), props=proof(), will=wire.Will("gone/c", b"bye"))
    drain(found)
    packet = renew(doors, found, granted("write:%2F/amq.topic/a.*"))
    assert (packet.kind, packet.reason) == (wire.DISCONNECT, NOT_AUTHORIZED)
    assert messages(watcher) == []
    assert doors.shard.broker.counts.drops["no_permission"] == 1


def test_packets_behind_a_renewal_wait_for_it(doors: Doors) -> None:
    found = opened(doors, granted(*RIGHTS), props=proof())
    drain(found)
    found.send(wire.auth(0x19, proof()) + wire.publish(5, "b", b"x", qos=1, packet_id=3))
    doors.node.run()
    doors.control.answer(granted("write:%2F/amq.topic/a.*"))
    doors.node.run()
    answers = [(each.kind, each.reason) for each in drain(found)]
    assert answers == [(wire.AUTH, 0), (wire.PUBACK, NOT_AUTHORIZED)]


def test_a_client_that_leaves_during_a_renewal(doors: Doors) -> None:
    found = opened(doors, granted(*RIGHTS), props=proof())
    drain(found)
    found.send(wire.auth(0x19, proof()))
    doors.node.run()
    stream_of(found).close()
    doors.node.run()
    doors.control.answer(granted(*RIGHTS))
    doors.node.run()
    assert doors.shard.broker.sessions.by_id == {}


def test_a_password_cannot_be_renewed_by_auth(doors: Doors) -> None:
    """[MQTT-4.12.0-7]: CONNECT has to name the method."""
    found = doors.connect(granted(*RIGHTS))
    found.send(wire.auth(0x19, proof()))
    doors.node.run()
    assert [each.reason for each in drain(found)] == [0x82]


def test_a_ban_is_of_the_name_in_the_token(doors: Doors) -> None:
    doors.shard.authentication.bans.table = BanTable([Ban(USER, "device")])
    found = opened(doors, granted(*RIGHTS, name="device"), props=proof(), username="another")
    assert [each.reason for each in drain(found)] == [0x8A]
    assert doors.shard.authentication.bans.refused == {"oauth2": 1}
