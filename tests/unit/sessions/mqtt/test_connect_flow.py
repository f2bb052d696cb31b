"""CONNECT: what is refused, what is answered, enhanced authentication."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.scram import derive_keys
from fluxmq.auth.users import User
from tests.conformance import wire
from tests.conformance.client import Client
from tests.conformance.received import Packet
from tests.unit.shards.node import Node, drain, messages

MakeNode = Callable[..., Node]
METHOD = (wire.AUTHENTICATION_METHOD, "SCRAM-SHA-256")
SALT = b"s" * 16
KEYS = derive_keys("secret", SALT, 4096)
ANNA = User(
    "anna", hash_password("secret", SALT, HashParameters(1, 8, 1)), KEYS, ("#",), ("#",), True
)


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One shard with a user."""
    return make_node(1, users=(ANNA,))


@pytest.mark.parametrize(
    ("version", "fields", "reason"),
    [
        (5, {"client_id": "amqp:queue"}, 0x85),
        (4, {"client_id": "amqp:queue"}, 2),
        (5, {"client_id": "amqp091-x"}, 0x85),
        (5, {"client_id": "x" * 1025}, 0x85),
        (5, {"client_id": "é" * 513}, 0x85),
        (4, {"client_id": "", "clean": False}, 2),
        (5, {"client_id": "c", "props": ((wire.AUTHENTICATION_METHOD, "KERBEROS"),)}, 0x8C),
    ],
)
def test_refused(node: Node, version: int, fields: dict[str, Any], reason: int) -> None:
    client = node.client(0, version)
    assert client.connect(**fields).reason == reason
    assert client.ended(1)
    assert node[0].broker.sessions.by_id == {}
    assert node[0].broker.counts.closed["refused"] == 1


@pytest.mark.parametrize("name", ["amqp", "xamqp:", "AMQP:x", "amqp09", "x" * 1024, "é" * 512])
def test_accepted(node: Node, name: str) -> None:
    node.connect(0, name)
    assert list(node[0].broker.sessions.by_id) == [name]


def test_no_client_id(make_node: MakeNode) -> None:
    """One is made, whose home is here; a client of version 5 is told."""
    node = make_node(3)
    names = set()
    for _ in range(5):
        client = node.client(1)
        assigned = client.connect("", keep_alive=0).property(wire.ASSIGNED_CLIENT_IDENTIFIER)
        assert node[1].ownership.home(assigned) == 1
        names.add(assigned)
    node.connect(1, "", version=4)
    assert len(names) == 5
    assert names < set(node[1].broker.sessions.by_id)


def test_limits_are_told(make_node: MakeNode) -> None:
    node = make_node(
        1,
        {
            "broker": {"max_packet_size": 5000, "topic_alias_maximum": 3},
            "session": {"max_inflight_messages": 7},
        },
    )
    connack = node.client(0).connect("c")
    assert connack.property(wire.RECEIVE_MAXIMUM) == 7
    assert connack.property(wire.MAXIMUM_PACKET_SIZE) == 5000
    assert connack.property(wire.TOPIC_ALIAS_MAXIMUM) == 3
    assert connack.property(wire.MAXIMUM_QOS) is None
    client = node.connect(0, "d")
    client.send(wire.publish(5, "t", b"x" * 5000))
    assert [packet.reason for packet in drain(client)] == [0x95]


@pytest.mark.parametrize("size", range(1, 20))
def test_no_answer_to_connect_is_larger_than_its_client_takes(node: Node, size: int) -> None:
    """Row F8: it is refused where that fits, else closed; whoever has the client id stays."""
    other = node.connect(0, "c", props=((wire.SESSION_EXPIRY_INTERVAL, 1000),))
    client = node.client(0)
    client.maximum_packet_size = size
    client.send(wire.connect(5, "c", props=((wire.MAXIMUM_PACKET_SIZE, size),)))
    answers = drain(client)
    assert all(packet.kind == wire.CONNACK and packet.size <= size for packet in answers)
    if answers and not answers[0].reason:
        assert size >= 16, "which is what it takes to say what the limits are"
        return
    assert [packet.reason for packet in answers] == ([0x95] if size >= 5 else [])
    assert client.ended(1)
    assert other.ping() == []


@pytest.mark.parametrize("version", [4, 5])
def test_a_second_connect(node: Node, version: int) -> None:
    client = node.connect(0, "c", version=version)
    client.send(wire.connect(version, "c"))
    assert [packet.reason for packet in drain(client)] == ([0x82] if version == 5 else [])
    assert client.closed


@pytest.mark.parametrize(
    "first",
    [
        wire.pingreq(),
        wire.publish(4, "t", b"x"),
        wire.subscribe(5, 1, [wire.Filter("t")]),
        wire.disconnect(),
        wire.auth(0x18, (METHOD,)),
        wire.acknowledge(wire.PUBACK, 1),
    ],
)
def test_anything_else_first(node: Node, first: bytes) -> None:
    client = node.client(0)
    client.send(first, wire.connect(5, "c"))
    assert drain(client) == []
    assert client.closed
    assert node[0].broker.sessions.by_id == {}


