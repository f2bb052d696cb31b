"""The topology's queues in the engine: there when declared, gone when deleted, whoever was down meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fluxmq.engine.names import QueueInfo, dead_letter_config
from fluxmq.ipc.topology_client import AWAY_SECONDS
from fluxmq.routing.topology.changes import (
    AddVhost,
    ClearPolicy,
    DeclareQueue,
    DeleteQueue,
    DeleteVhost,
    DropOwner,
    FinishMigration,
    MigrateQueue,
    SetPolicy,
)
from fluxmq.routing.topology.records import Policy, QueueRecord, Vhost
from fluxmq.shards.amqp.declared import LEFT_SECONDS, of_clients
from tests.unit.engine.asking import ask
from tests.unit.shards.amqp.support import AmqpNode, Consumer, Publisher, contents

MakeAmqp = Callable[..., AmqpNode]


def names_of(node: AmqpNode, vhost: str = "/") -> list[str]:
    """The queues that control knows."""
    return sorted(queue.name for queue in node.control.topology.queues(vhost))


def test_a_declared_queue_is_in_the_engine_when_its_declarer_is_answered(
    make_amqp: MakeAmqp,
) -> None:
    node = make_amqp(2)
    for number in range(8):
        node.queue(f"q{number}", shard=number % 2, arguments={"x-max-length": number + 1})
        assert node.engine(f"q{number}").config.max_length == number + 1
    assert {node.hosts(f"q{number}") for number in range(8)} == {0, 1}
    opened = {name for shard in node for name in shard.queues.service.groups}
    assert opened == {queue.group for queue in node.control.topology.queues()}


def test_queues_in_memory_live_on_the_shard_of_their_declarer(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    for shard in (0, 1):
        node.queue(f"passing{shard}", shard=shard, durable=False)
        assert node.hosts(f"passing{shard}") == shard


def test_policies_change_the_limits_of_queues_that_are_there(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    short = node.queue("short")
    node.queue("long")
    publisher = Publisher(node)
    publisher.publish("", "short", *(b"%d" % number for number in range(5)))
    policy = Policy("/", "p", "^short$", "queues", 0, {"max-length": 2})
    node.control.change(SetPolicy(policy))
    node.settle()
    assert node.engine("short").config.max_length == 2
    assert node.engine("long").config.max_length == 0
    assert contents(node, short) == [b"3", b"4"]
    node.control.change(ClearPolicy("/", "p"))
    node.settle()
    assert node.engine("short").config.max_length == 0


def test_a_vhost_takes_its_queues_along(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    node.control.change(AddVhost(Vhost("other")))
    for number in range(4):
        node.queue(f"q{number}", vhost="other")
    node.queue("q0")
    node.control.change(DeleteVhost("other"))
    node.settle()
    assert [node.engine(f"q{number}", "other") for number in range(4)] == [None] * 4
    assert node.engine("q0") is not None


def test_the_last_consumer_takes_an_auto_delete_queue_along(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    queue = node.queue("work", auto_delete=True)
    kept = node.queue("kept")
    consumers = [Consumer(node, queue, shard) for shard in (0, 1)]
    other = Consumer(node, kept)
    consumers[0].leave()
    assert names_of(node) == ["kept", "work"]
    consumers[1].leave()
    other.leave()
    assert names_of(node) == ["kept"]
    assert node.engine("work") is None


def test_a_queue_that_expired_is_taken_out_of_the_topology(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    for number in range(4):
        node.queue(f"q{number}", arguments={"x-expires": 5000})
    node.queue("kept")
    node.advance(3)
    assert len(names_of(node)) == 5
    node.advance(4)
    node.settle()
    assert names_of(node) == ["kept"]
    assert [node.engine(f"q{number}") for number in range(4)] == [None] * 4


def test_an_expiry_that_control_did_not_hear_of_is_told_again(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    node.queue("work", arguments={"x-expires": 1000})
    node.control.away = True
    node.advance(LEFT_SECONDS - 1)
    assert node.engine("work") is None
    assert names_of(node) == ["work"]
    node.control.begin()
    node.advance(LEFT_SECONDS)
    assert names_of(node) == []


@pytest.mark.parametrize("used_again", [False, True])
def test_a_last_leave_that_control_did_not_hear_of_is_told_again(
    make_amqp: MakeAmqp, used_again: bool
) -> None:
    node = make_amqp()
    queue = node.queue("work", auto_delete=True)
    consumer = Consumer(node, queue)
    node.control.away = True
    consumer.leave()
    node.advance(5)
    if used_again:
        Consumer(node, queue)
    node.advance(AWAY_SECONDS)
    assert names_of(node) == ["work"]
    node.control.begin()
    node.advance(AWAY_SECONDS)
    assert names_of(node) == (["work"] if used_again else [])


def test_a_deletion_is_made_once(make_amqp: MakeAmqp) -> None:
    """Who hosts the queue leaves its end in the topology to who asked for it: the next of its name may be there."""
    node = make_amqp(2)
    queue = node.queue("work")
    host = node.hosts("work")
    asked: list[int] = []
    node.amqp(host).declared._change = lambda _changes, _done: asked.append(host)
    Publisher(node).publish("", "work", b"1", b"2")
    assert node.delete(queue, shard=1 - host) == 2
    again = node.queue("work", shard=1 - host)
    node.advance(2 * LEFT_SECONDS)
    assert asked == []
    assert contents(node, again) == []
    assert node.engine("work") is not None


def test_a_queue_that_only_the_engine_lost_is_taken_out_in_the_end(make_amqp: MakeAmqp) -> None:
    """Whoever had it deleted died before it was taken out of the topology."""
    node = make_amqp()
    node.queue("work")
    ask(node, 0, "delete", "work", False, False)
    assert names_of(node) == ["work"]
    node.advance(LEFT_SECONDS + 1)
    node.settle()
    assert names_of(node) == []


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_declared_behind_the_end_of_one_of_its_name_is_another(
    make_amqp: MakeAmqp, durable: bool
) -> None:
    node = make_amqp(2)
    first = node.queue("work", durable=durable)
    host = node.hosts("work")
    Publisher(node).publish("", "work", b"old")
    node.settle()
    node.control.change(DeleteQueue("/", "work"), DeclareQueue(first))
    assert contents(node, first) == [b"old"], "nothing happened to it"
    # Both in one message to the shards, as when they are behind.
    node.control.held = True
    done: list[object] = []
    client = node.amqp(1 - host).topology
    client.change([DeleteQueue("/", "work")], done.append)
    client.change([DeclareQueue(first)], done.append)
    node.control.work()
    node.control.held = False
    assert done == [None, None]
    publisher = Publisher(node, 1 - host)
    node.settle()
    publisher.publish("", "work", b"new")
    assert publisher.answers() == [("basic.ack", 1, False)]
    assert contents(node, first, 1 - host) == [b"new"]
    assert names_of(node) == ["work"]
    assert {shard.queues.names.find("work") for shard in node} == {
        node[host].queues.names.find("work")
    }


def test_another_owners_queue_is_another(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    one = node.queue("mine", durable=False, exclusive=True, owner="c1")
    Publisher(node).publish("", "mine", b"secret")
    node.settle()
    two = QueueRecord("/", "mine", exclusive=True, owner="c2", group=one.group)
    node.control.change(DropOwner("c1"), DeclareQueue(two))
    assert contents(node, two) == []


# Shards that were down


def test_what_was_deleted_while_its_shard_was_down_ends_there(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, queues=({"name": "configured"},))
    node.control.change(AddVhost(Vhost("other")))
    for number in range(4):
        node.queue(f"q{number}")
        node.queue(f"q{number}", vhost="other")
    down = node.hosts("q0")
    node.kill(down)
    node.control.change(DeleteVhost("other"))
    node.control.change(*(DeleteQueue("/", f"q{number}") for number in range(4)))
    node.start(down)
    node.settle()
    assert [node.engine(f"q{number}") for number in range(4)] == [None] * 4
    assert [node.engine(f"q{number}", "other") for number in range(4)] == [None] * 4
    assert node.engine("configured") is not None


def test_another_type_takes_the_place_of_what_was_deleted_meanwhile(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    queue = node.queue("work")
    down = node.hosts("work")
    node.kill(down)
    stream = QueueRecord("/", "work", "stream", durable=True, group=queue.group)
    node.control.change(DeleteQueue("/", "work"), DeclareQueue(stream))
    node.start(down)
    node.settle()
    assert node.engine("work").is_stream


def test_what_was_declared_while_its_shard_was_down_is_made_there(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    down = node.hosts(node.queue("work").name)
    node.kill(down)
    done: list[object] = []
    others = [f"q{number}" for number in range(6)]
    broker = node.amqp(1 - down).broker
    for name in others:
        queue = QueueRecord("/", name, durable=True)
        broker.change([DeclareQueue(replace(queue, group=broker.group_for(queue)))], done.append)
    node.advance(1)
    assert len(done) < len(others), "some of them wait for their shard"
    node.start(down)
    node.advance(1)
    assert done == [None] * len(others)
    assert all(node.engine(name) is not None for name in others)


def test_a_queue_whose_shard_stays_away_is_given_up(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    queue = node.queue("work")
    down = node.hosts("work")
    node.kill(down)
    told: list[object] = []
    node.amqp(1 - down).broker.queue_status(queue, told.append)
    node.advance(5)
    assert told == []
    node.advance(10)
    assert told == [None]
    node.start(down)


def test_queues_and_messages_survive_their_shard(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    queue = node.queue("work")
    gone = node.queue("passing", durable=False)
    publisher = Publisher(node)
    publisher.publish("", "work", b"1", b"2")
    assert publisher.answers() == [("basic.ack", 2, True)]
    node.restart(node.hosts("work"))
    node.settle()
    assert contents(node, queue) == [b"1", b"2"]
    node.restart(0)
    node.settle()
    assert node.control.topology.queue("/", gone.name) is None


def test_control_comes_back_with_all_it_knew(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    queue = node.queue("work")
    node.control.held = True
    done: list[object] = []
    late = QueueRecord("/", "late", durable=True)
    late = replace(late, group=node.amqp().broker.group_for(late))
    node.amqp().broker.change([DeclareQueue(late)], done.append)
    node.control.die()
    Publisher(node).publish("", "work", b"1")
    assert contents(node, queue) == [b"1"], "messages need no control"
    node.control.held = False
    node.control.begin()
    node.settle()
    assert done == [None]
    assert node.engine("late") is not None
    assert contents(node, queue) == [b"1"]


def test_nothing_is_asked_of_a_group_that_is_about_to_move(make_amqp: MakeAmqp) -> None:
    """What it proposed behind its last snapshot would be left in this shard's log."""
    node = make_amqp()
    node.queue("old")
    group = node.group("old")
    group.leaving = True
    new = QueueRecord("/", "new", durable=True, group=group.name)
    node.control.change(DeclareQueue(new), DeleteQueue("/", "old"))
    node.settle()
    assert group.idle
    assert node.engine("new") is None
    assert node.engine("old") is not None
    group.leaving = False  # it stays
    node.settle()
    assert node.engine("new") is not None
    assert node.engine("old") is None


