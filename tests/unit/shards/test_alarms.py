"""Alarms: what a node does while it is short of memory, to MQTT clients on any of its shards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.ipc.memory import Watermarks
from fluxmq.net.reactor import PAUSED_ALARM
from fluxmq.shards.alarms import QUIET_TICKS, RELIEF_SECONDS, Alarms, reason_of
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import Node, Shard, drain, messages

MakeNode = Callable[..., Node]
MARK = 1_000_000
RESUME = 900_000
CRITICAL = 1_250_000
SETTINGS = {"memory": {"high_watermark_bytes": MARK}}


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """Two shards whose mark is a million bytes."""
    return make_node(2, SETTINGS)


def hold(node: Node, *used: int) -> None:
    """The shards hold so many bytes, and have time to notice."""
    node.memory.used[:] = used
    node.advance(1.1)


def send(client: Client, *payloads: bytes, qos: int = 1) -> None:
    """Publish, answers unread."""
    for number, payload in enumerate(payloads, 1):
        client.send(wire.publish(wire.V5, "t", payload, qos=qos, packet_id=number if qos else 0))


def blocked(node: Node) -> int:
    """Connections that are not read because of an alarm."""
    return sum(
        connection.paused & PAUSED_ALARM != 0
        for shard in node
        for connection in shard.reactor.connections.values()
    )


@pytest.mark.parametrize("qos", [0, 1])
def test_publishers_wait_while_memory_is_short_and_lose_nothing(node: Node, qos: int) -> None:
    """Review finding 14: nothing but the kernel's limit ended the growth of a node."""
    publisher = node.connect(0, "publisher")
    reader = node.connect(1, "reader")
    reader.subscribe("t", qos=1)
    send(publisher, b"1", qos=qos)
    assert messages(reader) == [b"1"]
    hold(node, MARK, 0)
    send(publisher, b"2", b"3", qos=qos)
    node.advance(60.0)
    assert messages(reader) == []
    assert blocked(node) == 1
    hold(node, RESUME, 0)
    assert messages(reader) == [], "it ends below the lower mark"
    hold(node, RESUME - 1, 0)
    assert messages(reader) == [b"2", b"3"]
    assert blocked(node) == 0


