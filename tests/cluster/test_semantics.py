"""What a queue means, wherever its leader is: the same tests at the leader and at a follower, with messages forwarded and
read from the follower's copy, over both protocols."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pika.exceptions import ChannelClosedByBroker  # type: ignore[import-untyped]

from fluxmq.model.steady import SLEW_PARTS
from tests.cluster.nodes import Cluster, Node
from tests.cluster.sides import Amqp, Consumer, Got, Mqtt, side
from tests.conformance import wire
from tests.conformance.client import eventually

MODES = ("forward", "replicate")
PLACES = ("leader", "follower")
PROTOCOLS = ("mqtt", "amqp")
TTL_SECONDS = 0.3
KINDS: dict[str, dict[str, Any]] = {
    "work": {},
    "mixed": {},
    "spread": {},
    "dead": {},
    "buried": {"dlq": {"enabled": True}},
    "brief": {"limits": {"message_ttl": f"{TTL_SECONDS:g}s"}},
    "tiny": {"limits": {"max_length": 3, "overflow": "reject-publish"}},
    "limited": {"consumer": {"delivery_limit": 2}},
    "stream": {"type": "stream", "primary_group": "main"},
}
"""Kinds of queues; each mode, place and protocol has one of each, so that no test sees another's messages."""
BURIED = ("dead", "brief", "limited")
"""Kinds whose dead letters go to a queue that has a name in both protocols, `grave_of`."""


def grave_of(queue: str) -> str:
    """The queue that gets another's dead letters."""
    return f"{queue}-grave"


def _queues() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for kind, settings in KINDS.items():
        for mode in MODES:
            replication = {"enabled": True, "distribution_mode": mode}
            for place in PLACES:
                for protocol in PROTOCOLS:
                    name = f"{kind}-{mode}-{place}-{protocol}"
                    found.append({"name": name, "replication": replication, **settings})
                    if kind in BURIED:
                        grave = grave_of(name)
                        found[-1]["dlq"] = {"enabled": True, "topic": f"$queue/{grave}"}
                        found.append({"name": grave, "replication": replication})
    return found


SETTINGS = {"queues": _queues()}


class Case:
    """One combination. ``here``: its protocol at its place; ``queue`` gives the name of its queue of a kind."""

    def __init__(self, cluster: Cluster, mode: str, place: str, protocol: str) -> None:
        self.cluster = cluster
        self.stack = ExitStack()
        self.name = f"{mode}-{place}-{protocol}"
        self.protocol = protocol
        self.place = place
        leader, followers = cluster.leader(), cluster.followers()
        self.node = leader if place == "leader" else followers[0]
        self.other = followers[0] if place == "leader" else followers[1]
        self.here = side(protocol, self.node, self.stack)

    def queue(self, kind: str) -> str:
        """The name of its queue of a kind."""
        return f"{kind}-{self.name}"

    def at(self, node: Node, protocol: str = "") -> Mqtt | Amqp:
        """A protocol at another node."""
        return side(protocol or self.protocol, node, self.stack)


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    """What is spoken."""
    return str(request.param)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """Where the client is."""
    return str(request.param)


@pytest.fixture(params=MODES)
def case(
    cluster: Cluster, place: str, protocol: str, request: pytest.FixtureRequest
) -> Iterator[Case]:
    """Each combination."""
    made = Case(cluster, str(request.param), place, protocol)
    with made.stack:
        yield made


