"""Queues, exchanges and users of a cluster: the same on all nodes, whichever of them are there."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest
from pika.exceptions import (  # type: ignore[import-untyped]
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
)
from proton import Message
from proton.utils import BlockingConnection

from fluxmq.cli.main import run as fluxmqctl
from fluxmq.control.etcd.wills import LEASE_SECONDS as ENDED_SECONDS
from tests.broker import HOST
from tests.cluster.etcd_state import coordinator
from tests.cluster.nodes import Cluster, Node
from tests.cluster.sides import Amqp, Mqtt
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp

SETTINGS: dict[str, Any] = {
    "queues": [{"name": "of-settings"}],
    "amqp": {"event_exchange": True},
}
PATIENCE = 60
AT_ONCE = 5.0
"""Seconds: half of what a node waits for a queue that is about to be there."""


def connected(node: Node, name: str = "guest") -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            HOST,
            node.amqp_port,
            credentials=pika.PlainCredentials(name, name),
            socket_timeout=PATIENCE,
            blocked_connection_timeout=PATIENCE,
        )
    )


def is_refused(node: Node) -> bool:
    """Whether one more connection is refused."""
    try:
        connected(node).close()
    except AMQPConnectionError:
        return True
    return False


def declare(node: Node, name: str, **arguments: Any) -> None:
    """Declare a queue, an exchange and a binding between them at a node."""
    with connected(node) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.exchange_declare(f"x-{name}", "fanout", durable=True)
        channel.queue_bind(name, f"x-{name}")


def routes(node: Node, name: str) -> bool:
    """Whether a node has a queue, and an exchange that leads to it."""
    with connected(node) as connection:
        channel = connection.channel()
        channel.queue_declare(name, passive=True)
        channel.confirm_delivery()
        channel.basic_publish(f"x-{name}", "", b"m", mandatory=True)
        channel.queue_purge(name)
    return True


def control(node: Node, *arguments: str) -> int:
    return fluxmqctl(["--data-dir", str(node.folder / "data"), *arguments])


def knows(node: Node, queue: str, capsys: pytest.CaptureFixture[str]) -> bool:
    capsys.readouterr()
    assert control(node, "list_queues", "name") == 0
    return queue in capsys.readouterr().out.split()


def test_a_queue_of_a_connection_is_reached_from_other_nodes(cluster: Cluster) -> None:
    first, second, _ = cluster.nodes
    with connected(first) as owner, connected(second) as other:
        mine = owner.channel()
        name = mine.queue_declare("", exclusive=True).method.queue
        theirs = other.channel()
        theirs.confirm_delivery()
        theirs.basic_publish("", name, b"answer", mandatory=True)
        assert mine.basic_get(name, auto_ack=True)[2] == b"answer"
    # What a node has for itself does not keep others from hearing of what comes behind it.
    declare(second, "behind")
    assert routes(first, "behind")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"auto_delete": True},
        {"durable": True, "auto_delete": True},
        {"durable": True, "arguments": {"x-expires": 600_000}},
        {"durable": True, "arguments": {"x-queue-type": "quorum"}},
        {"durable": True, "arguments": {"x-queue-type": "stream"}},
    ],
    ids=["transient", "auto-delete", "durable auto-delete", "expiring", "quorum", "stream"],
)
def test_a_queue_is_declared_by_two_nodes_at_once(cluster: Cluster, values: dict[str, Any]) -> None:
    """S4-30, F1: whoever comes second gets the first one's queue, wherever it is, and uses it."""
    first, second, _ = cluster.nodes
    name = f"both-{'-'.join(map(str, values))}-{len(str(values))}"
    with connected(first) as one, connected(second) as other:
        channels = [one.channel(), other.channel()]
        together = threading.Barrier(len(channels))
        found: list[str] = []

        def ask(channel: Any) -> None:
            together.wait(PATIENCE)
            began = time.monotonic()
            found.append(channel.queue_declare(name, **values).method.queue)
            assert time.monotonic() - began < PATIENCE / 10

        with ThreadPoolExecutor() as pool:
            list(pool.map(ask, channels))
        assert found == [name, name]
        for channel in channels:
            channel.confirm_delivery()
            channel.basic_publish("", name, b"m", mandatory=True)
        assert channels[1].queue_declare(name, **values).method.message_count == 2
        channels[0].queue_delete(name)


