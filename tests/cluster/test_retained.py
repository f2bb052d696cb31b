"""Retained messages and wills of three nodes, each with a member of etcd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.messages import Get, TransactionResult
from fluxmq.control.etcd.retained import DATA as WHOLE_MESSAGES
from fluxmq.control.etcd.retained import INDEXES, PREFIX
from fluxmq.control.etcd.wills import DATA, LOOK_SECONDS
from tests.broker import HOST
from tests.cluster.etcd_state import coordinator
from tests.cluster.nodes import Cluster, Node
from tests.cluster.test_publish import publish, subscriber
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp

SECONDS = 30
WORKERS = 2
THRESHOLD = 1024


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("retained"), {}, WORKERS)
    try:
        made.start()
        coordinator(made)
        yield made
        made.stop()
    finally:
        made.end()
        print(made.log())


def retain(node: Node, topic: str, payload: bytes, qos: int = 1) -> None:
    with Client(tcp(HOST, node.port), 5) as client:
        client.connect("", keep_alive=0)
        assert client.publish(topic, payload, qos=qos, retain=True) == 0


def retained(node: Node, topic_filter: str) -> dict[str, bytes]:
    """The retained messages that a new subscriber gets."""
    with Client(tcp(HOST, node.port), 5) as client:
        client.connect("", keep_alive=0)
        client.subscribe(topic_filter, qos=0)
        # A message of the client's own comes after all that was retained.
        client.subscribe("end/of/test", qos=0)
        client.publish("end/of/test", b"", qos=0)
        found = {}
        while (message := client.receive()).topic != "end/of/test":
            assert message.retain
            found[message.topic] = message.payload
        return found


def read(node: Node, key: bytes, end: bytes = b"") -> TransactionResult:
    """Read a key, or all up to another one, from a node's member of etcd."""

    async def asked() -> TransactionResult:
        client = EtcdClient([f"{HOST}:{node.etcd_port}"])
        found = await client.transact((), (Get(key, end),))
        await client.close()
        return found

    return asyncio.run(asked())


def everywhere(cluster: Cluster, topic_filter: str, expected: dict[str, bytes]) -> None:
    def has(node: Node) -> Callable[[], bool]:
        return lambda: retained(node, topic_filter) == expected

    for node in cluster.nodes:
        if node.up:
            eventually(has(node), f"{node.name} has the same", SECONDS)


@pytest.mark.parametrize("size", [0, 1, THRESHOLD - 1, THRESHOLD, THRESHOLD + 1, 300_000])
def test_every_node_has_a_retained_message_of_any_size(cluster: Cluster, size: int) -> None:
    """S1-08, S1-09, S1-13: below the threshold in etcd with the payload, else fetched from a node."""
    topic = f"sizes/{size}"
    payload = bytes(size % 251 for _ in range(size))
    retain(cluster.nodes[0], topic, payload)
    everywhere(cluster, "sizes/" + str(size), {topic: payload} if size else {})
    keys = [prefix + topic.encode() for prefix in (WHOLE_MESSAGES, INDEXES)]
    kept = [read(cluster.nodes[2], key).entries[0] for key in keys]
    assert [len(each) for each in kept] == [0 < size < THRESHOLD, size >= THRESHOLD]
    assert all(len(entry.value) < THRESHOLD for entry in kept[1]), "etcd has no large payload"


def test_a_topic_that_crosses_the_threshold_is_what_it_was_last(cluster: Cluster) -> None:
    for number, size in enumerate((10, 5000, 20, 0)):
        payload = bytes(size % 251 for _ in range(size))
        retain(cluster.nodes[number % 3], "crossing", payload)
        everywhere(cluster, "crossing", {"crossing": payload} if size else {})


def test_what_a_killed_node_retained_is_there_and_it_gets_what_it_missed(cluster: Cluster) -> None:
    """S2-24."""
    first, second, third = cluster.nodes
    expected = {}
    for number in range(20):
        topic, payload = f"kill/{number}", bytes(number for _ in range(100 * number))
        retain(first, topic, payload, qos=2)
        if payload:
            expected[topic] = payload
    everywhere(cluster, "kill/+", expected)
    first.kill()
    retain(second, "kill/1", b"")
    retain(second, "kill/2", b"changed")
    retain(third, "kill/new", bytes(2 * THRESHOLD))
    del expected["kill/1"]
    expected |= {"kill/2": b"changed", "kill/new": bytes(2 * THRESHOLD)}
    everywhere(cluster, "kill/+", expected)
    first.start()
    cluster.wait_ready()
    everywhere(cluster, "kill/+", expected)


def test_ordinary_publishes_write_nothing_to_etcd(cluster: Cluster) -> None:
    """S2-03: nor do they wait for it, however many there are."""
    first, second, _ = cluster.nodes

    with subscriber(second, "ordinary", qos=1) as reader, subscriber(first) as writer:
        before = read(first, PREFIX).revision
        publish(writer, "ordinary", 10_000, qos=0)
        publish(writer, "ordinary", 500, qos=1)
        reader.expect(10_500)
        # Clients that have come or gone, of earlier tests too, are recorded a moment later.
        assert read(first, PREFIX).revision < before + 100


def test_a_will_of_a_killed_node_is_published_once(cluster: Cluster) -> None:
    """S2-23."""
    first, second, third = cluster.nodes
    with subscriber(second, "wills", qos=1) as one, subscriber(third, "wills", qos=1) as other:
        with Client(tcp(HOST, first.port), 5) as client:
            will = wire.Will("wills", b"gone", qos=1, retain=True)
            assert client.connect("mortal", keep_alive=0, will=will).reason == 0
            eventually(lambda: read(second, DATA + b"mortal").entries[0], "it is kept", SECONDS)
            first.kill()
        one.expect(1)
        other.expect(1)
        first.start()
        cluster.wait_ready()
        everywhere(cluster, "wills", {"wills": b"gone"})
        time.sleep(LOOK_SECONDS)
        assert one.got == other.got == [b"gone"]