def test_what_all_shards_hold_counts_together(node: Node) -> None:
    """Review finding 14: a bound for each process would be multiplied by their number."""
    reader = node.connect(1, "reader")
    reader.subscribe("t")
    publisher = node.connect(0, "publisher")
    send(publisher, b"1")
    hold(node, MARK // 2, MARK // 2)
    assert [shard.broker.alarms.raised for shard in node] == [("memory",)] * 2
    send(publisher, b"2")
    assert messages(reader) == [b"1"]
    hold(node, MARK // 2, 0)
    assert messages(reader) == [b"2"]


def test_a_shard_that_ended_holds_nothing(node: Node) -> None:
    """Review finding 14."""
    hold(node, 0, MARK)
    node.kill(1)
    node.advance(1.1)
    assert node[0].broker.alarms.raised == ()


def test_a_new_publisher_waits_from_its_first_publish_on(node: Node) -> None:
    """Review finding 14: the first is taken, as RabbitMQ does it: before, nobody knows that it publishes."""
    hold(node, MARK, 0)
    reader = node.connect(1, "reader")
    reader.subscribe("t")
    publisher = node.connect(0, "publisher")
    reader.subscribe("u")
    both = [wire.publish(wire.V5, topic, topic.encode()) for topic in ("t", "u")]
    publisher.send(b"".join(both))
    node.run()
    send(publisher, b"2")
    assert messages(reader) == [b"t"], "also what came with it waits"
    assert blocked(node) == 1
    hold(node, 0, 0)
    assert messages(reader) == [b"u", b"2"]


def test_consumers_go_on_while_publishers_wait(node: Node) -> None:
    """Review finding 14: what waits has to be able to drain."""
    publisher = node.connect(0, "publisher")
    reader = node.connect(1, "reader", props=((wire.RECEIVE_MAXIMUM, 1),))
    reader.subscribe("t", qos=1)
    send(publisher, b"1", b"2", b"3")
    hold(node, MARK, 0)
    assert messages(reader) == [b"1", b"2", b"3"], "its acknowledgements are read"


def test_a_packet_too_large_to_be_anything_but_a_publish_is_not_read_on(
    make_node: MakeNode,
) -> None:
    """Review finding 14: thousands of packets that are never complete would pass the mark as well."""
    node = make_node(1, {**SETTINGS, "broker": {"max_packet_size": 1 << 20}})
    sender = node.connect(0, "sender")
    large = wire.publish(wire.V5, "t", bytes(900_000), qos=1, packet_id=1)
    sender.send(large[:400_000])
    node.run()
    hold(node, MARK)
    sender.send(large[400_000:450_000])
    node.run()
    assert blocked(node) == 1
    node.advance(RELIEF_SECONDS + 1)
    (goodbye,) = drain(sender)
    assert (goodbye.kind, goodbye.reason) == (wire.DISCONNECT, 0x89), "what it held is let go of"
    assert node[0].broker.alarms.refused["incomplete"] == 1


def test_who_is_not_read_is_not_silent(node: Node) -> None:
    """Review finding 14: keep alive runs while we read, and begins anew when we do again."""
    publisher = node.connect(0, "publisher", keep_alive=2)
    send(publisher, b"1")
    hold(node, MARK, 0)
    send(publisher, b"2")
    node.advance(30.0)
    hold(node, 0, 0)
    assert [packet.kind for packet in drain(publisher)] == [wire.PUBACK] * 2


@pytest.mark.parametrize(("version", "code"), [(wire.V5, 0x89), (wire.V4, 0x03)])
def test_nobody_is_let_in_beyond_the_critical_mark(node: Node, version: int, code: int) -> None:
    """Review finding 14."""
    hold(node, CRITICAL - 1, 0)
    node.connect(0, "early", version)
    hold(node, CRITICAL, 0)
    assert node.client(1, version).connect("late").reason == code
    assert node[1].broker.alarms.refused["connection"] == 1
    hold(node, MARK, 0)
    node.connect(1, "late", version)


def test_a_publisher_that_goes_meanwhile_leaves_nothing_behind(node: Node) -> None:
    """Review finding 14."""
    publisher = node.connect(0, "publisher")
    send(publisher, b"1")
    hold(node, MARK, 0)
    send(publisher, b"2")
    node.run()
    assert len(node[0].broker.alarms.held) == 1
    again = node.connect(0, "publisher")  # which ends the former connection
    node.advance(5.0)
    assert len(node[0].broker.alarms.held) == 0
    hold(node, 0, 0)
    assert again.publish("t", b"3", qos=1) == 0


def raised(shard: Shard) -> tuple[str, ...]:
    return shard.broker.alarms.raised


def test_an_idle_shard_looks_once_a_second_and_a_busy_one_at_each_turn(node: Node) -> None:
    """Review finding 14: between two looks a publisher may send only what fits above the mark."""
    node.advance(1.1)
    node.memory.used[0] = MARK
    shard = node[0]
    shard.timer()
    assert raised(shard) == (), "it has looked less than a second ago"
    publisher = node.connect(0, "publisher")
    for _ in range(QUIET_TICKS + 1):
        send(publisher, b"x")
        node.run()
    shard.timer()
    assert raised(shard) == ("memory",)


def test_what_has_been_freed_is_given_back_before_anybody_is_stopped(node: Node) -> None:
    """Review finding 14: the C library keeps freed memory, and nothing would end an alarm."""
    told: list[tuple[str, ...]] = []
    node[0].broker.alarms.on_change.append(told.append)
    node.memory.freed[0] = 200_000
    hold(node, MARK, 0)
    assert told == []
    node.memory.freed[0] = 200_000
    hold(node, MARK, 0)
    assert told == [("memory",)], (
        "it took a tenth of a second, and may take a twentieth of the time"
    )
    node.advance(1.0)
    assert told == [("memory",), ()]


def test_other_marks_take_effect_at_once(node: Node) -> None:
    """Review finding 14: the settings are live."""
    hold(node, MARK, 0)
    for shard in node:
        shard.resources.configure(Watermarks(1 << 30, 3 * MARK, 2 * MARK, 4 * MARK))
        shard.timer()
    for shard in node:
        shard.timer()
        assert shard.broker.alarms.raised == ()


def test_of_disk_space_mqtt_is_told_message_by_message(node: Node) -> None:
    """Review finding 14: most messages need no disk; those that do are refused with a reason."""
    publisher = node.connect(0, "publisher")
    for shard in node:
        shard.broker.alarms.set(("disk",))
    assert publisher.publish("t", b"1", qos=1) == 0
    assert publisher.publish("t", b"2", qos=1) == 0
    assert blocked(node) == 0


def test_words_for_what_is_short() -> None:
    assert reason_of(("memory",)) == "low on memory"
    assert reason_of(("memory", "disk")) == "low on memory & disk"


def test_changes_are_told_once(node: Node) -> None:
    alarms: Alarms = node[0].broker.alarms
    told: list[tuple[str, ...]] = []
    alarms.on_change.append(told.append)
    for raised in (("memory",), ("memory",), ("memory", "disk"), (), ()):
        alarms.set(raised)
    assert told == [("memory",), ("memory", "disk"), ()]