def test_a_queue_of_a_connection_is_closed_to_mqtt_on_every_node(cluster: Cluster) -> None:
    """Review finding 9: who asks is told to the node that hosts the queue; replies from other nodes arrive."""
    with ExitStack() as stack:
        owner = Amqp(cluster.nodes[0], stack).channel()
        queue = owner.queue_declare("", exclusive=True).method.queue
        for node in cluster.nodes:
            client = Mqtt(node, stack).client()
            for address in (f"$queue/{queue}", f"$share/g/$queue/{queue}"):
                assert client.subscribe(address, qos=1, granted=False).reasons == [0x87]
            assert client.publish(f"$queue/{queue}", b"injected", qos=1) == 0x87
            assert Amqp(node, stack).publish(queue, node.name.encode())
        bodies = [owner.basic_get(queue, auto_ack=True)[2] for _ in range(4)]
        assert bodies == [*(node.name.encode() for node in cluster.nodes), None]


def test_the_home_node_of_a_queue_that_cannot_be_reached_is_named_at_once(cluster: Cluster) -> None:
    """S4-31: for a declaration, and for consuming, getting, purging and deleting."""
    first, second, _ = cluster.nodes
    declare(second, "at-home")
    assert routes(first, "at-home")
    requests: list[Callable[[Any], object]] = [
        lambda channel: channel.queue_declare("at-home", passive=True),
        lambda channel: channel.queue_declare("at-home", durable=True),
        lambda channel: channel.basic_consume("at-home", print),
        lambda channel: channel.basic_get("at-home"),
        lambda channel: channel.queue_purge("at-home"),
        lambda channel: channel.queue_delete("at-home"),
    ]
    second.kill()
    with connected(first) as connection:
        for request in requests:
            began = time.monotonic()
            with pytest.raises(ChannelClosedByBroker) as refused:
                request(connection.channel())
            assert refused.value.reply_code == 404
            assert refused.value.reply_text == (
                f"NOT_FOUND - home node '{second.name}' of durable queue 'at-home' in vhost '/'"
                " is down or inaccessible"
            )
            assert time.monotonic() < began + AT_ONCE
    second.start()
    cluster.wait_ready()

    def is_back() -> bool:
        # The home is ready before the others are connected to it again.
        try:
            return routes(first, "at-home")
        except ChannelClosedByBroker:
            return False

    eventually(is_back, "the home node serves its queue again", PATIENCE)


def in_memory(node: Node, name: str) -> bool:
    """Declare a queue that is not durable, with a message in it, unless it is known at another node."""
    with connected(node) as connection:
        channel = connection.channel()
        try:
            channel.queue_declare(name)
        except ChannelClosedByBroker:
            return False
        channel.confirm_delivery()
        channel.basic_publish("", name, b"m", mandatory=True)
    return True


def test_a_queue_in_the_memory_of_a_killed_node_goes(cluster: Cluster) -> None:
    """S4-32: a client that reconnects to another node declares it there."""
    first, second, _ = cluster.nodes
    assert in_memory(second, "volatile")
    second.kill()
    began = time.monotonic()
    assert not in_memory(first, "volatile"), "the node may be back soon"
    eventually(lambda: in_memory(first, "volatile"), "it is deleted", PATIENCE)
    assert time.monotonic() - began > ENDED_SECONDS / 2
    second.start()
    cluster.wait_ready()

    def is_there() -> bool:
        # The node is ready before it is connected with the home of every queue.
        with connected(second) as connection:
            channel = connection.channel()
            try:
                found = channel.queue_declare("volatile", passive=True)
            except ChannelClosedByBroker:
                return False
            return bool(found.method.message_count == 1)

    eventually(is_there, "it is where it was declared again", PATIENCE)
    with connected(second) as connection:
        connection.channel().queue_delete("volatile")


def test_a_node_that_was_thought_to_have_ended_deletes_what_is_in_its_memory(
    cluster: Cluster,
) -> None:
    """Its consumers are told, and a queue that was declared elsewhere meanwhile is the only one of its name."""
    first, second, _ = cluster.nodes
    with connected(second) as connection:
        channel = connection.channel()
        channel.queue_declare("stopped")
        cancelled: list[object] = []
        channel.add_on_cancel_callback(cancelled.append)
        channel.basic_consume("stopped", print)
        second.pause()
        try:
            eventually(lambda: in_memory(first, "stopped"), "it is deleted", PATIENCE)
        finally:
            second.resume()
        cluster.wait_ready()

        def told() -> bool:
            connection.process_data_events(0.1)
            return bool(cancelled)

        eventually(told, "its consumer is told", PATIENCE)

        def reached() -> bool:
            """Whether it reaches the other node's queue: not while they are meeting again."""
            again = connection.channel()
            with suppress(ChannelClosedByBroker):
                assert again.queue_declare("stopped", passive=True).method.message_count == 1
                again.queue_delete("stopped")
                return True
            return False

        eventually(reached, "the queue is the other node's", PATIENCE)