def test_a_group_that_has_left_is_not_opened_again(make_amqp: MakeAmqp) -> None:
    """Until it is decided where it goes: two shards would lead it."""
    node = make_amqp()
    queues = node[0].queues
    name = node.queue("old").group
    node.checkpoint()
    queues.node_groups.leaving[name] = True
    queues.service.durable.release(name)
    node.control.change(DeclareQueue(QueueRecord("/", "new", durable=True, group=name)))
    node.settle()
    assert queues.service.find(name) is None
    del queues.node_groups.leaving[name]  # it stays
    queues.service.durable.open(name)
    node.settle()
    assert node.engine("old") is not None
    assert node.engine("new") is not None


def test_whose_queues_are_ended() -> None:
    assert not of_clients(dead_letter_config("dead"))
    assert of_clients(dead_letter_config("other\x1fdead"))


def test_a_group_that_came_here_is_not_changed_by_an_old_topology(make_amqp: MakeAmqp) -> None:
    """Its leader before knew more: what it declared stays, what was deleted goes when that is certain."""
    node = make_amqp()
    first = node.queue("first")
    group = node.group("first")
    group.replicated = True
    node.settle()
    driver = node[0].queues.service.groups[group.name].driver
    control = node.control
    # What happened while another member led: a queue was declared, and one was deleted and declared again.
    old = control.topology.revision
    late = QueueRecord("/", "late", durable=True, group=group.name)
    rows = [
        *control.topology.apply(DeclareQueue(late)).rows,
        *control.topology.apply(DeleteQueue("/", "first")).rows,
        *control.topology.apply(DeclareQueue(first)).rows,
    ]
    config = node.amqp().declared.config_of(late)
    group.declare(config, lambda _result: None)
    Publisher(node).publish("", "first", b"1")
    control.held = True
    driver.elections += 1
    node.advance(0.3)
    assert node.engine("late") is not None
    control._tell(node.amqp(), old, rows)
    node.advance(0.3)
    assert contents(node, first) == [b"1"], "of the one that was declared again"
    # It is certain now: what the topology does not have is deleted.
    stray = QueueRecord("/", "stray", durable=True, group=group.name)
    group.declare(node.amqp().declared.config_of(stray), lambda _result: None)
    node.advance(0.3)
    assert node.engine("stray") is not None
    control.work()
    control.held = False
    node.advance(0.3)
    assert node.engine("stray") is None
    assert node.engine("late") is not None
    assert node.engine("first") is not None
    control.change(DeleteQueue("/", "late"))
    node.settle()
    assert node.engine("late") is None