def test_packets_behind_connect_wait_for_it(make_node: MakeNode) -> None:
    """[MQTT-3.1.4-5]: a client may go on without waiting, also while its id is claimed elsewhere."""
    node = make_node(2)
    listener = node.connect(0, node.id_of(0, "l"))
    listener.subscribe("t", qos=1)
    client = node.client(0)
    node.hold()
    client.send(
        wire.connect(5, node.id_of(1)),
        *(wire.publish(5, "t", b"%d" % number, qos=1, packet_id=number) for number in (1, 2)),
        wire.pingreq(),
    )
    assert drain(client) == []
    client.send(wire.publish(5, "t", b"3", qos=1, packet_id=3))
    node.release()
    kinds = [packet.kind for packet in drain(client)]
    assert kinds == [wire.CONNACK, wire.PUBACK, wire.PUBACK, wire.PINGRESP, wire.PUBACK]
    assert messages(listener) == [b"1", b"2", b"3"]


class Scram:
    """A client's side of SCRAM-SHA-256 (RFC 7677)."""

    def __init__(self, name: str = "anna", password: str = "secret") -> None:
        self.first = f"n={name},r=clientnonce"
        self.password = password
        self.signature = b""

    def opening(self) -> tuple[int, bytes]:
        """The first message, as a property."""
        return (wire.AUTHENTICATION_DATA, f"n,,{self.first}".encode())

    def answer(self, packet: Packet) -> tuple[int, bytes]:
        """The final message for the server's first one."""
        server = packet.property(wire.AUTHENTICATION_DATA)
        fields = dict(part.split(b"=", 1) for part in server.split(b","))
        salted = hashlib.pbkdf2_hmac(
            "sha256", self.password.encode(), base64.b64decode(fields[b"s"]), int(fields[b"i"])
        )
        key = hmac.digest(salted, b"Client Key", "sha256")
        without = b"c=biws,r=" + fields[b"r"]
        signed = b",".join((self.first.encode(), server, without))
        mine = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = bytes(left ^ right for left, right in zip(key, mine, strict=True))
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        self.signature = b"v=" + base64.b64encode(hmac.digest(server_key, signed, "sha256"))
        return (wire.AUTHENTICATION_DATA, without + b",p=" + base64.b64encode(proof))


def begin(node: Node, scram: Scram, **fields: Any) -> tuple[Client, Packet]:
    """CONNECT with the first message; the server's answer."""
    client = node.client(0)
    client.send(wire.connect(5, "c", keep_alive=0, props=(METHOD, scram.opening()), **fields))
    return client, drain(client)[0]


def authenticated(node: Node) -> tuple[Client, Scram]:
    """A client that got in by SCRAM."""
    scram = Scram()
    client, challenge = begin(node, scram)
    assert (challenge.kind, challenge.reason) == (wire.AUTH, 0x18)
    client.send(wire.auth(0x18, (METHOD, scram.answer(challenge))))
    (connack,) = drain(client)
    assert (connack.kind, connack.reason) == (wire.CONNACK, 0)
    assert connack.property(wire.AUTHENTICATION_METHOD) == METHOD[1]
    assert connack.property(wire.AUTHENTICATION_DATA) == scram.signature
    return client, scram


def test_scram(node: Node) -> None:
    client, _ = authenticated(node)
    assert node[0].session("c").principal == "anna"
    assert client.ping() == []
    assert node[0].authentication.results["scram-sha-256", "success"] == 1


@pytest.mark.parametrize("size", [4, 16, 40])
def test_scram_takes_packets_that_large(node: Node, size: int) -> None:
    """Row F8: a challenge that the client would not take is not sent."""
    client = node.client(0)
    props = (METHOD, Scram().opening(), (wire.MAXIMUM_PACKET_SIZE, size))
    client.maximum_packet_size = size
    client.send(wire.connect(5, "c", props=props))
    reasons = [(packet.kind, packet.reason) for packet in drain(client)]
    assert reasons == ([(wire.CONNACK, 0x95)] if size > 4 else [])
    assert client.ended(1)
    assert node[0].broker.sessions.by_id == {}


def test_scram_begun_by_the_server(node: Node) -> None:
    """CONNECT may name the method alone."""
    scram = Scram()
    client = node.client(0)
    client.send(wire.connect(5, "c", props=(METHOD,)))
    assert drain(client)[0].reason == 0x18
    client.send(wire.auth(0x18, (METHOD, scram.opening())))
    client.send(wire.auth(0x18, (METHOD, scram.answer(drain(client)[0]))))
    assert drain(client)[0].reason == 0