def bodies(consumer: Consumer, count: int) -> list[bytes]:
    """Take and acknowledge so many messages."""
    found = []
    for _ in range(count):
        got = consumer.next()
        assert consumer.ack(got) == 0
        found.append(got.body)
    return found


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Bodies of messages."""
    return [b"%d" % number for number in range(first, first + count)]


def test_what_is_confirmed_is_consumed_once_in_order(case: Case) -> None:
    """S1-15, S1-19, S2-34."""
    queue = case.queue("work")
    consumer = case.here.consume(queue)
    for body in numbered(20):
        assert case.here.publish(queue, body)
    assert bodies(consumer, 20) == numbered(20)
    consumer.nothing()
    consumer.crash()
    after = case.here.consume(queue)
    assert case.here.publish(queue, b"last")
    got = after.next()
    assert (got.body, got.again) == (b"last", False)
    assert after.ack(got) == 0


def test_what_is_given_back_comes_again_and_says_so(case: Case) -> None:
    """S2-34."""
    queue = case.queue("work")
    consumer = case.here.consume(queue)
    assert case.here.publish(queue, b"again")
    first = consumer.next()
    assert not first.again
    assert consumer.again(first) == 0
    second = consumer.next()
    assert (second.body, second.again) == (b"again", True)
    assert consumer.ack(second) == 0


def test_a_crash_gives_back_what_was_not_settled(case: Case) -> None:
    queue = case.queue("work")
    first = case.here.consume(queue)
    for body in numbered(4):
        assert case.here.publish(queue, body)
    held = [first.next() for _ in range(4)]
    assert first.ack(held[0]) == 0
    first.nothing()
    first.crash()
    second = case.here.consume(queue)
    again = [second.next() for _ in range(3)]
    assert [(got.body, got.again) for got in again] == [(got.body, True) for got in held[1:]]
    assert [second.ack(got) for got in again] == [0, 0, 0]
    second.nothing()


def test_a_consumer_holds_no_more_than_it_asked_for(case: Case) -> None:
    queue = case.queue("work")
    consumer = case.here.consume(queue, limit=2)
    for body in numbered(5):
        assert case.here.publish(queue, body)
    held = [consumer.next(), consumer.next()]
    consumer.nothing()
    assert consumer.ack(held[0]) == 0
    third = consumer.next()
    consumer.nothing()
    assert [consumer.ack(got) for got in (held[1], third)] == [0, 0]
    assert [held[0].body, held[1].body, third.body, *bodies(consumer, 2)] == numbered(5)


def test_a_rejected_message_is_a_dead_letter(case: Case) -> None:
    queue = case.queue("dead")
    consumer = case.here.consume(queue)
    assert case.here.publish(queue, b"bad")
    assert consumer.reject(consumer.next()) == 0
    undertaker = case.here.consume(grave_of(queue))
    assert bodies(undertaker, 1) == [b"bad"]
    consumer.nothing()


def test_an_expired_message_is_a_dead_letter(case: Case) -> None:
    queue = case.queue("brief")
    undertaker = case.here.consume(grave_of(queue))
    start = time.monotonic()
    assert case.here.publish(queue, b"stale")
    assert bodies(undertaker, 1) == [b"stale"]
    assert time.monotonic() - start >= TTL_SECONDS
    consumer = case.here.consume(queue)
    assert case.here.publish(queue, b"fresh")
    assert bodies(consumer, 1) == [b"fresh"]


def test_a_full_queue_refuses_and_takes_again(case: Case) -> None:
    queue = case.queue("tiny")
    assert [case.here.publish(queue, body) for body in numbered(5)] == [True] * 3 + [False] * 2
    consumer = case.here.consume(queue)
    assert bodies(consumer, 3) == numbered(3)
    consumer.nothing()
    eventually(lambda: case.here.publish(queue, b"room"), "there is room")
    assert bodies(consumer, 1) == [b"room"]


def test_a_message_given_back_too_often_is_a_dead_letter(case: Case) -> None:
    queue = case.queue("limited")
    consumer = case.here.consume(queue)
    assert case.here.publish(queue, b"poison")
    for again in (False, True):
        got = consumer.next()
        assert got.again is again
        assert consumer.again(got) == 0
    undertaker = case.here.consume(grave_of(queue))
    assert bodies(undertaker, 1) == [b"poison"]
    consumer.nothing()


def test_competing_consumers_on_two_nodes_share_a_queue(case: Case) -> None:
    queue = case.queue("spread")
    consumers = [case.here.consume(queue, 5), case.at(case.other).consume(queue, 5)]
    for body in numbered(10):
        assert case.here.publish(queue, body)
    held = [[consumer.next() for _ in range(5)] for consumer in consumers]
    for consumer, mine in zip(consumers, held, strict=True):
        consumer.nothing()
        assert [consumer.ack(got) for got in mine] == [0] * 5
    assert sorted(got.body for mine in held for got in mine) == numbered(10)
    for mine in held:
        assert [int(got.body) for got in mine] == sorted(int(got.body) for got in mine)


@pytest.mark.parametrize("producer", PROTOCOLS)
def test_a_producer_on_one_node_reaches_a_consumer_on_another_by_a_leader_on_a_third(
    case: Case, producer: str
) -> None:
    """S1-11, S1-16, S2-27, S2-30."""
    queue = case.queue("mixed")
    leader = case.cluster.leader()
    one, two = (node for node in case.cluster.nodes if node is not leader)
    consumer = case.at(two).consume(queue)
    publisher = case.at(one, producer)
    for body in numbered(10):
        assert publisher.publish(queue, body)
    assert bodies(consumer, 10) == numbered(10)
    consumer.crash()
    after = case.at(two).consume(queue)
    assert publisher.publish(queue, b"last")
    assert bodies(after, 1) == [b"last"]


# What one protocol has and the other has not


@pytest.fixture
def mqtt(case: Case) -> Mqtt:
    """The client's side of MQTT."""
    if case.protocol != "mqtt":
        pytest.skip("MQTT's own")
    assert isinstance(case.here, Mqtt)
    return case.here