def test_what_a_follower_has_not_is_no_reason_to_delete_it(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    queue = node.queue("work", arguments={"x-expires": 60_000})
    group = node.group("work")
    group.replicated = True
    node.settle()
    node.control.held = True  # what is asked of it is not heard
    group.delete(queue.name, False, False, lambda _answer: None)
    node.settle()
    node[0].queues.service.groups[group.name].driver.leading = False
    node.control._asked.clear()
    node.control.held = False
    node.advance(20)
    assert node.engine("work") is None
    assert node.control.topology.queue("/", "work") is not None


def test_a_follower_of_the_group_that_a_queue_left_deletes_nothing(make_amqp: MakeAmqp) -> None:
    """It led the group once, so what it knows of the topology counts as current: whoever leads deletes what is left."""
    node = make_amqp()
    queue = node.queue("work")
    group = node.group("work")
    group.replicated = True
    node.settle()
    node[0].queues.service.groups[group.name].driver.leading = False
    node.control.change(MigrateQueue("/", "work", group.name, "elsewhere", "aa"))
    node.control.change(FinishMigration("/", "work", "aa"))
    node.settle()
    assert group.machine.queue(queue.name) is not None
    names = node[0].queues.names
    assert names.info("work").group == "elsewhere"
    # Who tells of what is left there has not heard of it.
    names.add(QueueInfo("work", group.name, 0))
    assert names.info("work").group == "elsewhere"
