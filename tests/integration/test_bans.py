"""Bans on a running node: fluxmqctl, real clients, a restart."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]
import pytest

from fluxmq.cli.main import run
from tests.broker import HOST, Broker, free_port, running_broker
from tests.conformance import wire
from tests.conformance.client import Client


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return {"server": {"amqp": {"tcp": {"addr": f"{HOST}:{free_port()}"}}}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("node")
    with running_broker(directory, workers=2, settings=settings) as broker:
        broker.add_user("eve", "secret")
        broker.control("set_permissions", "eve", ".*", ".*", ".*")
        yield broker


def ctl(node: Broker, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[str]:
    """Run fluxmqctl in this process; return the lines it printed, those of errors too."""
    assert run(["--config", str(node.config), *words]) == code
    out, err = capsys.readouterr()
    return (out + err).splitlines()


class Clients:
    """MQTT 5 clients, whose sockets are closed in the end."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def connect(self, node: Broker, client_id: str, **fields: Any) -> tuple[Client, int | None]:
        """A client, and the reason in its CONNACK."""
        made = self.stack.enter_context(socket.create_connection((node.host, node.port), 10))
        client = Client(made, 5)
        return client, client.connect(client_id, **fields).reason


@pytest.fixture
def clients() -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(stack)


def amqp(settings: dict[str, Any]) -> pika.BlockingConnection:
    port = int(settings["server"]["amqp"]["tcp"]["addr"].rpartition(":")[2])
    credentials = pika.PlainCredentials("eve", "secret")
    return pika.BlockingConnection(pika.ConnectionParameters(HOST, port, credentials=credentials))


def test_users_and_client_ids(
    node: Broker, settings: dict[str, Any], clients: Clients, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who is connected is told and closed, whoever comes is refused, over both protocols."""
    mqtt, reason = clients.connect(node, "device", username="eve", password=b"secret")
    assert reason == 0
    rabbit = amqp(settings)
    assert ctl(node, capsys, "ban", "user", "eve", "--for", "1h", "--reason", "test") == [
        'Banning user "eve" for 1h ...',
        "Closed 2 connections",
    ]
    assert mqtt.expect(wire.DISCONNECT).reason == 0x98
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        rabbit.process_data_events(10)
    assert closed.value.reply_code == 320
    assert "banned" in closed.value.reply_text
    assert clients.connect(node, "device", username="eve", password=b"secret")[1] == 0x8A
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        amqp(settings)
    title, header, row = ctl(node, capsys, "list_bans")
    assert title == "Listing bans ..."
    assert header.split("\t") == ["kind", "value", "until", "reason"]
    assert row.startswith("user\teve\t2")
    ctl(node, capsys, "ban", "client_id", "device")
    assert clients.connect(node, "device")[1] == 0x8A
    _, reason = clients.connect(node, "other")
    assert reason == 0
    assert node.metrics("fluxmq_bans")[(("kind", "user"),)] == 1
    ctl(node, capsys, "unban", "user", "eve")
    ctl(node, capsys, "unban", "client_id", "device")
    assert clients.connect(node, "device", username="eve", password=b"secret")[1] == 0
    amqp(settings).close()
    assert ctl(node, capsys, "list_bans", "--silent") == []


def test_wrong_commands(node: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    [line] = ctl(node, capsys, "ban", "address", "eve", code=1)
    assert "'eve' is no address and no network such as 192.0.2.0/24" in line
    [line] = ctl(node, capsys, "ban", "user", "eve", "--for", "10", code=2)
    assert "is not a duration; write it like" in line
    [line] = ctl(node, capsys, "ban", "user", "eve", "--for", "0s", code=2)
    assert "unban lifts one" in line
    [line] = ctl(node, capsys, "unban", "user", "eve", code=1)
    assert line == "fluxmqctl: user eve is not banned"


def test_addresses_are_refused_by_the_acceptor_and_after_a_restart(
    tmp_path: Path, clients: Clients, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_broker(tmp_path) as node:
        client, reason = clients.connect(node, "device")
        assert reason == 0
        assert ctl(node, capsys, "ban", "address", "127.0.0.0/8")[1] == "Closed 1 connections"
        assert client.expect(wire.DISCONNECT).reason == 0x98
        _is_shut_out(node)
    with running_broker(tmp_path) as node:
        _is_shut_out(node)
        ctl(node, capsys, "unban", "address", "127.0.0.0/8")
        assert clients.connect(node, "device")[1] == 0


def _is_shut_out(node: Broker) -> None:
    """The acceptor closes a connection before it is read."""
    before = node.metrics("fluxmq_acceptor_refused_total")[(("reason", "banned"),)]
    with socket.create_connection((node.host, node.port), 10) as plain:
        assert plain.recv(1) == b""
    after = node.metrics("fluxmq_acceptor_refused_total")[(("reason", "banned"),)]
    assert after == before + 1
