"""Durable queues end to end: a whole broker, paho, and what an operator does to it."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.broker import Broker, BrokerFactory, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp

DEADLINE = 30.0
MESSAGES = 120
SETTINGS: dict[str, Any] = {
    "queues": [
        {
            "name": "orders",
            "topics": ["shop/+/orders"],
            "dlq": {"enabled": True},
            "retry": {"initial_backoff": "100ms"},
            "consumer": {"delivery_limit": -1},
        },
        {"name": "mail", "consumer": {"visibility_timeout": "2s"}},
    ],
    "auth": {
        "anonymous": {
            "publish": ["#", "$queue/#", "$dlq/#"],
            "subscribe": ["#", "$queue/#", "$dlq/#"],
        }
    },
    "storage": {"wal_file_bytes": "16MiB", "min_free_bytes": 0},
}
QUOTA_EXCEEDED = 0x97


def user(*pairs: tuple[str, str], packet: int = PacketTypes.PUBLISH) -> Properties:
    """User properties of a packet."""
    properties = Properties(packet)
    properties.UserProperty = list(pairs)
    return properties


def said(message: Any) -> dict[str, str]:
    """What the queue says of a message."""
    return dict(message.properties.UserProperty)


class Consumer:
    """A paho client that takes from a queue and says of each message what becomes of it.

    `decide` gets a message's properties and gives an order ("ack", "nack", "reject", "" for none).
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        queue: str,
        group: str,
        decide: Callable[[dict[str, str]], str] = lambda _said: "ack",
    ) -> None:
        self.got: list[bytes] = []
        self.letters: list[dict[str, str]] = []
        self.ordered: Counter[str] = Counter()
        self.settled: list[Any] = []
        self._queue = queue
        self._decide = decide
        self._granted = threading.Event()
        self._client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, reconnect_on_failure=False
        )
        self._client.on_message = self._take
        self._client.on_publish = lambda _c, _d, _mid, reason, _p: self.settled.append(reason)
        self._client.on_subscribe = lambda *_arguments: self._granted.set()
        self._client.connect(broker.host, broker.port)
        self._client.loop_start()
        wanted = user(
            ("consumer-group", group), ("ack-mode", "explicit"), packet=PacketTypes.SUBSCRIBE
        )
        self._client.subscribe(queue, options=SubscribeOptions(qos=1), properties=wanted)
        assert self._granted.wait(DEADLINE)

    def _take(self, client: paho.Client, _data: Any, message: Any) -> None:
        properties = said(message)
        self.got.append(message.payload)
        self.letters.append(properties)
        verb = self._decide(properties)
        if verb:
            self.ordered[verb] += 1
            named = user(
                ("message-id", properties["message-id"]), ("group-id", properties["group-id"])
            )
            client.publish(f"{self._queue}/${verb}", qos=1, properties=named)

    def crash(self) -> None:
        """The connection breaks without a word."""
        self._client.socket().close()  # type: ignore[union-attr]
        self._client.loop_stop()

    def leave(self) -> None:
        """Disconnect when every order has been answered."""
        eventually(
            lambda: len(self.settled) == self.ordered.total(), "orders are answered", DEADLINE
        )
        assert not [reason for reason in self.settled if reason.value]
        self._client.disconnect()
        self._client.loop_stop()


