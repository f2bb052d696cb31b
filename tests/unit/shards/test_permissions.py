"""Users and anonymous access change while clients are here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.scram import derive_keys
from fluxmq.auth.users import User
from fluxmq.settings.schema import AuthSettings
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.auth.test_hash_upgrades import imported, upgrade
from tests.unit.shards.node import Node, drain, messages

MakeNode = Callable[..., Node]
LASTING = ((wire.SESSION_EXPIRY_INTERVAL, 1000),)
PARAMETERS = HashParameters(1, 8, 1)
ANNA = User(
    "anna", hash_password("secret", b"s" * 16, PARAMETERS), None, ("#",), ("#",), enabled=True
)
BERT = replace(ANNA, name="bert")
NOT_AUTHORIZED = 0x87


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One shard with two users and cheap hashes."""
    auth = {"argon2": {"time_cost": 1, "memory_cost": 8192}}
    return make_node(1, {"auth": auth}, users=(ANNA, BERT))


def connect(node: Node, name: str, client_id: str, version: int = 5, **fields: Any) -> Client:
    """A client that gave its password."""
    client = node.client(0, version)
    client.send(
        wire.connect(version, client_id, username=name, password=b"secret", keep_alive=0, **fields)
    )
    connack = answer(node, client)
    assert connack.reason == 0, str(connack)
    return client


def answer(node: Node, client: Client) -> Any:
    """The CONNACK, which waits for a thread."""
    end = node.loop.time() + 30
    while True:
        node.run()
        for packet in drain(client):
            return packet
        assert node.loop.time() < end
        node.loop.run_until_complete(asyncio.sleep(0.001))


def change(node: Node, *users: User) -> None:
    """A new snapshot."""
    node[0].permissions.set_users(node[0].authentication.revision + 1, users)
    node.run()


def gone(client: Client, reason: int = NOT_AUTHORIZED) -> bool:
    """Whether the client was disconnected, and told why."""
    packets = drain(client)
    if client.version == 5:
        assert [(p.kind, p.reason) for p in packets] == [(wire.DISCONNECT, reason)]
    else:
        assert packets == []
    return client.closed


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "after",
    [(BERT,), (replace(ANNA, enabled=False), BERT), (replace(ANNA, hash=ANNA.hash + "x"), BERT)],
    ids=["removed", "disabled", "another password"],
)
def test_who_may_not_stay_is_disconnected(
    node: Node, version: int, after: tuple[User, ...]
) -> None:
    anna, bert = connect(node, "anna", "a", version), connect(node, "bert", "b")
    anonymous = node.connect(0, "c")
    change(node, *after)
    assert gone(anna)
    for other in (bert, anonymous):
        assert other.ping() == []


def test_a_snapshot_without_changes_disturbs_nobody(node: Node) -> None:
    anna = connect(node, "anna", "a")
    change(node, ANNA, BERT)
    assert anna.ping() == []


def test_new_permissions_to_publish_hold_at_once(node: Node) -> None:
    anna, listener = connect(node, "anna", "a"), node.connect(0, "l")
    listener.subscribe("#", qos=1)
    assert anna.publish("x/1", b"1", qos=1) == 0
    change(node, replace(ANNA, publish=("y/#",)), BERT)
    assert anna.publish("x/1", b"2", qos=1) == NOT_AUTHORIZED
    assert anna.publish("y/1", b"3", qos=1) == 0
    change(node, replace(ANNA, publish=("x/1",)), BERT)
    assert anna.publish("y/1", b"4", qos=1) == NOT_AUTHORIZED
    assert anna.publish("x/1", b"5", qos=1) == 0
    change(node, ANNA, BERT)
    assert anna.publish("y/1", b"6", qos=1) == 0
    assert messages(listener) == [b"1", b"3", b"5", b"6"]


def test_new_permissions_to_subscribe_hold_at_once(node: Node) -> None:
    """Who has what it may not have is disconnected, the others may not ask for it."""
    has, asks = connect(node, "anna", "a1"), connect(node, "anna", "a2")
    has.subscribe("x/#")
    asks.subscribe("y/1")
    change(node, replace(ANNA, subscribe=("y/+",)), BERT)
    assert gone(has)
    assert asks.subscribe("x/1", granted=False).reasons == [NOT_AUTHORIZED]
    asks.subscribe("y/2")


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        ((BERT,), False),
        ((replace(ANNA, enabled=False), BERT), True),
        ((replace(ANNA, subscribe=("y/#",)), BERT), False),
        ((replace(ANNA, subscribe=("x/#",)), BERT), True),
        ((replace(ANNA, hash=ANNA.hash + "x"), BERT), True),
    ],
    ids=["removed", "disabled", "not permitted", "permitted", "another password"],
)
@pytest.mark.parametrize("present", [True, False])
def test_sessions_gather_nothing_that_is_not_permitted(
    node: Node, after: tuple[User, ...], kept: bool, present: bool
) -> None:
    """Also while their client is away."""
    client = connect(node, "anna", "a", props=LASTING)
    client.subscribe("x/#", qos=1)
    if not present:
        client.drop()
    change(node, *after)
    node.connect(0, "p").publish("x/1", b"m", qos=1)
    session = node[0].session("a")
    assert (session is not None) is kept
    if kept and session.client is None:
        assert session.delivery.pending_count == 1
    assert node[0].broker.subscriptions.routes.subscription_count == (1 if kept else 0)


