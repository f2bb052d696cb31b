"""Who gets in, and what a stranger cannot do: the steps of the review, against a real broker of two shards."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest

from tests.broker import CERTIFICATES, Broker, client_tls, free_ports, running_broker
from tests.conformance import wire
from tests.conformance.client import eventually, tcp
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V4, V5

KEEP = [(wire.SESSION_EXPIRY_INTERVAL, 3600)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of two shards with the users ua and ub, whose passwords are their names."""
    directory: Path = tmp_path_factory.mktemp("doors")
    with running_broker(directory, workers=2) as started:
        for name in ("ua", "ub"):
            started.add_user(name, name)
        yield started


@pytest.fixture
def mqtt(node: Broker) -> Iterator[Mqtt]:
    """Clients of that broker."""
    with ExitStack() as stack:
        yield Mqtt(node, stack)


def test_a_session_is_not_destroyed_by_another_principal(node: Broker, mqtt: Mqtt) -> None:
    """Review finding 7: five acknowledged messages wait; other users and nobody in particular are refused."""
    name, topic = mqtt.client_id(), mqtt.topic()
    login: dict[str, Any] = {"username": "ua", "password": b"ua"}
    client = mqtt.connect(V5, name, props=KEEP, **login)
    client.subscribe(topic, qos=1)
    # While it is connected:
    assert mqtt.refused(V5, name) == 0x85
    assert mqtt.refused(V4, name) == 2
    client.ping()
    client.disconnect()
    publisher = mqtt.connect(V5, **login)
    for number in range(5):
        publisher.publish(topic, b"%d" % number, qos=1)
    # While it is away, over any kind of connection:
    assert mqtt.refused(V5, name, username="ub", password=b"ub") == 0x85
    assert mqtt.refused(V5, name, username="ub", password=b"ub", clean=False, props=KEEP) == 0x85
    for _ in range(4):
        stranger = mqtt.over(mqtt.web_socket(), V4)
        assert stranger.connect(name, clean=False).reason == 2
    back = mqtt.open(V5)
    assert back.connect(name, clean=False, props=KEEP, **login).session_present
    assert [back.next().payload for _ in range(5)] == [b"%d" % number for number in range(5)]
    assert "the client id belongs to another user" in node.log()


def test_an_administrator_frees_a_client_id(node: Broker, mqtt: Mqtt) -> None:
    """Review finding 7: what another principal may not end, `fluxmqctl close_session` does."""
    name = mqtt.client_id()
    client = mqtt.connect(V5, name, props=KEEP, username="ua", password=b"ua")
    assert mqtt.refused(V5, name) == 0x85
    assert name in node.control("close_session", name)
    assert client.next().reason == 0x98
    mqtt.connect(V5, name, props=KEEP).disconnect()
    assert name in node.control("close_session", name)
    with pytest.raises(AssertionError, match="there is no session of"):
        node.control("close_session", name)


def test_a_user_who_is_deleted_holds_no_client_id(node: Broker, mqtt: Mqtt) -> None:
    """Review finding 7: his sessions end with him."""
    node.add_user("uc", "uc")
    name = mqtt.client_id()
    mqtt.connect(V5, name, props=KEEP, username="uc", password=b"uc").disconnect()
    assert mqtt.refused(V5, name) == 0x85
    node.control("user", "delete", "uc")

    def free() -> bool:
        return mqtt.open(V5).connect(name).reason == 0

    eventually(free, "the end of the session")


def test_a_page_from_elsewhere_reads_nothing(node: Broker, mqtt: Mqtt) -> None:
    """Review finding 6: a page opened in a browser on this machine is not trusted for the browser's address."""
    for origin in ("https://evil.example", "null", f"http://{node.host}:{node.port}"):
        assert mqtt.web_socket(origin=origin).status == 403
    own = mqtt.web_socket(origin=f"http://{node.host}:{node.ws_port}")
    assert mqtt.over(own, V5).connect(mqtt.client_id()).reason == 0
    assert mqtt.over(mqtt.web_socket(), V5).connect(mqtt.client_id()).reason == 0


def test_pages_that_a_wildcard_lets_in_name_a_user(tmp_path: Path) -> None:
    """Review finding 6: anonymous access is for origins that are named in full."""
    settings = {
        "server": {"mqtt": {"websocket": {"allowed_origins": ["*", "https://app.example"]}}}
    }
    with running_broker(tmp_path, settings=settings) as node, ExitStack() as stack:
        node.add_user("ua", "ua")
        mqtt = Mqtt(node, stack)
        evil = mqtt.over(mqtt.web_socket(origin="https://evil.example"), V5)
        assert evil.connect(mqtt.client_id()).reason == 0x87
        page = mqtt.over(mqtt.web_socket(origin="https://evil.example"), V5)
        assert page.connect(mqtt.client_id(), username="ua", password=b"ua").reason == 0
        app = mqtt.over(mqtt.web_socket(origin="https://app.example"), V5)
        assert app.connect(mqtt.client_id()).reason == 0