def publish(broker: Broker, topics: list[str], count: int, first: int = 0) -> None:
    """Publish numbered messages with paho, and see every one acknowledged."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "publisher", protocol=paho.MQTTv5)
    client.max_inflight_messages_set(100)
    client.max_queued_messages_set(0)
    failures: list[Any] = []
    client.on_publish = lambda _c, _d, _mid, reason, _p: (
        failures.append(reason) if reason.is_failure else None
    )
    client.connect(broker.host, broker.port)
    client.loop_start()
    under_way = [
        client.publish(topic, b"%d" % number, qos=1)
        for number in range(first, first + count)
        for topic in topics
    ]
    for info in under_way:
        info.wait_for_publish(DEADLINE)
        assert info.is_published()
    client.disconnect()
    client.loop_stop()
    assert failures == []


def numbers(*consumers: Consumer) -> list[int]:
    """What consumers got, in order."""
    return sorted(int(payload) for consumer in consumers for payload in consumer.got)


def test_two_queues_two_groups(own_broker: BrokerFactory) -> None:
    """Ack, nack, reject and the crash of a consumer; a restart; nothing lost."""
    broker = own_broker(workers=2, settings=SETTINGS)

    def decide(properties: dict[str, str]) -> str:
        offset = int(properties["offset"])
        if offset % 10 == 3 and properties["x-delivery-count"] == "0":
            return "nack"
        return "reject" if offset % 10 == 7 else "ack"

    billing = [Consumer(broker, f"billing{n}", "$queue/orders", "billing", decide) for n in (0, 1)]
    crashing = Consumer(broker, "audit0", "$queue/orders", "audit", lambda _said: "")
    publish(broker, ["shop/7/orders", "$queue/mail"], MESSAGES)
    eventually(lambda: crashing.got, "the crashing consumer got some", DEADLINE)
    crashing.crash()
    audit = Consumer(broker, "audit1", "$queue/orders", "audit")
    again = MESSAGES // 10
    dead = MESSAGES // 10
    eventually(
        lambda: len(numbers(*billing)) >= MESSAGES + again, "billing has had everything", DEADLINE
    )
    eventually(lambda: len(set(numbers(audit))) == MESSAGES, "audit has had everything", DEADLINE)
    assert len(numbers(*billing)) == MESSAGES + again
    assert set(numbers(*billing)) == set(range(MESSAGES))
    ordered = sum((consumer.ordered for consumer in billing), Counter())
    assert ordered == {"ack": MESSAGES - dead, "nack": again, "reject": dead}
    letters = Consumer(broker, "undertaker", "$dlq/orders", "undertaker", lambda _said: "")
    eventually(lambda: len(letters.got) == dead, "the dead letters", DEADLINE)
    assert {each["_dlq_reason"] for each in letters.letters} == {"rejected"}
    assert {each["_dlq_group"] for each in letters.letters} == {"billing"}
    assert {int(each["_dlq_original_id"].split(":")[1]) % 10 for each in letters.letters} == {7}
    for consumer in (*billing, audit, letters):
        consumer.leave()
    publish(broker, ["shop/7/orders"], 50, first=MESSAGES)
    broker.stop()

    with running_broker_again(broker) as second:
        billing = [Consumer(second, "billing0", "$queue/orders", "billing")]
        audit = Consumer(second, "audit1", "$queue/orders", "audit")
        mail = Consumer(second, "mail", "$queue/mail", "mail")
        letters = Consumer(second, "undertaker", "$dlq/orders", "undertaker")
        newest = list(range(MESSAGES, MESSAGES + 50))
        eventually(lambda: len(billing[0].got) >= 50, "what came last", DEADLINE)
        eventually(lambda: len(audit.got) >= 50, "what came last", DEADLINE)
        eventually(lambda: len(mail.got) >= MESSAGES, "the other queue", DEADLINE)
        eventually(lambda: len(letters.got) >= dead, "the dead letters again", DEADLINE)
        assert numbers(billing[0]) == newest
        assert numbers(audit) == newest
        assert [int(payload) for payload in mail.got] == list(range(MESSAGES))
        for consumer in (*billing, audit, mail, letters):
            consumer.leave()


def running_broker_again(broker: Broker, settings: dict[str, Any] = SETTINGS) -> Any:
    """A broker on the same data directory, with ports of its own."""
    directory = broker.config.parent
    return running_broker(directory, workers=broker.workers, settings=settings)


Connect = Callable[[Broker, str], Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Clients that do what they are told; closed at the end."""
    clients: list[Client] = []

    def make(broker: Broker, client_id: str) -> Client:
        client = Client(tcp(broker.host, broker.port), wire.V5)
        clients.append(client)
        client.connect(client_id)
        return client

    yield make
    for client in clients:
        client.drop()


def test_a_killed_shard_between_confirm_and_delivery(
    own_broker: BrokerFactory, connect: Connect
) -> None:
    broker = own_broker(workers=1, settings=SETTINGS)
    publisher = connect(broker, "publisher")
    for number in range(20):
        assert publisher.publish("$queue/orders", b"%d" % number, qos=1) == 0
    consumer = connect(broker, "consumer")
    consumer.subscribe("$queue/orders", qos=1)
    seen = [consumer.next() for _ in range(20)]  # none is answered
    assert [int(packet.payload) for packet in seen] == list(range(20))
    for packet in seen[:5]:
        consumer.send(wire.acknowledge(wire.PUBACK, packet.packet_id))
    broker.kill_shard(0)
    eventually(lambda: not broker.ready(), "the shard is missed", DEADLINE)
    broker.wait_ready()
    again = connect(broker, "consumer")
    again.subscribe("$queue/orders", qos=1)
    first = again.receive()
    assert int(first.payload) <= 5
    rest = [int(again.receive().payload) for _ in range(19 - int(first.payload))]
    assert rest == list(range(int(first.payload) + 1, 20))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB in memory."""
    place = tmp_path / "small"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=24m"):
        pytest.skip(f"no file system may be mounted here: {os.strerror(ctypes.get_errno())}")
    yield place
    libc.umount2(os.fsencode(place), 2)


def test_a_full_disk(small_disk: Path, tmp_path: Path, connect: Connect) -> None:
    """Publishers are refused, consumers drain, and with space again all goes on without a restart."""
    storage = {**SETTINGS["storage"], "data_dir": str(small_disk / "data"), "segment_bytes": "2MiB"}
    storage["wal_file_bytes"] = "2MiB"
    manager = {"uncommitted_bytes": "1MiB"}
    settings = {**SETTINGS, "storage": storage, "queue_manager": manager}
    (tmp_path / "broker").mkdir()
    with running_broker(tmp_path / "broker", settings=settings) as broker:
        publisher = connect(broker, "publisher")
        for number in range(5):
            assert publisher.publish("$queue/orders", b"%d" % number, qos=1) == 0
        ballast = small_disk / "ballast"
        with ballast.open("wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
            except OSError:
                pass
        stored = 5
        refused = 0
        deadline = time.monotonic() + DEADLINE
        while not refused:
            assert time.monotonic() < deadline, "a full disk takes whatever comes"
            reason = publisher.publish("$queue/orders", b"x" * 50_000, qos=1)
            stored += not reason
            refused = reason
        assert refused == QUOTA_EXCEEDED
        consumer = connect(broker, "consumer")
        consumer.subscribe("$queue/orders", qos=1)
        got = [consumer.receive().payload for _ in range(stored)]
        assert got[:5] == [b"%d" % number for number in range(5)]
        ballast.unlink()
        eventually(
            lambda: publisher.publish("$queue/orders", b"again", qos=1) == 0,
            "publishers are taken again",
            DEADLINE,
        )
        assert consumer.receive().payload == b"again"
        assert json.loads(broker.control("status", "--json"))["processes"]
