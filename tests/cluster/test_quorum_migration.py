"""Classic queues of three nodes that become quorum queues while they are used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest
from pika.exceptions import ChannelClosedByBroker  # type: ignore[import-untyped]

from fluxmq.cli.data_directory import control_socket
from fluxmq.ipc.migrations import MIGRATE_QUEUE, MIGRATION, Migrate, Migrating
from fluxmq.ipc.polling_client import ControlCaller
from tests.cluster.nodes import Cluster, Node
from tests.cluster.sides import channel_of
from tests.cluster.test_mirrors import HA_ALL, SECONDS, Traffic
from tests.conformance.client import DEADLINE, eventually
from tests.management import ManagementSite

pytestmark = pytest.mark.once

LAZY = {"x-queue-mode": "lazy"}
BODY = b"." * 1000
MANY = 20_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes."""
    cluster = Cluster(tmp_path_factory.mktemp("quorum_migration"), {})
    try:
        cluster.start()
        yield cluster
        cluster.stop()
    finally:
        print(cluster.log())
        cluster.end()


def row_of(node: Node, queue: str) -> dict[str, Any]:
    """The row of a queue as a node lists it."""
    columns = ("name", "type", "policy", "leader", "members", "mirror_pids", "group", "arguments")
    rows = json.loads(node.broker.control("list_queues", "--formatter", "json", *columns))
    (found,) = [row for row in rows if row["name"] == queue]
    return dict(found)


def refused(node: Node, queue: str, **arguments: Any) -> str:
    """Why a declaration is refused."""
    with channel_of(node) as channel:
        given = {name.replace("_", "-"): value for name, value in arguments.items()}
        with pytest.raises(ChannelClosedByBroker) as closed:
            channel.queue_declare(queue, durable=True, arguments=given)
    assert closed.value.reply_code == 406
    return str(closed.value.reply_text)


def test_a_mirrored_queue_that_is_used_becomes_a_quorum_queue(cluster: Cluster) -> None:
    first, second, third = cluster.nodes
    first.broker.control(*HA_ALL)
    queue = "ha.orders"
    with channel_of(first) as channel:
        channel.queue_declare(queue, durable=True, arguments=LAZY)
    assert len(row_of(first, queue)["mirror_pids"]) == 2
    here = Traffic(third, queue, x_cancel_on_ha_failover=True, x_priority=5)
    here.start()
    eventually(lambda: here.confirmed > 50, "it is used", SECONDS)
    told = second.broker.control("migrate-queue", queue, "--type", "quorum")
    assert "is in group 'leader-node2' as a quorum queue" in told, told

    confirmed = here.confirmed
    eventually(lambda: here.confirmed > confirmed + 50, "it is used", SECONDS)
    print(f"longest pause of the move {here.longest * 1000:.0f} ms")
    row = row_of(first, queue)
    assert (row["type"], row["group"], row["mirror_pids"]) == ("quorum", "leader-node2", None)
    assert row["arguments"] == {"x-queue-type": "quorum", "x-fluxmq-declared-type": "classic"}
    shown = ManagementSite(first.http_port).get(f"queues/%2F/{queue}")
    assert (shown["type"], shown["arguments"]["x-queue-type"]) == ("quorum", "quorum")
    with channel_of(third) as channel:
        # Programs declare what they always did, or what it is now.
        channel.queue_declare(queue, durable=True, arguments=LAZY)
        channel.queue_declare(queue, durable=True)
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    text = refused(third, queue, x_max_length=5)
    assert "inequivalent arg 'x-max-length'" in text
    # Its policy mirrors classic queues only, and nobody moves it back.
    first.broker.control(*HA_ALL[:-1], '{"ha-mode":"exactly","ha-params":2}')
    with ControlCaller(control_socket(second.folder / "data"), DEADLINE) as caller:
        where = caller.call(MIGRATION, Migrate("/", queue).to_body())
    assert Migrating.from_body(where) == Migrating("leader-node2", "", "", "quorum")

    assert cluster.leader("leader-node2") is second
    second.kill()
    confirmed = here.confirmed
    eventually(lambda: here.confirmed > confirmed + 50, "others go on by votes", SECONDS)
    here.finish()
    print(f"{here.confirmed} confirmed, longest pause {here.longest * 1000:.0f} ms")
    assert row_of(first, queue)["leader"] in (first.name, third.name)
    second.start()
    second.broker.wait_ready(SECONDS)