def test_every_node_lists_the_nodes_of_queues(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = cluster.nodes
    declare(first, "shared", **{"x-queue-type": "quorum"})
    declare(second, "alone")

    def listed(node: Node, *columns: str) -> dict[str, list[object]]:
        options = ("--formatter", "json", "name", *columns)
        assert control(node, "list_queues", *options) == 0
        rows = json.loads(capsys.readouterr().out)
        return {row["name"]: [row[column] for column in columns] for row in rows}

    everyone = [node.name for node in cluster.nodes]
    for node in cluster.nodes:

        def shared_by_all(node: Node = node) -> bool:
            found = listed(node, "leader", "members", "online")["shared"]
            return found == [first.name, everyone, everyone]

        eventually(shared_by_all, f"{node.name} says that all have it", PATIENCE)
        found = listed(node, "leader", "members", "online")
        assert found["alone"] == [second.name, [second.name], [second.name]]
    third.kill()

    def noticed() -> bool:
        return listed(first, "online")["shared"] == [[first.name, second.name]]

    eventually(noticed, "the node that was killed is not online", PATIENCE)
    second.kill()
    eventually(lambda: listed(first, "online")["alone"] == [[]], "nor is the other", PATIENCE)
    second.start()
    third.start()
    cluster.wait_ready()


def test_direct_replies_cross_nodes(cluster: Cluster) -> None:
    """A server on another node answers a request that came by a queue."""
    first, second, third = cluster.nodes
    declare(third, "requests")
    with connected(first) as client, connected(second) as server:
        asking, answering = client.channel(), server.channel()
        answers: list[bytes] = []
        asking.basic_consume(
            "amq.rabbitmq.reply-to", lambda *got: answers.append(got[3]), auto_ack=True
        )
        properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
        asking.basic_publish("", "requests", b"question", properties)

        def answered() -> bool:
            method, found, body = answering.basic_get("requests", auto_ack=True)
            if method is None:
                return False
            assert body == b"question"
            answering.confirm_delivery()
            answering.basic_publish("", found.reply_to, b"answer")
            return True

        eventually(answered, "the request has come", PATIENCE)
        client.process_data_events(1)
        eventually(
            lambda: client.process_data_events(0.1) or answers == [b"answer"], "it came", PATIENCE
        )


def test_amqp_1_0_uses_a_queue_from_every_node(cluster: Cluster) -> None:
    declare(cluster.nodes[0], "of-1-0", **{"x-queue-type": "quorum"})
    for publisher, consumer in zip(
        cluster.nodes, [*cluster.nodes[1:], cluster.nodes[0]], strict=True
    ):
        with ExitStack() as stack:
            ends = []
            for node in (publisher, consumer):
                url = f"amqp://guest:guest@{HOST}:{node.amqp_port}"
                ends.append(BlockingConnection(url, PATIENCE, allowed_mechs="PLAIN"))
                stack.callback(ends[-1].close)
            sender = ends[0].create_sender("/queues/of-1-0")
            for number in range(3):
                sender.send(Message(f"{publisher.name} {number}"))
            receiver = ends[1].create_receiver("/queues/of-1-0", credit=1)
            for number in range(3):
                assert receiver.receive(PATIENCE).body == f"{publisher.name} {number}"
                receiver.accept()


def test_connections_are_the_clusters(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Listed, limited and closed from every node."""
    first, second, third = cluster.nodes

    def listed(node: Node, what: str, *columns: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert control(node, f"list_{what}", "--formatter", "json", *columns) == 0
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return rows

    def where(node: Node, what: str) -> list[str]:
        return sorted(row["node"] for row in listed(node, what, "node"))

    with (
        connected(first) as one,
        connected(second) as other,
        Client(tcp(HOST, third.port), wire.V5) as client,
    ):
        assert client.connect("elsewhere").reason == 0
        channel = other.channel()
        channel.queue_declare("listed", durable=True)
        channel.basic_consume("listed", lambda *_: None)
        one.channel()
        for node in cluster.nodes:
            assert where(node, "connections") == [each.name for each in cluster.nodes]
            assert where(node, "channels") == [first.name, second.name]
            (consumer,) = listed(node, "consumers", "node", "queue_name")
            assert consumer == {"node": second.name, "queue_name": "listed"}
        for set_limits, clear_limits in (
            (("set_vhost_limits", "-p", "/"), ("clear_vhost_limits", "-p", "/")),
            (("set_user_limits", "guest"), ("clear_user_limits", "guest", "all")),
        ):
            assert control(third, *set_limits, '{"max-connections": 2}') == 0
            for node in cluster.nodes:
                # Connections of a user are counted by others once there is a limit.
                eventually(partial(is_refused, node), "the limit is reached", PATIENCE)
            assert control(third, *clear_limits) == 0
        (pid,) = (
            row["pid"]
            for row in listed(third, "connections", "pid", "node")
            if row["node"] == second.name
        )
        assert control(first, "close_connection", pid, "why not") == 0
        with pytest.raises(ConnectionClosedByBroker):
            other.process_data_events(PATIENCE)
        assert control(first, "close_session", "elsewhere") == 0
    eventually(lambda: not where(first, "connections"), "they have gone", PATIENCE)


def test_events_of_all_nodes_come_once(cluster: Cluster) -> None:
    first, second, third = cluster.nodes
    with connected(second) as watching, connected(third) as other:
        channel = watching.channel()
        channel.queue_declare("events", exclusive=True)
        for key in ("queue.created", "channel.created"):
            channel.queue_bind("events", "amq.rabbitmq.event", key)
        other.channel()
        declare(first, "told")
        other.channel().queue_declare("end", exclusive=True)
        keys: list[str] = []

        def ended() -> bool:
            method, properties, _ = channel.basic_get("events", auto_ack=True)
            if method is not None:
                name = properties.headers["name"]
                keys.append(name if method.routing_key == "queue.created" else "a channel")
            return "end" in keys

        eventually(ended, "the last event has come", PATIENCE)
        assert sorted(keys) == ["a channel"] * 3 + ["end", "told"]


def test_what_is_declared_on_one_node_is_on_all_also_on_those_that_were_away(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """S2-01, S4-01."""
    first, second, third = cluster.nodes
    declare(first, "replicated", **{"x-queue-type": "quorum"})
    declare(second, "at-second")
    for node in cluster.nodes:
        assert routes(node, "replicated")
        assert routes(node, "at-second")
        assert knows(node, "of-settings", capsys)
    assert control(third, "add_user", "anna", "anna") == 0
    assert control(first, "set_permissions", "anna", ".*", ".*", ".*") == 0
    with connected(second, "anna") as connection:
        assert connection.is_open
    # The node that coordinates ends; others go on, and it hears of it when it is back.
    leader = coordinator(cluster)
    here, there = (node for node in cluster.nodes if node is not leader)
    leader.kill()
    declare(here, "meanwhile", **{"x-queue-type": "quorum"})
    assert routes(there, "meanwhile")
    leader.start()
    cluster.wait_ready()
    assert routes(leader, "meanwhile")
    # A node whose disk was lost is given everything again.
    lost = here
    lost.kill()
    shutil.rmtree(lost.folder / "data")
    lost.start()
    cluster.wait_ready()
    eventually(lambda: knows(lost, "meanwhile", capsys), "the lost node is filled", PATIENCE)
    assert routes(lost, "replicated")
    declare(lost, "after", **{"x-queue-type": "quorum"})
    assert routes(first, "after")
    with connected(lost, "anna") as connection:
        assert connection.is_open


def test_a_queue_has_as_many_copies_as_it_wants(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """S3-24: and is used from every node, whether it has a copy or not. The last test of this cluster: a group of two
    does not go on if a node has lost its disk, as in another one."""
    first = cluster.nodes[0]
    for copies in (1, 2, 5):
        arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": copies}
        declare(first, f"copies-of-{copies}", **arguments)
    assert control(first, "list_queues", "--formatter", "json", "name", "members") == 0
    rows = json.loads(capsys.readouterr().out)
    members = {row["name"]: row["members"] for row in rows if row["name"].startswith("copies-of")}
    assert [len(members[f"copies-of-{copies}"]) for copies in (1, 2, 5)] == [1, 2, 3]
    for node in cluster.nodes:
        assert routes(node, "copies-of-2")
    kept = next(node for node in cluster.nodes if node.name in members["copies-of-2"])
    with connected(kept) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "copies-of-2", b"m")
    kept.kill()
    kept.start()
    cluster.wait_ready()

    def still_there() -> bool:
        with connected(first) as connection:
            found = connection.channel().queue_declare("copies-of-2", passive=True)
            return bool(found.method.message_count == 1)

    eventually(still_there, "its message is there", PATIENCE)
