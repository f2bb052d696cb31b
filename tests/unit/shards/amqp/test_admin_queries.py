"""What a shard lists, and what it does, for an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.control.columns import LISTS, QUEUE_MIRRORS, QUEUE_STATIC
from fluxmq.ipc.messages import ERROR_FAILED, ERROR_NOT_FOUND, Failure
from fluxmq.ipc.row_messages import (
    CHANNELS,
    CONNECTIONS,
    CONSUMERS,
    POSITION,
    QUEUES,
    AffectedCount,
    CloseConnections,
    QueueExtent,
    QueueRequest,
    RowsPage,
    RowsRequest,
    TableRow,
)
from fluxmq.routing.topology.changes import AddVhost, SetPolicy
from fluxmq.routing.topology.records import Policy, Vhost
from tests.unit.shards.amqp.support import AmqpClient, AmqpNode, Consumer, Publisher, user

MakeAmqp = Callable[..., AmqpNode]

PEOPLE = (user(),)


def page(node: AmqpNode, wanted: RowsRequest, shard: int = 0) -> RowsPage:
    """One page."""
    answers: list[RowsPage | Failure] = []
    node.amqp(shard).queries.rows(wanted, answers.append)
    (answer,) = answers
    assert isinstance(answer, RowsPage)
    return answer


def rows(node: AmqpNode, what: str, *columns: str, shard: int = 0) -> list[TableRow]:
    """All rows of a shard, with the columns named or all there are."""
    return list(page(node, RowsRequest(what, columns or LISTS[what].columns), shard).rows)


def ordered(node: AmqpNode, verb: str, order: Any) -> AffectedCount | Failure:
    """The answer to an order."""
    answers: list[AffectedCount | Failure] = []
    getattr(node.amqp().queries, verb)(order, answers.append)
    node.settle()
    (answer,) = answers
    return answer


def opened(node: AmqpNode, shard: int = 0) -> AmqpClient:
    """A client with channel 1."""
    client = AmqpClient(node, shard)
    client.send(1, "channel.open")
    return client


@pytest.mark.parametrize("what", [QUEUES, CONNECTIONS, CHANNELS, CONSUMERS])
def test_every_column_is_told(make_amqp: MakeAmqp, what: str) -> None:
    node = make_amqp(people=PEOPLE)
    node.queue("q")
    client = opened(node)
    client.send(1, "basic.consume", queue="q", consumer_tag="t")
    (row,) = rows(node, what)
    columns = set(LISTS[what].columns)
    of_control = {*QUEUE_STATIC, *QUEUE_MIRRORS}
    assert columns - set(row) <= (of_control if what == QUEUES else {"node"})


def test_numbers_of_queues(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    lasting = node.queue("lasting")
    node.queue("passing", durable=False)
    node.control.change(SetPolicy(Policy("/", "p", "^lasting$", "queues", 0, {"max-length": 9})))
    node.settle()
    publisher = Publisher(node)
    for name in ("lasting", "passing"):
        publisher.publish("", name, b"1", b"2", b"3")
    node.settle()
    consumer = Consumer(node, lasting)
    found = {row["name"]: row for row in rows(node, QUEUES)}
    kept, lost = found["lasting"], found["passing"]
    counts = ("messages", "messages_ready", "messages_unacknowledged", "messages_persistent")
    assert [kept[name] for name in counts] == [3, 0, 3, 3]
    assert [lost[name] for name in counts] == [3, 3, 0, 0]
    assert (kept["consumers"], lost["consumers"]) == (1, 0)
    assert (kept["durable"], lost["durable"]) == (True, False)
    assert (kept["policy"], lost["policy"]) == ("p", "")
    assert kept["group"] == lasting.group
    assert kept["members"] == kept["online"] == ["shard-0"]
    assert kept["state"] == "running"
    consumer.leave()


def test_a_position_says_from_where_on_messages_are_left(make_amqp: MakeAmqp) -> None:
    """Purging, and settling in another order, leave what is not settled."""
    node = make_amqp(people=PEOPLE)
    node.queue("q")
    publisher, client = Publisher(node), opened(node)

    def position() -> QueueExtent:
        node.settle()
        (row,) = rows(node, QUEUES, POSITION)
        return QueueExtent(*row[POSITION])

    identity, *begin = position()
    assert begin == [0, 0]
    publisher.publish("", "q", b"1", b"2", b"3")
    assert position() == (identity, 0, 3)
    for _ in range(2):
        client.send(1, "basic.get", queue="q")
    assert position() == (identity, 0, 3), "they are unacknowledged"
    client.send(1, "basic.ack", delivery_tag=2)
    publisher.publish("", "q", b"4")
    assert position() == (identity, 0, 4), "the oldest is"
    client.send(1, "basic.ack", delivery_tag=1)
    assert position() == (identity, 2, 4)
    ordered(node, "purge_queue", QueueRequest("/", "q"))
    assert position() == (identity, 4, 4)
    ordered(node, "delete_queue", QueueRequest("/", "q"))
    node.queue("q")
    assert position().identity != identity


def test_rows_of_named_queues_come_from_who_has_them(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    for shard in (0, 1):
        node.queue(f"q{shard}", shard=shard, durable=False)
    names = tuple(("/", name) for name in ("q0", "q1", "q2"))
    for shard in (0, 1):
        told = page(node, RowsRequest(QUEUES, ("name", "leader"), names=names), shard)
        assert told.rows == ({"name": f"q{shard}", "leader": f"shard-{shard}"},)


def test_a_page_says_where_the_next_begins(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    for number in range(3):
        node.queue(f"q{number}")
    names = {row["name"] for row in page(node, RowsRequest(QUEUES, ("name",), after=1)).rows}
    assert len(names) == 2
    assert page(node, RowsRequest(QUEUES, ("nothing",), after=2)).rows == ({},)


def test_connections_of_both_protocols(make_amqp: MakeAmqp) -> None:
    node = make_amqp(people=PEOPLE, auth={"anonymous": {"allow": "always"}})
    client = opened(node)
    node.connect(0, "sensor")
    found = {row["protocol"]: row for row in rows(node, CONNECTIONS)}
    amqp, mqtt = found["AMQP 0-9-1"], found["MQTT 5.0"]
    assert (amqp["user"], amqp["vhost"], amqp["auth_mechanism"]) == ("anna", "/", "PLAIN")
    assert (amqp["peer_host"], amqp["peer_port"]) == ("127.0.0.1", 50001)
    assert (amqp["channels"], amqp["channel_max"], amqp["frame_max"]) == (1, 10, 131_072)
    assert (amqp["state"], amqp["ssl"], amqp["send_pend"]) == ("running", False, 0)
    assert amqp["client_properties"] == {"capabilities": {"connection.blocked": True}}
    assert amqp["connected_at"] > 0
    assert mqtt["connected_at"] == amqp["connected_at"]
    assert (mqtt["name"], mqtt["state"], mqtt["ssl"]) == ("sensor", "running", False)
    (state,) = node.amqp().handler.clients
    state.pause()
    assert rows(node, CONNECTIONS, "protocol", "state")[0]["state"] == "flow"
    state.resume()
    client.send(0, "connection.close", reply_code=200, reply_text="")
    assert [row["protocol"] for row in rows(node, CONNECTIONS)] == ["MQTT 5.0"]


def test_channels(make_amqp: MakeAmqp) -> None:
    node = make_amqp(people=PEOPLE)
    node.queue("q")
    client = opened(node)
    client.send(1, "tx.select")
    client.send(2, "channel.open")
    client.send(2, "confirm.select")
    client.send(2, "basic.qos", prefetch_count=7)
    for _ in range(3):
        client.publish(2, "", "q", b"x")
    client.send(1, "basic.consume", queue="q", consumer_tag="t")
    client.send(1, "basic.ack", delivery_tag=2, multiple=True)
    client.publish(1, "", "q", b"x")
    first, second = rows(node, CHANNELS)
    assert (first["transactional"], first["confirm"]) == (True, False)
    counts = ("messages_unacknowledged", "acks_uncommitted", "messages_uncommitted")
    assert [first[name] for name in counts] == [1, 2, 1]
    assert (first["consumer_count"], second["consumer_count"]) == (1, 0)
    assert (second["confirm"], second["prefetch_count"]) == (True, 7)
    assert second["messages_unconfirmed"] == 0
    client.send(1, "tx.rollback")
    first, second = rows(node, CHANNELS)
    assert [first[name] for name in counts] == [3, 0, 0]
    (state,) = node.amqp().handler.clients
    state.pause()
    assert {each["state"] for each in rows(node, CHANNELS)} == {"flow"}
    state.resume()
    client.send(2, "basic.consume", queue="none")
    assert [each["state"] for each in rows(node, CHANNELS)] == ["running", "closing"]


def test_consumers_and_which_is_active(make_amqp: MakeAmqp) -> None:
    node = make_amqp(people=PEOPLE)
    node.queue("single", arguments={"x-single-active-consumer": True})
    node.queue("shared")
    client = opened(node)
    for tag in ("one", "two"):
        client.send(1, "basic.consume", queue="single", consumer_tag=tag)
        client.send(1, "basic.consume", queue="shared", consumer_tag=f"also {tag}", no_ack=True)

    def activity() -> dict[str, tuple[bool, str]]:
        return {
            row["consumer_tag"]: (row["active"], row["activity_status"])
            for row in rows(node, CONSUMERS)
        }

    assert activity() == {
        "one": (True, "single_active"),
        "also one": (True, "up"),
        "two": (False, "waiting"),
        "also two": (True, "up"),
    }
    acknowledged = {row["consumer_tag"]: row["ack_required"] for row in rows(node, CONSUMERS)}
    assert acknowledged == {"one": True, "also one": False, "two": True, "also two": False}
    client.send(1, "basic.cancel", consumer_tag="one")
    assert activity()["two"] == (True, "single_active")


def test_who_is_active_elsewhere_is_not_told(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, people=PEOPLE)
    node.queue("single", arguments={"x-single-active-consumer": True})
    away = 1 - node.hosts("single")
    client = opened(node, away)
    client.send(1, "basic.consume", queue="single", consumer_tag="t")
    (row,) = rows(node, CONSUMERS, "active", "activity_status", shard=away)
    assert row == {"active": None, "activity_status": None}


def test_connections_are_closed_by_pid_vhost_or_all(make_amqp: MakeAmqp) -> None:
    node = make_amqp(people=PEOPLE)
    clients = [opened(node) for _ in range(3)]
    first, *_ = (row["pid"] for row in rows(node, CONNECTIONS, "pid"))
    close = "close_connections"
    assert ordered(node, close, CloseConnections(first, None, "tired")) == AffectedCount(1)
    assert ordered(node, close, CloseConnections("nobody", None, "")) == AffectedCount(0)
    assert ordered(node, close, CloseConnections(None, "elsewhere", "")) == AffectedCount(0)
    assert ordered(node, close, CloseConnections(None, "/", "all")) == AffectedCount(2)
    ends = [each for client in clients for each in client.read() if each.name[:5] == "conne"]
    assert [each.name for each in ends] == ["connection.close"] * 3
    assert {each.fields["reply_code"] for each in ends} == {320}
    assert sorted("tired" in each.fields["reply_text"] for each in ends) == [False, False, True]


def test_queues_are_purged_and_deleted(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    node.control.change(AddVhost(Vhost("other")))
    node.queue("q", shard=1)
    Publisher(node).publish("", "q", b"1", b"2")
    assert ordered(node, "purge_queue", QueueRequest("/", "q")) == AffectedCount(2)
    Publisher(node).publish("", "q", b"3")
    refused = ordered(node, "delete_queue", QueueRequest("/", "q", if_empty=True))
    assert isinstance(refused, Failure)
    assert refused.code == ERROR_FAILED
    assert refused.text == "queue 'q' in vhost '/' not empty"
    for verb in ("purge_queue", "delete_queue"):
        missing = ordered(node, verb, QueueRequest("other", "q"))
        assert missing == Failure(ERROR_NOT_FOUND, "no queue 'q' in vhost 'other'")
    assert ordered(node, "delete_queue", QueueRequest("/", "q")) == AffectedCount(1)
    assert node.engine("q") is None
    assert node.control.topology.queue("/", "q") is None