@pytest.fixture
def amqp(case: Case) -> Amqp:
    """The client's side of AMQP."""
    if case.protocol != "amqp":
        pytest.skip("AMQP's own")
    assert isinstance(case.here, Amqp)
    return case.here


def test_groups_get_a_copy_each_and_a_nack_waits_as_long_as_it_says(case: Case, mqtt: Mqtt) -> None:
    queue = case.queue("spread")
    one, two = mqtt.consume(queue, group="one"), mqtt.consume(queue, group="two")
    workers = mqtt.consume(queue)
    assert mqtt.publish(queue, b"copied")
    assert bodies(two, 1) == bodies(workers, 1) == [b"copied"]
    first = one.next()
    start = time.monotonic()
    assert one.order(first, "nack", ("delay", "200")) == 0
    second = one.next()
    assert second.again
    # The clock of a group may run that much faster while it catches up with the wall clock.
    assert time.monotonic() - start >= 0.2 * (1 - 1 / SLEW_PARTS)
    assert one.ack(second) == 0
    assert one.ack(second) == 0x10  # it is nobody's any more


def test_dead_letters_go_to_a_queue_of_their_own(case: Case, mqtt: Mqtt) -> None:
    queue = case.queue("buried")
    consumer = mqtt.consume(queue)
    assert mqtt.publish(queue, b"bad")
    assert consumer.reject(consumer.next()) == 0
    elsewhere = case.at(case.other)
    got = elsewhere.consume(f"$dlq/{queue}").next()
    assert got.body == b"bad"
    assert got.token[1]["_dlq_reason"] == "broken"


def test_receive_maximum_bounds_what_is_sent_unacknowledged(case: Case, mqtt: Mqtt) -> None:
    queue = case.queue("mixed")
    client = mqtt.client(props=[(wire.RECEIVE_MAXIMUM, 2)])
    props = [(wire.USER_PROPERTY, ("consumer-group", "workers"))]
    client.subscribe(f"$queue/{queue}", qos=1, props=props)
    for body in numbered(3):
        assert mqtt.publish(queue, body)
    held = [client.expect(wire.PUBLISH), client.expect(wire.PUBLISH)]
    assert not client.ping()
    for packet in held:
        client.acknowledge(packet)
    last = client.receive()
    assert [packet.payload for packet in (*held, last)] == numbered(3)
    client.disconnect()


