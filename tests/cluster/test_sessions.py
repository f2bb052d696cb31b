"""Sessions of three nodes, each with a member of etcd: they follow their clients, with every message."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pika  # type: ignore[import-untyped]
import pytest

from fluxmq.control.etcd.messages import end_of
from fluxmq.control.etcd.owners import key_of
from fluxmq.ipc.owner_messages import OwnerValue, decode_owner
from tests.broker import HOST
from tests.cluster.etcd_state import coordinator
from tests.cluster.nodes import Cluster, Node
from tests.cluster.test_publish import Subscriber
from tests.cluster.test_retained import read
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp
from tests.roaming import accept

SECONDS = 30
WORKERS = 2
LASTING = ((wire.SESSION_EXPIRY_INTERVAL, 3600),)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("sessions"), {}, WORKERS)
    try:
        made.start()
        coordinator(made)
        yield made
        made.stop()
    finally:
        made.end()
        print(made.log())


made_clients: list[Client] = []


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    """Close what a test has left to the broker."""
    yield
    for client in made_clients:
        client.drop()
    made_clients.clear()


def unconnected(node: Node) -> Client:
    client = Client(tcp(HOST, node.port), 5)
    made_clients.append(client)
    return client


def connected(node: Node, name: str, *, clean: bool = False) -> Client:
    """A connected client with a session that outlives its connection."""
    client = unconnected(node)
    answer = client.connect(name, keep_alive=0, clean=clean, props=LASTING)
    assert answer.reason == 0, str(answer)
    return client


def owner(node: Node, name: str) -> OwnerValue | None:
    """The owner of a client id, as a node's member of etcd knows it."""
    ((entry,),) = read(node, key_of(name)).entries or (((),),)
    return decode_owner(entry.value) if entry else None


def recorded(node: Node, prefix: bytes) -> dict[str, str]:
    """The rests of the keys of a record, as a node's member of etcd knows it, and the nodes in their values."""
    (entries,) = read(node, prefix, end_of(prefix)).entries or ((),)
    return {
        each.key.removeprefix(prefix).decode(): json.loads(each.value)["node"] for each in entries
    }