REVOKED = [
    (BERT,),
    (replace(ANNA, enabled=False), BERT),
    (replace(ANNA, publish=("x/#",)), BERT),
]
REVOCATIONS = ["removed", "disabled", "not permitted"]


def will_of(delay: int = 0, topic: str = "w") -> wire.Will:
    props = ((wire.WILL_DELAY_INTERVAL, delay),) if delay else ()
    return wire.Will(topic, b"gone", 1, retain=True, properties=props)


def wills(listener: Client) -> list[bytes]:
    """Wills that have come."""
    return [packet.payload for packet in drain(listener)]


WAYS = ["ended", "expired", "delayed", "taken over", "session ended"]


@pytest.mark.parametrize(
    ("way", "revocation"),
    [
        (way, each)
        for way in WAYS
        for each in REVOCATIONS
        # Nobody else may take the client id of a user who is only disabled, nor can he.
        if each != "disabled" or way not in ("taken over", "session ended")
    ],
)
def test_a_will_that_is_not_permitted_any_more_is_not_published(
    node: Node, way: str, revocation: str
) -> None:
    """Review finding 11: the permission counts that its client has when the will is published."""
    after = dict(zip(REVOCATIONS, REVOKED, strict=True))[revocation]
    successor = "bert" if revocation == "removed" else "anna"
    listener = node.connect(0, "l")
    listener.subscribe("w")
    delay = 0 if way in ("ended", "taken over") else 500 if way == "delayed" else 5000
    anna = connect(node, "anna", "a", props=LASTING, will=will_of(delay))
    if delay:
        anna.drop()
    change(node, *after)
    if way == "taken over":
        connect(node, successor, "a", clean=False)
    elif way == "session ended":
        connect(node, successor, "a")
    elif way == "ended":
        anna.drop()
    node.advance(2000)
    node.run()
    assert wills(listener) == []
    assert node[0].broker.retained.message(b"w") is None
    assert node[0].broker.counts.drops["no_permission"] == 1
    assert node[0].broker.counts.wills == 0


def test_a_will_that_is_permitted_again_is_published(node: Node) -> None:
    """Review finding 11: what was revoked meanwhile does not count, nor a new password."""
    listener = node.connect(0, "l")
    listener.subscribe("w")
    connect(node, "anna", "a", props=LASTING, will=will_of(delay=500)).drop()
    change(node, replace(ANNA, publish=()), BERT)
    change(node, replace(ANNA, publish=("w",), hash=ANNA.hash + "x"), BERT)
    node.advance(600)
    assert wills(listener) == [b"gone"]


@pytest.mark.parametrize("allow", ["loopback", "never"])
def test_wills_of_anonymous_clients_take_their_permissions(node: Node, allow: str) -> None:
    """Review finding 11: those of anonymous access, while there is any."""
    listener = connect(node, "bert", "l")
    listener.subscribe("w")
    node.connect(0, "a", props=LASTING, will=will_of(delay=500)).drop()
    anonymous = {"allow": allow, "publish": ("w",), "subscribe": ("#",)}
    argon2 = {"time_cost": 1, "memory_cost": 8192}
    node[0].permissions.configure(
        AuthSettings.model_validate({"anonymous": anonymous, "argon2": argon2})
    )
    node.advance(600)
    assert wills(listener) == ([b"gone"] if allow == "loopback" else [])


def test_a_deleted_user_does_not_become_the_holder_of_a_certificate(node: Node) -> None:
    """Review finding 11: who never was a user has the permissions of anonymous clients, whoever was one has none."""
    authentication = node[0].authentication
    assert authentication.will_policy("a", "device", without_user=True) is not None
    assert authentication.will_policy("a", "device", without_user=False) is None
    policy = authentication.will_policy("a", "anna", without_user=True)
    assert policy is not None
    assert policy.may_publish("w")


@pytest.mark.parametrize("users", [(ANNA, BERT), (BERT,)])
def test_a_will_after_a_restart_takes_the_permission_of_then(
    node: Node, users: tuple[User, ...]
) -> None:
    """Review finding 11: what its user lost while the node was down counts."""
    connect(node, "anna", "a", props=LASTING, will=will_of(delay=500))
    node.run()
    node.advance(1)
    node.kill(0)
    node.users = users
    node.start(0)
    node.run()
    node[0].timer()
    assert node[0].session("a").will is not None
    listener = node.connect(0, "l")
    listener.subscribe("w")
    node.advance(600)
    assert wills(listener) == ([b"gone"] if ANNA in users else [])
    assert node[0].broker.counts.drops["no_permission"] == (0 if ANNA in users else 1)