def test_a_stream_is_read_from_where_it_is_asked_and_remembers_commits(
    case: Case, mqtt: Mqtt
) -> None:
    queue = case.queue("stream")
    for body in numbered(5):
        assert mqtt.publish(queue, body)
    main = mqtt.consume(queue, group="main", start="first")
    read: list[Got] = [main.next() for _ in range(5)]
    assert [got.body for got in read] == numbered(5)
    assert [main.ack(got) for got in read[:3]] == [0, 0, 0]
    assert main.order(read[2], "commit") == 0
    main.crash()
    resumed = mqtt.consume(queue, group="main")
    assert [resumed.next().body, resumed.next().body] == numbered(2, 3)
    replay = mqtt.consume(queue, group="replay", start="offset=1")
    assert [replay.next().body for _ in range(4)] == numbered(4, 1)
    since = mqtt.consume(queue, group="since", start=f"timestamp={int(time.time()) - 3600}")
    got = since.next()
    assert got.body == b"0"
    assert got.token[1]["x-work-committed-offset"] == "3"


def test_basic_get_purge_and_counts(case: Case, amqp: Amqp) -> None:
    queue = case.queue("mixed")
    channel = amqp.channel()
    assert channel.basic_get(queue) == (None, None, None)
    for body in numbered(4):
        assert amqp.publish(queue, body)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered, method.message_count) == (b"0", False, 3)
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered) == (b"0", True)
    channel.basic_ack(method.delivery_tag)
    assert channel.queue_declare(queue, passive=True).method.message_count == 3
    assert channel.queue_purge(queue).method.message_count == 3
    assert channel.basic_get(queue) == (None, None, None)


def test_a_transaction_takes_effect_when_it_is_committed(case: Case, amqp: Amqp) -> None:
    queue = case.queue("mixed")
    channel, other = amqp.channel(), amqp.channel()
    channel.tx_select()
    channel.basic_publish("", queue, b"undone")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"done")
    assert other.basic_get(queue) == (None, None, None)
    channel.tx_commit()
    method, _, body = other.basic_get(queue)
    assert body == b"done"
    other.basic_ack(method.delivery_tag)
    assert other.queue_declare(queue, passive=True).method.message_count == 0


def test_an_exclusive_consumer_is_the_only_one_in_the_cluster(case: Case, amqp: Amqp) -> None:
    queue = case.queue("mixed")
    only = amqp.consume(queue, exclusive=True)
    there = case.at(case.other, "amqp")
    assert isinstance(there, Amqp)
    with pytest.raises(ChannelClosedByBroker) as caught:
        there.consume(queue)
    assert caught.value.reply_code == 403
    assert amqp.publish(queue, b"mine")
    assert bodies(only, 1) == [b"mine"]
    only.crash()

    def again() -> Any:
        try:
            return there.consume(queue)
        except ChannelClosedByBroker:
            return None

    after = eventually(again, "the next may consume")
    assert amqp.publish(queue, b"yours")
    assert bodies(after, 1) == [b"yours"]


def test_a_quorum_queue_declared_on_one_node_is_used_on_all(cluster: Cluster) -> None:
    leader, (one, two) = cluster.leader(), cluster.followers()
    with ExitStack() as stack:
        here, there = Amqp(one, stack), Amqp(two, stack)
        arguments = {"x-queue-type": "quorum"}
        here.channel().queue_declare("declared", durable=True, arguments=arguments)
        consumer = there.consume("declared")
        sides: list[Amqp | Mqtt] = [here, there, Amqp(leader, stack), Mqtt(two, stack)]
        for number, side_ in enumerate(sides):
            assert side_.publish("declared", b"%d" % number)
        assert bodies(consumer, 4) == numbered(4)
        consumer.crash()
        here.channel().queue_delete("declared")

        def gone() -> bool:
            try:
                there.channel().queue_declare("declared", passive=True)
            except ChannelClosedByBroker as closed:
                return bool(closed.reply_code == 404)
            return False

        eventually(gone, "the queue is gone everywhere")