class Roamer:
    """Goes from node to node, and remembers what it gets: of QoS 2, what is new."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.client: Client | None = None
        self.got: list[bytes] = []
        self._begun: set[int] = set()

    def go(self, node: Node, present: bool = True) -> None:
        """Connect to another node; the connection to the last one is left to the broker."""
        self.client = connected(node, self.name)
        assert self.client.present == present, "its session has come along"

    def read(self, seconds: float) -> None:
        """Take and answer what comes in this time."""
        client = self.client
        assert client is not None
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                packet = client.next(left)
            except TimeoutError:
                return
            accept(client, packet, self._begun, self.got)


class Load:
    """Publishes numbers to one node until it is stopped, each after the one before was acknowledged."""

    def __init__(self, node: Node, qos: int) -> None:
        self.head = f"{node.name} {qos}"
        self.count = 0
        self._client = Subscriber(node)
        self._qos = qos
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            payload = f"{self.head} {self.count}".encode()
            self._client.client.publish("roam", payload, self._qos).wait_for_publish(SECONDS)
            self.count += 1

    def stop(self) -> list[bytes]:
        """Stop; return everything that was acknowledged."""
        self._stopping.set()
        self._thread.join()
        self._client.close()
        return [f"{self.head} {number}".encode() for number in range(self.count)]


def test_a_session_follows_its_client_under_load(cluster: Cluster) -> None:
    """S2-16: with QoS 1 and 2 in flight; nothing is lost, and of QoS 2 nothing comes twice."""
    roamer = Roamer("roamer")
    roamer.go(cluster.nodes[0], present=False)
    assert roamer.client is not None
    roamer.client.subscribe("roam", qos=2)
    loads = [Load(node, qos) for node in cluster.nodes for qos in (1, 2)]
    for hop in range(1, 13):
        roamer.go(cluster.nodes[hop % 3])
        roamer.read(0.3)
    sent = {load.head: load.stop() for load in loads}
    everything = sum(map(len, sent.values()))

    def came() -> bool:
        roamer.read(0.2)
        return len({*roamer.got}) == everything

    eventually(came, "everything came", SECONDS)
    for head, expected in sent.items():
        got = [each for each in roamer.got if each.startswith(head.encode() + b" ")]
        assert list(dict.fromkeys(got)) == expected
        if head.endswith("2"):
            assert got == expected, "none came twice"
    for node in cluster.nodes:
        assert owner(node, "roamer") == owner(cluster.nodes[0], "roamer")


def test_a_client_id_is_connected_once(cluster: Cluster) -> None:
    """S2-12, S2-19."""
    first = connected(cluster.nodes[0], "same")
    second = connected(cluster.nodes[1], "same")
    assert first.expect(wire.DISCONNECT).reason == 0x8E
    found = owner(cluster.nodes[2], "same")
    assert found is not None
    assert found.node == cluster.nodes[1].name
    second.disconnect()


def test_subscriptions_and_consumers_are_recorded(cluster: Cluster) -> None:
    """S1-06, S2-02, S2-06, S2-07, S2-25: every node finds them, and those of every protocol."""
    first, second, third = cluster.nodes
    client = connected(first, "recorded")
    client.subscribe("a/#", "$share/billing/$queue/recorded", qos=1)
    parameters = pika.ConnectionParameters(HOST, second.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("recorded")
        channel.basic_consume("recorded", lambda *_: None, consumer_tag="tag")

        def consumers() -> dict[str, str]:
            found = recorded(third, b"/mqtt/queue-consumers/recorded/")
            return {name.rsplit(":", 1)[-1]: node for name, node in found.items()}

        both = {"billing/recorded": first.name, "tag": second.name}
        eventually(lambda: consumers() == both, "both consume", SECONDS)
    eventually(lambda: consumers() == {"billing/recorded": first.name}, "one has gone", SECONDS)
    written = "a/#", "$share/billing/$queue/recorded"
    prefix = b"/mqtt/subscriptions/recorded/"
    assert recorded(third, prefix) == dict.fromkeys(written, first.name)
    again = connected(second, "recorded")
    moved = dict.fromkeys(written, second.name)
    eventually(lambda: recorded(third, prefix) == moved, "they have moved", SECONDS)
    again.unsubscribe("a/#")
    eventually(lambda: len(recorded(third, prefix)) == 1, "one has ended", SECONDS)
    again.disconnect(0, [(wire.SESSION_EXPIRY_INTERVAL, 0)])
    eventually(lambda: recorded(third, prefix) == {}, "the session has ended", SECONDS)


def test_many_clients_move_at_once(cluster: Cluster) -> None:
    """Each is told of its own messages only."""
    names = [f"many{number}" for number in range(60)]
    for name in names:
        client = connected(cluster.nodes[0], name)
        client.subscribe(name, qos=1)
        client.drop()
    publisher = connected(cluster.nodes[2], "publisher", clean=True)
    for name in names:
        assert publisher.publish(name, name.encode(), qos=1) == 0
    clients = []
    for name in names:
        client = unconnected(cluster.nodes[1])
        client.send(wire.connect(5, name, clean=False, keep_alive=0, props=LASTING))
        clients.append(client)
    for name, client in zip(names, clients, strict=True):
        answer = client.expect(wire.CONNACK)
        assert (answer.reason, answer.session_present) == (0, True)
        assert client.receive().payload == name.encode()
        client.disconnect()


def test_the_clients_of_a_killed_node_go_elsewhere(cluster: Cluster) -> None:
    """S2-13: when its lease has ended; what it has on its disk is deleted when it is back."""
    first, second, third = cluster.nodes
    client = connected(first, "left behind")
    client.subscribe("left", qos=1)
    record = b"/mqtt/subscriptions/left behind/"
    eventually(lambda: recorded(third, record) == {"left": first.name}, "it is recorded", SECONDS)
    first.kill()

    def goes_on() -> bool:
        again = unconnected(second)
        answer = again.connect("left behind", keep_alive=0, clean=False, props=LASTING)
        assert answer.reason in (0, 0x88)
        if answer.reason == 0:
            assert not answer.session_present
            again.subscribe("other", qos=1)
            again.drop()
        return answer.reason == 0

    eventually(goes_on, "the client is let in", SECONDS)
    eventually(lambda: recorded(third, record) == {"other": second.name}, "the rest goes", SECONDS)
    first.start()
    cluster.wait_ready()
    publisher = connected(third, "publisher", clean=True)
    assert publisher.publish("other", b"kept", qos=1) == 0
    again = connected(first, "left behind")
    assert again.present
    assert again.receive().payload == b"kept"
    for topic in ("left", "other"):
        assert publisher.publish(topic, topic.encode(), qos=1) == 0
    assert again.receive().payload == b"other", "what it had subscribed to before is gone"