@pytest.mark.parametrize(("name", "password"), [("anna", "wrong"), ("nobody", "secret")])
def test_scram_fails(node: Node, name: str, password: str) -> None:
    """Alike for a wrong password and an unknown user, and at the same step."""
    scram = Scram(name, password)
    client, challenge = begin(node, scram)
    assert challenge.kind == wire.AUTH
    client.send(wire.auth(0x18, (METHOD, scram.answer(challenge))))
    (connack,) = drain(client)
    assert (connack.kind, connack.reason) == (wire.CONNACK, 0x87)
    assert client.ended(1)
    assert node[0].broker.sessions.by_id == {}
    assert node[0].authentication.results["scram-sha-256", "failure"] == 1


def test_scram_is_no_way_to_guess(make_node: MakeNode) -> None:
    """Review finding 15: neither one after the other nor with many exchanges begun at once."""
    settings = {"auth": {"failed_logins": {"per_user": 3, "first_delay": "1h", "max_delay": "1h"}}}
    node = make_node(1, settings, users=(ANNA,))
    guesses = [Scram("anna", "wrong") for _ in range(10)]
    begun = [(*begin(node, scram), scram) for scram in guesses]
    reasons = []
    for client, challenge, scram in begun:
        client.send(wire.auth(0x18, (METHOD, scram.answer(challenge))))
        reasons.append(drain(client)[-1].reason)
    assert reasons == [0x87] * 4 + [0x89] * 6
    _, refused = begin(node, Scram())
    assert (refused.kind, refused.reason) == (wire.CONNACK, 0x89)
    authentication = node[0].authentication
    assert authentication.results["scram-sha-256", "failure"] == 4
    assert authentication.results["scram-sha-256", "delayed"] == 7


@pytest.mark.parametrize(
    "packet",
    [
        wire.publish(5, "t", b"x"),
        wire.pingreq(),
        wire.subscribe(5, 1, [wire.Filter("t")]),
        wire.auth(0x19, (METHOD,)),
        wire.auth(0x18, ((wire.AUTHENTICATION_METHOD, "OTHER"),)),
        wire.connect(5, "c"),
    ],
)
def test_only_auth_may_follow(node: Node, packet: bytes) -> None:
    client, _ = begin(node, Scram())
    client.send(packet)
    drain(client)
    assert client.closed
    assert node[0].broker.sessions.by_id == {}


def test_a_client_may_give_up(node: Node) -> None:
    client, _ = begin(node, Scram())
    client.send(wire.disconnect())
    assert drain(client) == []
    assert client.closed
    assert node[0].broker.counts.errors == {}


def test_an_exchange_has_to_end_in_time(node: Node) -> None:
    client, _ = begin(node, Scram())
    node.advance(11)
    assert client.ended(1)


def again(client: Client, scram: Scram) -> Packet:
    """Re-authenticate; the last answer."""
    client.send(wire.auth(0x19, (METHOD, scram.opening())))
    (challenge,) = drain(client)
    assert (challenge.kind, challenge.reason) == (wire.AUTH, 0x18)
    client.send(wire.auth(0x18, (METHOD, scram.answer(challenge))))
    (answer,) = drain(client)
    return answer


def test_re_authentication(node: Node) -> None:
    """Messages go on meanwhile; failing ends the connection, another user's name too."""
    client, _ = authenticated(node)
    client.subscribe("t")
    client.send(wire.auth(0x19, (METHOD,)))
    client.publish("t", b"x")
    assert [packet.kind for packet in drain(client)] == [wire.AUTH, wire.PUBLISH]
    scram = Scram()
    client.send(wire.auth(0x18, (METHOD, scram.opening())))
    client.send(wire.auth(0x18, (METHOD, scram.answer(drain(client)[0]))))
    (answer,) = drain(client)
    assert (answer.kind, answer.reason) == (wire.AUTH, 0)
    assert again(client, Scram()).reason == 0
    answer = again(client, Scram(password="wrong"))
    assert (answer.kind, answer.reason) == (wire.DISCONNECT, 0x87)
    assert client.closed


def test_re_authentication_as_another_user(make_node: MakeNode) -> None:
    bert = User("bert", ANNA.hash, KEYS, ("#",), ("#",), True)
    node = make_node(1, users=(ANNA, bert))
    client, _ = authenticated(node)
    answer = again(client, Scram("bert"))
    assert (answer.kind, answer.reason) == (wire.DISCONNECT, 0x87)


def test_auth_needs_the_method_in_connect(node: Node) -> None:
    """[MQTT-4.12.0-7]: a client that came in another way may not use it."""
    client = node.connect(0, "c")
    client.send(wire.auth(0x19, (METHOD, Scram().opening())))
    assert [packet.reason for packet in drain(client)] == [0x82]
    node[0].session("c")


def test_an_answer_to_nothing(node: Node) -> None:
    client, _ = authenticated(node)
    client.send(wire.auth(0x18, (METHOD, Scram().opening())))
    assert [packet.reason for packet in drain(client)] == [0x82]