def test_wills_wait_until_it_is_known_who_there_is(node: Node) -> None:
    """Review finding 11: a shard that has just started knows no users yet."""
    listener = node.connect(0, "l")
    listener.subscribe("w")
    connect(node, "anna", "a", props=LASTING, will=will_of(delay=500)).drop()
    node[0].authentication.revision = -1
    node.advance(600)
    assert wills(listener) == []
    change(node, ANNA, BERT)
    node.advance(1)
    assert wills(listener) == [b"gone"]


def test_who_is_half_way_in_starts_again(node: Node) -> None:
    """Neither a password verified nor a SCRAM exchange begun by the old rules is completed."""
    keys = derive_keys("secret", b"s" * 16, 4096)
    anna = replace(ANNA, scram=keys)
    change(node, anna, BERT)
    method = ((wire.AUTHENTICATION_METHOD, "SCRAM-SHA-256"),)
    first = (*method, (wire.AUTHENTICATION_DATA, b"n,,n=anna,r=nonce"))
    half = node.client(0)
    half.send(wire.connect(5, "half", props=first))
    assert [packet.kind for packet in drain(half)] == [wire.AUTH]
    change(node, replace(anna, enabled=False), BERT)
    assert gone_without_word(half)


def gone_without_word(client: Client) -> bool:
    """Closed before CONNACK."""
    assert drain(client) == []
    return client.closed


def test_who_waits_for_its_id_starts_again(make_node: MakeNode) -> None:
    auth = {"argon2": {"time_cost": 1, "memory_cost": 8192}}
    node = make_node(2, {"auth": auth}, users=(ANNA,))
    name = node.id_of(1)
    node.hold()
    client = node.client(0)
    client.send(wire.connect(5, name, username="anna", password=b"secret"))
    end = node.loop.time() + 30
    while not any(name.encode() in record for record in node.pipes[0, 1].records):
        node.run()
        assert node.loop.time() < end
        node.loop.run_until_complete(asyncio.sleep(0.001))
    change(node, replace(ANNA, enabled=False))
    assert gone_without_word(client)
    node.release()
    assert node.holders(name) == []
    assert node[1].ownership._owners == {}


def anonymous(node: Node, **rules: Any) -> None:
    """New settings for anonymous clients."""
    settings = node[0].authentication.settings
    values = settings.model_dump() | {"anonymous": rules}
    node[0].permissions.configure(AuthSettings.model_validate(values))
    node.run()


def test_anonymous_access_changes_for_who_is_here(node: Node) -> None:
    local, remote = node.connect(0, "l"), node.client(0, peer="192.0.2.1:5")
    anna = connect(node, "anna", "a")
    assert remote.connect("r").reason == NOT_AUTHORIZED
    anonymous(node, allow="always", publish=("open/#",), subscribe=("open/#",))
    remote = node.client(0, peer="192.0.2.1:5")
    assert remote.connect("r").reason == 0
    for client in (local, remote):
        assert client.publish("open/x", qos=1) in (0, 0x10)
        assert client.publish("closed", qos=1) == NOT_AUTHORIZED
    assert anna.publish("closed", qos=1) in (0, 0x10)
    remote.subscribe("open/1")
    anonymous(node, allow="loopback", publish=("open/#",), subscribe=("#",))
    assert gone(remote)
    local.subscribe("anything")
    anonymous(node, allow="loopback", subscribe=("other",))
    assert gone(local)
    assert anna.ping() == []


def test_settings_that_do_not_concern_anonymous_clients_disturb_nobody(node: Node) -> None:
    local = node.connect(0, "l")
    local.subscribe("x")
    settings = node[0].authentication.settings.model_dump() | {"max_pending_verifications": 1}
    node[0].permissions.configure(AuthSettings.model_validate(settings))
    assert local.ping() == []
    assert node[0].authentication.settings.max_pending_verifications == 1


def test_who_logged_in_with_an_imported_hash_stays_when_it_is_replaced(node: Node) -> None:
    """Also who is connecting meanwhile, or loses a permission at the same time."""
    before, made = replace(ANNA, hash=imported()), upgrade("anna")
    after = replace(ANNA, hash=made.hash, scram=made.scram)
    change(node, before, BERT)
    anna, late = connect(node, "anna", "a"), node.client(0, 5)
    late.send(wire.connect(5, "late", username="anna", password=b"secret", keep_alive=0))
    node.run()
    change(node, after, BERT)
    assert answer(node, late).reason == 0
    change(node, before, BERT)
    assert gone(anna)
    anna = connect(node, "anna", "a")
    change(node, replace(after, publish=("y/#",)), BERT)
    assert anna.ping() == []
    assert anna.publish("x/1", b"2", qos=1) == NOT_AUTHORIZED
