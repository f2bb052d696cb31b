"""Nothing is left behind.

The collector stops the shard, so what has ended must be freed by its last reference: a cycle would need it. Each way of coming and going is repeated with collection switched off; then the collector is asked what it finds.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.scram import derive_keys
from fluxmq.auth.users import User
from fluxmq.shards.intake import TLS, WEBSOCKET
from tests.broker import CERTIFICATES, client_tls
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import Clock, Node, drain, stream_of

MakeNode = Callable[..., Node]
Churn = Callable[[Node, int], None]
LASTING = ((wire.SESSION_EXPIRY_INTERVAL, 1_000_000),)
ROUNDS = 60
ALLOWED = 40
"""Objects in cycles that may be found after all rounds: less than one per round."""
KEYS = derive_keys("secret", b"s" * 16, 4096)
USER = User(
    "anna", hash_password("secret", b"s" * 16, HashParameters(1, 8, 1)), KEYS, ("#",), ("#",), True
)


SETTINGS = {
    "auth": {"argon2": {"time_cost": 1, "memory_cost": 8192}},
    "server": {
        "mqtt": {
            "websocket": {"addr": "127.0.0.1:8083"},
            "tls": {
                "addr": "127.0.0.1:8883",
                "cert_file": str(CERTIFICATES / "server.pem"),
                "key_file": str(CERTIFICATES / "server.key"),
                "ca_file": str(CERTIFICATES / "ca.pem"),
                "client_auth": "request",
            },
        }
    },
}


def bye(client: Client) -> None:
    """The client's socket goes."""
    stream = stream_of(client)
    stream.sock.close()
    stream.node._clients.remove(stream)
    stream.node.run()


def come_and_go(node: Node, number: int) -> None:
    client = node.connect(number % 2, f"c{number}", version=4 + number % 2)
    bye(client)


def disconnect(node: Node, number: int) -> None:
    client = node.connect(0, f"c{number}")
    client.send(wire.disconnect())
    node.run()
    bye(client)


def break_the_protocol(node: Node, number: int) -> None:
    client = node.connect(0, f"c{number}", version=4 + number % 2)
    client.send(b"\xff\xff\xff\xff\xff", wire.pingreq())
    node.run()
    bye(client)