def test_a_change_that_is_aborted_leaves_a_classic_queue(cluster: Cluster) -> None:
    first, *_ = cluster.nodes
    queue = "kept"
    with channel_of(first) as channel:
        channel.queue_declare(queue, durable=True)
    parameters = pika.ConnectionParameters("127.0.0.1", first.amqp_port, heartbeat=0)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        for number in range(MANY):
            channel.basic_publish("", queue, b"%d" % number + BODY)

        def count() -> int:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

        eventually(lambda: count() == MANY, "all are there", SECONDS)
        group = row_of(first, queue)["group"]
        # Aborted long before 20 MB are there.
        with ControlCaller(control_socket(first.folder / "data"), DEADLINE) as caller:
            wanted = Migrate("/", queue, "default", type="quorum")
            begun = caller.call(MIGRATE_QUEUE, wanted.to_body())
            assert Migrating.from_body(begun).becomes == "quorum"
            ended = caller.call(MIGRATE_QUEUE, Migrate("/", queue, abort=True).to_body())
        assert Migrating.from_body(ended) == Migrating(f"{group}@{first.name}", "", "", "classic")
        assert row_of(first, queue)["type"] == "classic"
        assert count() == MANY
        told = first.broker.control("migrate-queue", queue, "--type", "quorum", "--to", "default")
        assert "is in group 'default' as a quorum queue" in told, told
        assert count() == MANY
        method, _, body = channel.basic_get(queue, auto_ack=True)
        assert method is not None
        assert body == b"0" + BODY


def test_another_leader_goes_on_with_the_change(cluster: Cluster) -> None:
    first, second, third = cluster.nodes
    first.broker.control(*HA_ALL)
    queue = "ha.many"
    with channel_of(first) as channel:
        channel.queue_declare(queue, durable=True)
    parameters = pika.ConnectionParameters("127.0.0.1", third.amqp_port, heartbeat=0)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        for number in range(MANY):
            channel.basic_publish("", queue, b"%d" % number + BODY)

        def count() -> int:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

        eventually(lambda: count() == MANY, "all are there", SECONDS)
        assert row_of(first, queue)["leader"] == first.name
        with ControlCaller(control_socket(second.folder / "data"), DEADLINE) as caller:
            begun = caller.call(MIGRATE_QUEUE, Migrate("/", queue, type="quorum").to_body())
            first.kill()
            assert Migrating.from_body(begun).moving_to == "leader-node2"
            where = caller.call(MIGRATION, Migrate("/", queue).to_body())
        assert Migrating.from_body(where).becomes == "quorum", "it is not there yet"
        eventually(lambda: row_of(second, queue)["type"] == "quorum", "it is there", SECONDS)
        everything = channel.consume(queue, inactivity_timeout=SECONDS)
        for number, (method, _, body) in enumerate(everything):
            assert method is not None, number
            assert body == b"%d" % number + BODY
            if number == MANY - 1:
                channel.basic_ack(method.delivery_tag, multiple=True)
                break
    first.start()
    first.broker.wait_ready(SECONDS)


def test_queues_that_cannot_become_quorum_queues_say_why(cluster: Cluster) -> None:
    first, *_ = cluster.nodes
    site = ManagementSite(first.http_port)
    with channel_of(first) as channel:
        channel.queue_declare("ranked", durable=True, arguments={"x-max-priority": 5})
        channel.queue_declare("voted", durable=True, arguments={"x-queue-type": "quorum"})
    for queue, why in (
        ("ranked", "cannot become a quorum queue: it has the argument 'x-max-priority'"),
        ("voted", "is of type quorum: only classic queues become quorum queues"),
    ):
        path = f"fluxmq/v1/queues/%2F/{queue}/migration"
        answer = site.ask("PUT", path, {"type": "quorum"})
        assert answer.status == 400, answer
        assert why in answer.body["reason"], answer
    answer = site.ask("PUT", "fluxmq/v1/queues/%2F/voted/migration", {"type": "classic"})
    assert answer.status == 400, answer
    assert "no other change is possible" in answer.body["reason"]
