"""AMQP's part of a shard: connections told of what happens to the vhost, the user and the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fluxmq.auth.logins import AuthResult, LoginOutcome
from fluxmq.auth.users import User, VhostPermission
from fluxmq.engine.ports import QueueStats
from fluxmq.ipc.user_messages import Users
from fluxmq.model.outcomes import QueueOutcome
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue, DeleteVhost, SetVhostLimits
from fluxmq.routing.topology.records import QueueRecord, Vhost
from fluxmq.sessions.amqp091.refusals import refusal_of
from fluxmq.shards.amqp.consumer_requests import status_of
from tests.unit.shards.amqp.support import (
    EVERYTHING,
    AmqpClient,
    AmqpNode,
    Consumer,
    Publisher,
    contents,
    user,
)

MakeAmqp = Callable[..., AmqpNode]
OTHER = VhostPermission("other", ".*", ".*", ".*")


def set_users(node: AmqpNode, *people: User) -> None:
    """Control tells every shard who there is."""
    for shard in node:
        users = Users(9, people)
        shard.permissions.set_users(users.revision, users.users)
        node.amqp(shard.index).users_changed()
    node.run()


def ended(client: AmqpClient) -> tuple[int, str]:
    """The code and text with which the broker closed a connection."""
    (method,) = client.read()
    assert method.name == "connection.close", method
    return method.fields["reply_code"], method.fields["reply_text"]


def test_connections_of_a_vhost_end_with_it(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user("anna", EVERYTHING, OTHER),))
    node.control.change(AddVhost(Vhost("other")))
    stays = AmqpClient(node)
    clients = [AmqpClient(node, shard, vhost="other") for shard in (0, 1)]
    node.control.change(DeleteVhost("other"))
    for client in clients:
        assert ended(client) == (320, "CONNECTION_FORCED - vhost 'other' is down")
    assert stays.read() == []


@pytest.mark.parametrize(
    ("people", "text"),
    [
        ((), "user 'anna' is deleted or disabled"),
        ((replace(user(), enabled=False),), "user 'anna' is deleted or disabled"),
        ((user("anna", OTHER),), "access to vhost '/' of user 'anna' ended"),
    ],
)
def test_a_user_who_may_not_be_here_any_more_is_disconnected(
    make_amqp: MakeAmqp, people: tuple[User, ...], text: str
) -> None:
    node = make_amqp(2, (user(), user("bert")))
    clients = [AmqpClient(node, shard) for shard in (0, 1)]
    bert = AmqpClient(node, 0, "bert")
    set_users(node, *people, user("bert"))
    for client in clients:
        assert ended(client) == (320, f"CONNECTION_FORCED - {text}")
    assert bert.read() == []


def test_permissions_change_on_open_connections(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),))
    client = AmqpClient(node)
    client.send(1, "channel.open")
    client.send(1, "queue.declare", queue="one")
    assert [each.name for each in client.read()] == ["channel.open-ok", "queue.declare-ok"]
    set_users(node, user("anna", replace(EVERYTHING, configure="^mine")))
    client.send(1, "queue.declare", queue="two")
    (method,) = client.read()
    assert (method.name, method.fields["reply_code"]) == ("channel.close", 403)


def test_publishers_are_told_of_a_full_disk(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),))
    node.queue("work")
    client = AmqpClient(node)
    (hosted,) = node[0].queues.service.groups.values()
    hosted.group.full = True
    node[0].timer()
    # What asks for nothing is told nothing: blocked goes to who publishes.
    client.send(1, "channel.open")
    assert [each.name for each in client.read()] == ["channel.open-ok"]
    client.publish(1, "", "work", b"1")
    assert [each.name for each in client.read()] == ["connection.blocked"]
    late = AmqpClient(node)
    assert node[0].broker.alarms.raised == ("disk",)
    hosted.group.full = False
    node[0].timer()
    assert [each.name for each in client.read()] == ["connection.unblocked"]
    assert late.read() == []


def test_publishers_are_not_read_while_memory_is_short(make_amqp: MakeAmqp) -> None:
    """Review finding 14: `connection.blocked`, and what is published meanwhile waits with its client."""
    node = make_amqp(2, (user(),), memory={"high_watermark_bytes": 1_000_000})
    queue = node.queue("work")
    client, other = AmqpClient(node), AmqpClient(node, 1)
    for each in (client, other):
        each.send(1, "channel.open")
    client.publish(1, "", "work", b"1")
    client.read()
    node.memory.used[1] = 1_000_000  # another shard's
    node.advance(1.1)
    assert [(each.name, each.fields) for each in client.read()] == [
        ("connection.blocked", {"reason": "low on memory"})
    ]
    client.publish(1, "", "work", b"2")
    client.send(0, "connection.close", reply_code=200, reply_text="")
    other.send(1, "confirm.select")
    assert [each.name for each in other.read()] == ["channel.open-ok", "confirm.select-ok"]
    other.publish(1, "", "work", b"3")
    assert [each.name for each in other.read()] == ["connection.blocked", "basic.ack"]
    other.publish(1, "", "work", b"4")
    assert contents(node, queue) == [b"1", b"3"]
    assert client.read() == other.read() == []
    for shard in node:
        assert ("fluxmq_connections_blocked", {}, 1) in list(shard.broker.alarms.samples())
    node.memory.used[1] = 0
    node.advance(1.1)
    assert [each.name for each in client.read()] == ["connection.unblocked", "connection.close-ok"]
    assert [each.name for each in other.read()] == ["connection.unblocked", "basic.ack"]
    assert sorted(contents(node, queue)) == [b"1", b"2", b"3", b"4"]


def test_a_stopped_publisher_keeps_its_connection(make_amqp: MakeAmqp) -> None:
    """Review finding 14: heartbeats that are not read are not missed."""
    node = make_amqp(1, (user(),), memory={"high_watermark_bytes": 1_000_000})
    client = AmqpClient(node, heartbeat=2)
    client.send(1, "channel.open")
    client.publish(1, "", "nowhere", b"1")
    node.memory.used[0] = 1_000_000
    node.advance(60.0)
    node.memory.used[0] = 0
    node.advance(1.1)
    names = [each.name for each in client.read()]
    assert names == ["channel.open-ok", "connection.blocked", "connection.unblocked"]
    assert not client.closed


def test_nothing_is_declared_beyond_the_critical_mark(make_amqp: MakeAmqp) -> None:
    """Review finding 14: every shard holds what is declared; what is there already can be used and deleted."""
    node = make_amqp(1, (user(),), memory={"high_watermark_bytes": 1_000_000})
    node.queue("old")
    client = AmqpClient(node)
    client.send(1, "channel.open")
    node.memory.used[0] = 1_250_000
    node.advance(1.1)
    client.read()
    client.send(1, "queue.declare", queue="old", durable=True)
    assert [each.name for each in client.read()] == ["queue.declare-ok"]
    client.send(1, "queue.declare", queue="new")
    (close,) = client.read()
    assert (close.name, close.fields["reply_code"]) == ("channel.close", 406)
    assert "low on memory" in close.fields["reply_text"]
    assert node.control.topology.queue("/", "new") is None
    client.send(1, "channel.close-ok")
    client.send(1, "channel.open")
    client.send(1, "queue.delete", queue="old")
    assert [each.name for each in client.read()] == ["channel.open-ok", "queue.delete-ok"]
    assert node[0].broker.alarms.refused["declaration"] == 1


def test_the_last_of_several_reasons_ends_the_block(make_amqp: MakeAmqp) -> None:
    """Review finding 14: disk and memory are one kind of alarm."""
    node = make_amqp(1, (user(),))
    client = AmqpClient(node)
    client.send(1, "channel.open")
    client.publish(1, "", "nowhere", b"1")
    client.read()
    alarms = node[0].broker.alarms
    for raised in (("memory", "disk"), ("disk",)):
        alarms.set(raised)
    assert [each.fields for each in client.read()] == [{"reason": "low on memory & disk"}]
    alarms.set(())
    assert [each.name for each in client.read()] == ["connection.unblocked"]


def test_a_vhost_takes_so_many_connections(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),))
    node.control.change(SetVhostLimits("/", {"max-connections": 1}))
    AmqpClient(node)
    with pytest.raises(AssertionError, match=r"max-connections|limit"):
        AmqpClient(node)


def test_everybody_is_told_that_the_node_ends(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),))
    client = AmqpClient(node)
    node.amqp().shut_down()
    assert ended(client) == (
        320,
        "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
    )


def test_what_a_shard_had_in_memory_ends_with_it(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    node.queue("memory", shard=0, durable=False)
    node.queue("other", shard=1, durable=False)
    node.queue("disk", shard=0)
    node.kill(0)
    assert node.control.topology.queue("/", "memory") is not None, "nobody has said so yet"
    node.start(0)
    node.settle()
    assert {each.name for each in node.control.topology.queues("/")} == {"disk", "other"}
    assert node.engine("memory") is None


def test_a_connections_id_names_its_shard(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user(),))
    for shard in (0, 1):
        AmqpClient(node, shard)
        AmqpClient(node, shard)
        owners = [client.info.owner for client in node.amqp(shard).handler.clients]
        assert len(set(owners)) == 2
        assert all(owner.startswith(f"{shard}.") or f"{shard}" in owner for owner in owners)


# The broker's port


def test_a_queue_is_emptied_counted_and_deleted_from_any_shard(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    queue = node.queue("work")
    Publisher(node).publish("", "work", b"1", b"2", b"3")
    for shard in (0, 1):
        told: list[object] = []
        node.amqp(shard).broker.queue_status(queue, told.append)
        node.run()
        (status,) = told
        assert (status.ready, status.consumers) == (3, 0)  # type: ignore[attr-defined]
    consumer = Consumer(node, queue, 1)
    assert getattr(node.delete(queue, 0, if_unused=True), "code", 0) == 406
    consumer.leave()
    purged: list[object] = []
    node.amqp(1).broker.purge(queue, purged.append)
    node.run()
    assert purged == [3]
    Publisher(node).publish("", "work", b"4")
    assert node.delete(queue, 0, if_unused=True) == 1
    assert node.control.topology.queue("/", "work") is None
    assert node.delete(queue, 1) == 0, "there is none"


def test_a_consumer_hears_of_the_end_of_its_queue(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    queue = node.queue("work")
    consumers = [Consumer(node, queue, shard) for shard in (0, 1)]
    node.delete(queue)
    assert [consumer.cancellations for consumer in consumers] == [1, 1]


def test_an_exclusive_consumer_keeps_others_away(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    queue = node.queue("work")
    Consumer(node, queue, 0, exclusive=True)
    refused = Consumer(node, queue, 1)
    (refusal,) = refused.answers
    assert (refusal.code, refusal.text) == (403, "queue 'work' in vhost '/' in exclusive use")


def test_changes_are_refused_as_control_says(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    group = node.queue("work").group
    refusal = node.change(DeclareQueue(QueueRecord("/", "work", auto_delete=True, group=group)))
    assert refusal is not None
    assert refusal.code == 406


def test_groups_of_new_queues(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    group_for = node.amqp(1).broker.group_for
    durable = QueueRecord("/", "q", durable=True)
    assert group_for(QueueRecord("/", "q")) == "ephemeral-1"
    assert group_for(replace(durable, exclusive=True)) == "ephemeral-1"
    assert group_for(durable).startswith("local-")
    assert group_for(replace(durable, type="stream")) == group_for(replace(durable, type="quorum"))
    buffered = make_amqp(storage={"queue_ack_durability": "buffered"})
    assert buffered.amqp().broker.group_for(durable).startswith("buffered-")


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (QueueOutcome.NO_QUEUE, 404),
        (QueueOutcome.EXCLUSIVE, 403),
        (QueueOutcome.IN_USE, 406),
        (QueueOutcome.NOT_EMPTY, 406),
        (QueueOutcome.REFUSED, 406),
        (QueueOutcome.UNAVAILABLE, 541),
        (QueueOutcome.LOCKED, 405),
    ],
)
def test_outcomes_are_reply_codes(outcome: QueueOutcome, code: int) -> None:
    refusal = refusal_of(QueueRecord("/", "q"), outcome)
    assert refusal.code == code
    assert "queue 'q' in vhost '/'" in refusal.text
    assert status_of(QueueStats(outcome)) is None


def test_a_consumer_has_one_filter(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    stream = node.queue("s", type="stream")
    refused = Consumer(node, stream, filters=("a", "b"))
    assert [answer.code for answer in refused.answers] == [406]


@pytest.mark.parametrize(
    ("certificate", "asked", "valid"),
    [("anna", "", True), ("anna", "anna", True), ("anna", "bert", False), ("", "anna", False)],
)
def test_a_certificate_names_its_user(
    make_amqp: MakeAmqp, certificate: str, asked: str, valid: bool
) -> None:
    node = make_amqp(1, (user(), user("bert")))
    AmqpClient(node)
    broker = node.amqp().broker
    (client,) = node.amqp().handler.clients
    client.info.certificate_name = certificate
    told: list[Any] = []
    broker.authenticate(client.info, "EXTERNAL", asked, b"", told.append)
    accepted = AuthResult(LoginOutcome.ACCEPTED, "anna")
    assert told == [accepted if valid else AuthResult(LoginOutcome.DENIED)]


def test_a_certificate_honours_loopback_users(make_amqp: MakeAmqp) -> None:
    """Review finding 12: guest is let in from this machine only, also by EXTERNAL."""
    node = make_amqp(1, (user(), user("guest")))
    AmqpClient(node)
    broker = node.amqp().broker
    (client,) = node.amqp().handler.clients
    client.info.certificate_name = "guest"
    told: list[Any] = []
    broker.authenticate(client.info, "EXTERNAL", "", b"", told.append)
    client.info.peer = "203.0.113.9:5000"
    broker.authenticate(client.info, "EXTERNAL", "", b"", told.append)
    client.info.certificate_name = "nobody"
    broker.authenticate(client.info, "EXTERNAL", "", b"", told.append)
    denied = AuthResult(LoginOutcome.DENIED)
    assert told == [AuthResult(LoginOutcome.ACCEPTED, "guest"), denied, denied]


def test_what_cannot_be_checked_now_is_not_refused(make_amqp: MakeAmqp) -> None:
    """Review finding 8: users not known yet, too many logins, too many failed: all of it passes."""
    node = make_amqp(1, (user(),))
    AmqpClient(node)
    broker = node.amqp().broker
    authentication = node[0].authentication
    (client,) = node.amqp().handler.clients
    told: list[Any] = []
    for _ in range(20):
        authentication.guessing.failed("bert", "127.0.0.1", node.loop.time())
    client.info.peer = "127.0.0.1:1"
    broker.authenticate(client.info, "PLAIN", "bert", b"x", told.append)
    authentication.revision = -1
    client.info.certificate_name = "anna"
    broker.authenticate(client.info, "EXTERNAL", "", b"", told.append)
    broker.authenticate(client.info, "PLAIN", "anna", b"x", told.append)
    outcomes = [each.outcome for each in told]
    assert outcomes == [LoginOutcome.BUSY, LoginOutcome.UNAVAILABLE, LoginOutcome.UNAVAILABLE]


def test_a_new_secret_ends_nothing(make_amqp: MakeAmqp) -> None:
    """Row F4: clients refresh tokens, with whatever they have by then."""
    node = make_amqp(1, (user(),))
    client = AmqpClient(node)
    for secret in ("secret", "a-new-token"):
        client.send(0, "connection.update-secret", new_secret=secret, reason="renewed")
        assert [each.name for each in client.read()] == ["connection.update-secret-ok"]
    client.send(1, "channel.open")
    assert [each.name for each in client.read()] == ["channel.open-ok"]
    assert sum(node[0].authentication.results.values()) == 1, "it is no login"


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("shard", [0, 1])
def test_who_deletes_a_queue_is_answered_before_its_consumers(
    make_amqp: MakeAmqp, durable: bool, shard: int
) -> None:
    """Row F6: wherever the queue is hosted."""
    node = make_amqp(2, (user(),))
    node.queue("q", durable=durable)
    client = AmqpClient(node, shard, capabilities=["consumer_cancel_notify"])
    client.send(1, "channel.open")
    client.send(1, "basic.consume", queue="q", consumer_tag="t")
    client.read()
    node.control.held = True
    client.send(1, "queue.delete", queue="q")
    node.settle()
    assert node.engine("q") is None
    assert client.read() == [], "it is there until control has decided"
    node.control.held = False
    node.control.work()
    assert [each.name for each in client.read()] == ["queue.delete-ok", "basic.cancel"]