def never_connect(node: Node, number: int) -> None:
    client = node.client(0)
    client.send(b"\x10" if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
    node.run()
    bye(client)


def bad_connect(node: Node, number: int) -> None:
    client = node.client(0)
    client.send(wire.connect(5, "amqp:x"), wire.connect(4, "", clean=False))
    node.run()
    bye(client)


def run_out_of_time(node: Node, number: int) -> None:
    client = node.client(0)
    node.advance(11)
    assert drain(client) == []
    bye(client)


def keep_alive_runs_out(node: Node, number: int) -> None:
    client = node.connect(0, f"c{number}", keep_alive=1)
    node.advance(5)
    bye(client)


def take_over(node: Node, number: int) -> None:
    first = node.connect(0, "same", clean=False, props=LASTING)
    second = node.connect(number % 2, "same", clean=number % 3 == 0, props=LASTING)
    bye(first)
    bye(second)


def sessions_with_everything(node: Node, number: int) -> None:
    will = wire.Will("w", b"x", properties=((wire.WILL_DELAY_INTERVAL, 5),))
    client = node.connect(
        number % 2, f"c{number}", will=will, props=(*LASTING, (wire.RECEIVE_MAXIMUM, 2))
    )
    client.subscribe("t/#", "$share/g/t/#", f"u/{number}", qos=2)
    publisher = node.connect((number + 1) % 2, f"p{number}")
    for qos in (0, 1, 2):
        for _ in range(4):
            publisher.publish(f"t/{number}", b"x" * 100, qos=qos, retain=qos == 1)
    node.run()
    bye(publisher)
    bye(client)
    if number % 2:
        back = node.connect((number + 1) % 2, f"c{number}", clean=False, props=LASTING)
        drain(back)
        bye(back)
    last = node.connect(number % 2, f"c{number}")
    publisher = node.connect(0, "eraser")
    publisher.publish(f"t/{number}", b"", qos=1, retain=True)
    bye(publisher)
    bye(last)


def expire(node: Node, number: int) -> None:
    client = node.connect(0, f"c{number}", props=((wire.SESSION_EXPIRY_INTERVAL, 1),))
    client.subscribe("t", qos=1)
    bye(client)
    node.advance(2)


def properties_and_aliases(node: Node, number: int) -> None:
    client = node.connect(0, f"c{number}", props=((wire.TOPIC_ALIAS_MAXIMUM, 10),))
    client.subscribe("t", qos=1, props=((wire.SUBSCRIPTION_IDENTIFIER, 5),))
    client.publish(
        "t",
        b"x",
        qos=1,
        props=(
            (wire.TOPIC_ALIAS, 1),
            (wire.USER_PROPERTY, ("a", "b")),
            (wire.MESSAGE_EXPIRY_INTERVAL, 9),
        ),
    )
    client.publish("", b"x", qos=1, props=((wire.TOPIC_ALIAS, 1),))
    client.unsubscribe("t")
    bye(client)


def passwords(node: Node, number: int) -> None:
    client = node.client(0)
    password = b"secret" if number % 2 else b"wrong"
    client.send(wire.connect(5, f"c{number}", username="anna", password=password))
    node.run()
    while node[0].authentication.pending:
        node.loop.run_until_complete(asyncio.sleep(0.001))
    node.run()
    bye(client)


def scram(node: Node, number: int) -> None:
    client = node.client(0)
    method = (wire.AUTHENTICATION_METHOD, "SCRAM-SHA-256")
    first = (method, (wire.AUTHENTICATION_DATA, b"n,,n=anna,r=nonce"))
    client.send(wire.connect(5, f"c{number}", props=first))
    node.run()
    client.send(wire.auth(0x18, (method, (wire.AUTHENTICATION_DATA, b"c=biws,r=x,p=x"))))
    node.run()
    bye(client)


def forbidden(node: Node, number: int) -> None:
    client = node.connect(0, f"c{number}")
    client.publish("$SYS/x", b"x", qos=1)
    client.subscribe("$SYS/none/" + "x" * 5000, granted=False)
    bye(client)


def retained_feeds_cut_short(node: Node, number: int) -> None:
    if number == 0:
        journal = node.connect(0, "keeper")
        for index in range(50):
            journal.publish(f"kept/{index}", b"x", qos=1, retain=True)
        bye(journal)
    client = node.connect(0, f"c{number}", props=((wire.RECEIVE_MAXIMUM, 1),))
    client.subscribe("kept/#", qos=1)
    bye(client)


def held_by_a_link(node: Node, number: int) -> None:
    if number == 0:
        node.connect(1, node.id_of(1, "listener")).subscribe("far")
    client = node.connect(0, node.id_of(0, f"c{number}-"))
    node.pipes[0, 1].room = 0
    client.send(wire.publish(5, "far", b"x" * 100))
    node.run()
    bye(client)
    node.pipes[0, 1].room = None
    node.advance(0.2)


UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: a2tra2tra2tra2tra2traw==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def websocket(node: Node, number: int) -> None:
    client = node.client(0, listener=WEBSOCKET)
    packet = wire.connect(5, f"c{number}")
    client.send(UPGRADE, bytes((0x82, 0x80 | len(packet), 0, 0, 0, 0)), packet)
    node.run()
    if number % 2:
        client.send(b"\x88\x80\0\0\0\0")
    node.run()
    bye(client)


def tls(node: Node, number: int) -> None:
    """A handshake that succeeds, or is cut short, or never was one."""
    client = node.client(0, listener=TLS)
    sock = stream_of(client).sock
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = client_tls(certificate=number % 2 == 0)
    side = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    for _ in range(8):
        try:
            side.do_handshake()
            side.write(wire.connect(5, f"c{number}"))
            break
        except ssl.SSLWantReadError:
            sock.send(outgoing.read())
            if number % 3 == 1:
                sock.send(b"garbage" * 10)
                break
            node.run()
            with suppress(BlockingIOError):
                incoming.write(sock.recv(65536))
    with suppress(BrokenPipeError):
        sock.send(outgoing.read())
    node.run()
    bye(client)


CHURNS = [
    websocket,
    tls,
    come_and_go,
    disconnect,
    break_the_protocol,
    never_connect,
    bad_connect,
    run_out_of_time,
    keep_alive_runs_out,
    take_over,
    sessions_with_everything,
    expire,
    properties_and_aliases,
    passwords,
    scram,
    forbidden,
    retained_feeds_cut_short,
    held_by_a_link,
]


@pytest.mark.parametrize("churn", CHURNS, ids=lambda churn: churn.__name__)
def test_no_cycles_and_nothing_kept(make_node: MakeNode, churn: Churn) -> None:
    node = make_node(2, SETTINGS, users=(USER,))
    for number in range(5):
        churn(node, number)
    node.advance(11)
    gc.collect()
    before = kept(node)
    gc.disable()
    try:
        for number in range(5, 5 + ROUNDS):
            churn(node, number)
        node.advance(3)
        gc.set_debug(gc.DEBUG_SAVEALL)
        found = gc.collect()
        kinds = [type(thing).__name__ for thing in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found <= ALLOWED, f"{found} objects in cycles: {kinds[:200]}"
    assert kept(node) == before


def test_a_shard_that_is_gone_is_collected(clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
    """Compiled classes that declare an attribute their base declares are visited twice, and never freed."""
    node = Node(2, clock, loop, SETTINGS, users=(USER,))
    come_and_go(node, 0)
    gone = [weakref.ref(shard) for shard in node]
    node.close()
    del node
    gc.collect()
    assert [each() for each in gone] == [None, None]


def kept(node: Node) -> dict[str, Any]:
    """Sizes of everything that a shard keeps by connection, session, message or peer."""
    found: dict[str, Any] = {}
    for shard in node:
        broker, ownership, peers = shard.broker, shard.ownership, shard.peers
        for name, size in (
            ("connections", len(shard.reactor.connections)),
            ("dirty", len(shard.reactor.dirty)),
            ("sessions", len(broker.sessions.by_id)),
            ("subscriptions", broker.subscriptions.count),
            ("filters", len(broker.subscriptions.routes._tree)),
            ("groups", len(broker.subscriptions.groups)),
            ("silence", len(broker.connections.wheel)),
            ("timers", len(broker.sessions.timers)),
            ("hungry", len(broker.connections._unfed)),
            ("owners", len(ownership._owners)),
            ("pending", len(ownership._pending)),
            ("asked", len(ownership._asked)),
            ("claiming", len(ownership._claiming)),
            ("waiting", len(peers._confirmations._waiting)),
            ("backlog", sum(len(link.backlog) for link in peers.links.values())),
            ("paused", sum(len(link.paused) for link in peers.links.values())),
            ("retained", len(broker.retained.store)),
            ("verifying", shard.authentication.pending),
            ("open", sum(shard.intake.open_now)),
        ):
            found[f"{shard.index} {name}"] = size
    return found