def own_address() -> str:
    """An address of this machine that is not loopback; skips where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing
        address = str(probe.getsockname()[0])
        if not address.startswith(("127.", "0.")):
            return address
    pytest.skip("this machine has no other address than loopback")


def test_certificates_honour_loopback_users(tmp_path: Path) -> None:
    """Review finding 12: whom a certificate names is let in from this machine only where that is said of the user."""
    away, name = own_address(), "fluxmq test client"
    ports = free_ports(2)
    tls = {
        "cert_file": str(CERTIFICATES / "server.pem"),
        "key_file": str(CERTIFICATES / "server.key"),
        "ca_file": str(CERTIFICATES / "ca.pem"),
        "client_auth": "require",
    }
    settings = {
        "server": {
            "mqtt": {"tls": {"addr": f":{ports[0]}", **tls}},
            "amqp": {"tls": {"addr": f":{ports[1]}", **tls}},
        },
        "auth": {"loopback_users": [name]},
    }
    with running_broker(tmp_path, settings=settings) as node, ExitStack() as stack:
        node.add_user(name, "secret")
        node.control("set_permissions", name, ".*", ".*", ".*")
        mqtt = Mqtt(node, stack)
        context = client_tls(certificate=True)
        context.check_hostname = False
        for host, reason in ((node.host, 0), (away, 0x87)):
            client = mqtt.over(tcp(host, ports[0], context), V5)
            assert client.connect(mqtt.client_id()).reason == reason, host
            external = pika.ConnectionParameters(
                host,
                ports[1],
                credentials=pika.credentials.ExternalCredentials(),
                ssl_options=pika.SSLOptions(context),
            )
            if reason:
                with pytest.raises(pika.exceptions.AMQPConnectionError):
                    pika.BlockingConnection(external)
            else:
                pika.BlockingConnection(external).close()


def test_a_flood_of_logins_keeps_nobody_out(tmp_path: Path) -> None:
    """Review finding 8: 300 made-up names wait, and the user whose password was verified before is let in six times of
    six; a new one, from the same address, is told by AMQP to come again, not that it is refused."""
    port = free_ports(1)[0]
    settings = {"server": {"amqp": {"tcp": {"addr": f"127.0.0.1:{port}"}}}}
    with running_broker(tmp_path, settings=settings) as node, ExitStack() as stack:
        for name in ("ua", "ub"):
            node.add_user(name, name)
            node.control("set_permissions", name, ".*", ".*", ".*")
        mqtt = Mqtt(node, stack)
        mqtt.connect(V5, username="ua", password=b"ua")
        flood = []
        for number in range(300):
            client = mqtt.open(V5)
            client.send(wire.connect(V5, f"f{number}", username=f"x{number}", password=b"x"))
            flood.append(client)
        assert flood[-1].next().reason == 0x89
        for _ in range(6):
            mqtt.connect(V5, username="ua", password=b"ua")

        def login(name: str) -> pika.ConnectionParameters:
            credentials = pika.PlainCredentials(name, name)
            return pika.ConnectionParameters("127.0.0.1", port, credentials=credentials)

        pika.BlockingConnection(login("ua")).close()
        with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
            pika.BlockingConnection(login("ub"))
        assert "(320)" in repr(caught.value)
        assert "403" not in repr(caught.value)


def test_guessing_is_slowed_down(tmp_path: Path) -> None:
    """Review finding 15: after a few failures, more are not tried; the user gets in after a while; a burst has a line."""
    settings = {"auth": {"failed_logins": {"per_user": 3, "first_delay": "2s", "max_delay": "2s"}}}
    with running_broker(tmp_path, settings=settings) as node, ExitStack() as stack:
        node.add_user("ua", "ua")
        mqtt = Mqtt(node, stack)
        wrong = [mqtt.refused(V5, username="ua", password=b"%d" % number) for number in range(6)]
        assert wrong[:4] == [0x86] * 4
        assert wrong[-1] == 0x89
        assert mqtt.refused(V4, username="ua", password=b"ua") == 3

        def let_in() -> bool:
            client = mqtt.open(V5)
            return client.connect(mqtt.client_id(), username="ua", password=b"ua").reason == 0

        eventually(let_in, "the end of the delay")
        assert node.log().count("login failed") == 1
        counted = node.metrics("fluxmq_authentications_total")
        results = {dict(labels)["result"] for labels in counted}
        assert {"failure", "delayed", "success"} <= results
