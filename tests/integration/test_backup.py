"""A backup of a running node, and a broker that starts from it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pika  # type: ignore[import-untyped]
import pytest
from pika.adapters.blocking_connection import BlockingChannel as Channel  # type: ignore[import-untyped]

import fluxmq
from fluxmq.settings.membership import FILE_NAME as NODES_FILE
from fluxmq.settings.membership import KnownNodes, encode_nodes
from tests.broker import HOST, Broker, free_port, merged, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, tcp

SETTINGS = {
    "queues": [{"name": "orders"}],
    "auth": {"anonymous": {"publish": ["#", "$queue/#"], "subscribe": ["#", "$queue/#"]}},
    "storage": {"segment_bytes": "2MiB", "min_free_bytes": 0},
}
PAYLOAD = b"." * 5_000
BEFORE = 600
"""Messages before the backup: more than a segment."""
KEPT = [(wire.SESSION_EXPIRY_INTERVAL, 3600)]


def client(broker: Broker, name: str, **fields: object) -> Client:
    """Connect with MQTT 5."""
    made = Client(tcp(broker.host, broker.port), wire.V5)
    made.connect(name, **fields)
    return made


@contextlib.contextmanager
def channel(port: int, user: str) -> Iterator[Channel]:
    """A channel in confirm mode."""
    login = pika.PlainCredentials(user, "secret")
    parameters = pika.ConnectionParameters(HOST, port, credentials=login)
    with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
        opened = connection.channel()
        opened.confirm_delivery()
        yield opened


def drained(opened: Channel, queue: str) -> list[bytes]:
    """Take every message of a queue."""
    found = []
    while (got := opened.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


def declare_and_settle(asked: Channel) -> None:
    """Declare an exchange and a queue, publish ten messages, settle three of them."""
    asked.exchange_declare("news", "topic", durable=True)
    asked.queue_declare("durable", durable=True)
    asked.queue_bind("durable", "news", "sports.#")
    for number in range(10):
        asked.basic_publish("news", "sports.x", b"%d" % number)
    for _ in range(3):  # settled before the backup
        method, _, _ = asked.basic_get("durable")
        asked.basic_ack(method.delivery_tag)
    asked.queue_declare("durable", passive=True)  # the acknowledgements were taken


def backed_up(broker: Broker, folder: Path, backup: Path) -> str:
    """Make a backup, with the nodes of a cluster; what the command says."""
    nodes = encode_nodes(KnownNodes())
    (next(folder.rglob("VERSION")).parent / NODES_FILE).write_bytes(nodes)
    said = broker.control("backup", str(backup))
    assert (backup / NODES_FILE).read_bytes() == nodes
    return said


@pytest.mark.slow
def test_a_broker_starts_from_a_backup_of_a_running_node(tmp_path: Path) -> None:
    """Queues with what is settled in them, users, exchanges, sessions and retained messages are in the backup."""
    ports = free_port(), free_port()
    settings = [
        merged(SETTINGS, {"server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}}})
        for port in ports
    ]
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    backup = tmp_path / "backup"
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(
            running_broker(tmp_path / "first", workers=2, settings=settings[0])
        )
        broker.control("add_user", "ann", "secret")
        broker.control("set_permissions", "ann", ".*", ".*", ".*")
        asked = stack.enter_context(channel(ports[0], "ann"))
        declare_and_settle(asked)
        absent = client(broker, "absent", clean=True, props=KEPT)
        absent.subscribe("for/absent", qos=1)
        absent.disconnect()
        publisher = client(broker, "publisher")
        assert publisher.publish("for/absent", b"kept for it", qos=1) == 0
        assert publisher.publish("state", b"retained", qos=1, retain=True) == 0
        for number in range(BEFORE):
            assert publisher.publish("$queue/orders", b"%d %s" % (number, PAYLOAD), qos=1) == 0
        ended, count = threading.Event(), [BEFORE]

        def go_on() -> None:
            while not ended.is_set():
                assert (
                    publisher.publish("$queue/orders", b"%d %s" % (count[0], PAYLOAD), qos=1) == 0
                )
                count[0] += 1

        writing = threading.Thread(target=go_on)
        writing.start()
        try:
            said = backed_up(broker, tmp_path / "first", backup)
        finally:
            ended.set()
            writing.join()
        assert said.startswith(f"{backup}: 2 queues in ")
        with pytest.raises(AssertionError, match="exists already"):
            broker.control("backup", str(backup))
        assert not backup.with_name("backup.incomplete").exists()
        said = broker.control("upgrade-check", "--backup", str(backup))
        for line in ("ok: settings: ", "ok: data directory: ", f"ok: backup: {backup} is "):
            assert line in said
        assert f"note: node: runs FluxMQ {fluxmq.__version__}, as this is" in said
        publisher.disconnect()
    restored = merged(settings[1], {"storage": {"data_dir": str(backup)}})
    with (
        running_broker(tmp_path / "second", workers=2, settings=restored) as broker,
        channel(ports[1], "ann") as asked,
    ):
        assert sorted(drained(asked, "durable"), key=int) == [b"%d" % n for n in range(3, 10)]
        asked.basic_publish("news", "sports.y", b"routed")
        assert drained(asked, "durable") == [b"routed"]
        orders = [int(body.split()[0]) for body in drained(asked, "orders")]
        assert orders == list(range(len(orders)))
        assert BEFORE <= len(orders) <= count[0]
        back = Client(tcp(broker.host, broker.port), wire.V5)
        assert back.connect("absent", clean=False, props=KEPT).session_present
        assert back.receive().payload == b"kept for it"
        back.subscribe("state")
        assert back.receive().payload == b"retained"
        assert back.publish("$queue/orders", b"goes on", qos=1) == 0
        assert drained(asked, "orders") == [b"goes on"]
        back.disconnect()
