"""Bans in a shard: logins are refused, and connections that are open are closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fluxmq.auth.bans import Ban
from fluxmq.auth.scram import derive_keys
from fluxmq.auth.users import User
from fluxmq.ipc.door_messages import BANS, BanList
from fluxmq.ipc.messages import Body, Failure, MessageError
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import Node, drain
from tests.unit.shards.test_permissions import ANNA, BERT, answer, connect

BANNED = 0x8A
NOT_AUTHORIZED = 0x87
ADMINISTRATIVE_ACTION = 0x98
LOOPBACK = Ban("address", "127.0.0.0/8")


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """One shard with two users and cheap hashes."""
    auth = {"argon2": {"time_cost": 1, "memory_cost": 8192}}
    return make_node(1, {"auth": auth}, users=(ANNA, BERT))


def ban(node: Node, *bans: Ban) -> int:
    """Send all bans; return how many connections were closed."""
    answers: list[Body | Failure] = []
    node[0].permissions.bans.commands[BANS](BanList(bans).to_body(), answers.append)
    node.run()
    [given] = answers
    assert isinstance(given, dict)
    return int(given["closed"])


def refused(node: Node, client_id: str, version: int = 5, name: str | None = None) -> Any:
    """The CONNACK of a login that is refused, after which the connection is closed."""
    client = node.client(0, version)
    secret: dict[str, Any] = {}
    if name is not None:
        secret = {"username": name, "password": b"secret"}
    client.send(wire.connect(version, client_id, **secret))
    connack = answer(node, client)
    assert connack.kind == wire.CONNACK
    assert client.closed
    return connack.reason


def told(client: Client) -> list[tuple[int, int]]:
    packets = [(packet.kind, packet.reason) for packet in drain(client)]
    assert client.closed
    return packets


@pytest.mark.parametrize(
    "one", [LOOPBACK, Ban("user", "anna"), Ban("client_id", "device")], ids=lambda ban: ban.kind
)
def test_logins_are_refused(node: Node, one: Ban) -> None:
    ban(node, one)
    assert refused(node, "device", 5, "anna") == BANNED
    assert refused(node, "device", 4, "anna") == 5  # not authorised
    assert node[0].authentication.bans.refused["connect"] == 2
    ban(node)
    connect(node, "anna", "device")


def test_others_are_not_concerned(node: Node) -> None:
    assert ban(node, Ban("user", "anna"), Ban("client_id", "x"), Ban("address", "192.0.2.1")) == 0
    connect(node, "bert", "anna")
    anonymous = node.client(0)
    anonymous.send(wire.connect(5, "device"))
    assert answer(node, anonymous).reason == 0


def test_anonymous_clients_are_banned_by_address_and_id(node: Node) -> None:
    ban(node, Ban("client_id", "device"))
    assert refused(node, "device") == BANNED
    ban(node, LOOPBACK)
    assert refused(node, "other") == BANNED


def test_open_connections_are_closed(node: Node) -> None:
    """MQTT 5 clients are told that an administrator did it; sessions stay."""
    lasting = ((wire.SESSION_EXPIRY_INTERVAL, 1000),)
    anna = connect(node, "anna", "one", props=lasting)
    old = connect(node, "anna", "two", version=4)
    bert = connect(node, "bert", "three")
    assert ban(node, Ban("user", "anna")) == 2
    assert told(anna) == [(wire.DISCONNECT, ADMINISTRATIVE_ACTION)]
    assert told(old) == []
    assert not bert.closed
    assert ban(node, Ban("client_id", "three")) == 1
    assert told(bert) == [(wire.DISCONNECT, ADMINISTRATIVE_ACTION)]
    ban(node)
    again = node.client(0)
    again.send(
        wire.connect(5, "one", username="anna", password=b"secret", clean=False, props=lasting)
    )
    assert answer(node, again).session_present


def test_a_login_under_way_is_refused(node: Node) -> None:
    """The password is verified on a thread: the ban may come before it is done."""
    client = node.client(0)
    client.send(wire.connect(5, "device", username="anna", password=b"secret"))
    node.run()
    assert ban(node, Ban("user", "anna")) == 1
    assert [packet.reason for packet in drain(client)] != [0]
    assert client.closed


def test_users_of_scram(node: Node) -> None:
    """The name comes after CONNECT; re-authentication ends with what DISCONNECT may say."""
    keys = derive_keys("secret", b"s" * 16, 4096)
    users: tuple[User, ...] = (replace(ANNA, scram=keys), BERT)
    node[0].permissions.set_users(2, users)
    ban(node, Ban("user", "anna"))
    client = node.client(0)
    props = (
        (wire.AUTHENTICATION_METHOD, "SCRAM-SHA-256"),
        (wire.AUTHENTICATION_DATA, b"n,,n=anna,r=nonce"),
    )
    client.send(wire.connect(5, "device", props=props))
    assert answer(node, client).reason == BANNED
    assert node[0].authentication.bans.refused["scram-sha-256"] == 1


def test_bans_end_by_the_clock(node: Node) -> None:
    now = node.clock.wall_seconds()
    ban(node, Ban("client_id", "device", now + 60))
    assert refused(node, "device") == BANNED
    node.clock.now += 60
    client = node.client(0)
    client.send(wire.connect(5, "device"))
    assert answer(node, client).reason == 0


def test_a_malformed_list_changes_nothing(node: Node) -> None:
    ban(node, Ban("client_id", "device"))
    wrong = {"bans": [{"kind": "address", "value": "eve", "until": None, "reason": ""}]}
    with pytest.raises(MessageError):
        node[0].permissions.bans.commands[BANS](wrong, lambda _: None)
    assert refused(node, "device") == BANNED
