"""What a publish leads to, on real queues: who has to have it before it is confirmed, and who gets it how often."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.queues.limits import PRODUCERS_MAX
from fluxmq.routing.topology.changes import Bind, DeclareQueue, SetPolicy
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, QUEUE, Binding, Policy, QueueRecord
from fluxmq.shards.amqp.publishing import value_identity
from tests.conformance import wire
from tests.unit.engine.support import fill
from tests.unit.shards.amqp.support import AmqpNode, Publisher, contents
from tests.unit.shards.node import drain, messages

MakeAmqp = Callable[..., AmqpNode]
ACK = "basic.ack"
NACK = "basic.nack"


def test_a_message_for_several_queues_is_confirmed_when_all_have_it(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    node.exchange("news", "fanout")
    queues = [node.queue(f"q{number}") for number in range(4)]
    for queue in queues:
        node.bind("news", queue.name)
    assert {node.hosts(queue.name) for queue in queues} == {0, 1}
    publisher = Publisher(node)
    node.hold_syncs()
    assert publisher.publish("news", "", b"1") == 4
    assert publisher.answers() == []
    node.syncers[0].held = False
    node.syncers[0].sync()
    assert publisher.answers() == [], "two of them are not written yet"
    node.hold_syncs(False)
    assert publisher.answers() == [(ACK, 1, False)]
    for queue in queues:
        assert contents(node, queue) == [b"1"]


def test_one_queue_that_refuses_makes_it_a_nack(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    node.exchange("news", "fanout")
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queues = [node.queue("large"), node.queue("small", arguments=full)]
    for queue in queues:
        node.bind("news", queue.name)
    publisher = Publisher(node)
    publisher.publish("news", "", b"1")
    assert publisher.answers() == [(ACK, 1, False)]
    publisher.publish("news", "", b"2")
    assert publisher.answers() == [(NACK, 2, False)]
    assert contents(node, queues[0]) == [b"1", b"2"]
    assert contents(node, queues[1]) == [b"1"]


def test_what_leads_nowhere_is_told(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    publisher = Publisher(node)
    assert publisher.publish("", "nothing", b"1") == 0
    assert publisher.answers() == [(ACK, 1, False)]


def test_a_queue_that_several_ways_lead_to_gets_a_message_once(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    node.exchange("first", "direct")
    node.exchange("second", "fanout")
    queue = node.queue("work")
    for key in ("a", "b", "c"):
        node.bind("first", "work", key)
    node.bind("second", "work")
    through = Binding("/", "first", "second", "exchange", routing_key="a")
    assert node.change(Bind(through)) is None
    publisher = Publisher(node)
    assert publisher.publish("first", "a", b"1", also=("b", "c")) == 1
    assert contents(node, queue) == [b"1"]


def test_expired_messages_are_given_to_nobody(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    queue = node.queue("work")
    publisher = Publisher(node)
    publisher.publish("", "work", b"short", expiry_ms=1000)
    publisher.publish("", "work", b"long", expiry_ms=60_000)
    node.advance(2)
    assert contents(node, queue) == [b"long"]


def test_delayed_messages_come_when_it_is_time(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    node.exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    queues = [node.queue(f"q{number}") for number in range(2)]
    for queue in queues:
        node.bind("later", queue.name, "go")
    publisher = Publisher(node)
    for delay in (5000, 2000):
        routed = publisher.publish("later", "go", b"%d" % delay, headers={"x-delay": delay})
        assert routed == 2
    publisher.publish("later", "go", b"0")
    assert publisher.answers() == [(ACK, 3, True)], "confirmed when they are kept"
    for queue in queues:
        assert contents(node, queue) == [b"0"]
    node.advance(3)
    for queue in queues:
        assert sorted(contents(node, queue)) == [b"0", b"2000"]
    node.advance(3)
    for queue in queues:
        assert sorted(contents(node, queue)) == [b"0", b"2000", b"5000"]


def test_a_queue_keeps_each_value_of_its_header_once(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    node.exchange("news", "fanout")
    once = node.queue("once", arguments={"x-deduplication-header": "id"})
    all_of_them = node.queue("all")
    for queue in (once, all_of_them):
        node.bind("news", queue.name)
    publisher = Publisher(node)
    values = ["a", "b", "a", 7, "7", b"\xff", "c", "a", None]
    for number, value in enumerate(values):
        headers = {"id": value} if value is not None else {"other": 1}
        publisher.publish("news", "", b"%d" % number, headers=headers)
    publisher.publish("news", "", b"9")
    assert publisher.answers() == [(ACK, len(values) + 1, True)], "duplicates are confirmed"
    assert contents(node, all_of_them) == [b"%d" % number for number in range(10)]
    assert contents(node, once) == [b"0", b"1", b"3", b"5", b"6", b"8", b"9"]


def test_a_message_that_says_its_name_is_kept_once_by_every_queue(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    node.exchange("news", "fanout")
    queues = [node.queue(f"q{number}") for number in range(3)]
    for queue in queues:
        node.bind("news", queue.name)
    publisher = Publisher(node)
    names = [(7, 0), (7, 1), (7, 0), (8, 0), None, (7, 2), None, (7, 1), (8, 0)]
    for number, name in enumerate(names):
        publisher.publish("news", "", b"%d" % number, identity=name)
    assert publisher.answers() == [(ACK, len(names), True)], "duplicates are confirmed"
    for queue in queues:
        assert contents(node, queue) == [b"0", b"1", b"3", b"4", b"5", b"6"]


def test_the_queues_own_header_comes_before_the_name_of_a_message(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    node.exchange("news", "fanout")
    by_header = node.queue("by header", arguments={"x-deduplication-header": "id"})
    by_name = node.queue("by name")
    for queue in (by_header, by_name):
        node.bind("news", queue.name)
    publisher = Publisher(node)
    published = [("a", 0), ("a", 1), ("b", 0), (None, 1), (None, 2), ("c", 2)]
    for number, (value, sequence) in enumerate(published):
        headers = {"id": value} if value else None
        publisher.publish("news", "", b"%d" % number, headers=headers, identity=(7, sequence))
    assert publisher.answers() == [(ACK, len(published), True)]
    assert contents(node, by_header) == [b"0", b"2", b"3", b"4", b"5"]
    assert contents(node, by_name) == [b"0", b"1", b"4"]


def test_an_address_of_mqtt_leads_to_the_same_queue(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    queue = node.queue("once", arguments={"x-deduplication-header": "id"})
    publisher = Publisher(node)
    for address in ("once", "$queue/once", "$queue/once/key"):
        assert publisher.publish("", address, b"1", headers={"id": 7}) == 1
    assert contents(node, queue) == [b"1"]


def test_as_many_values_are_remembered_as_the_engine_has_room_for(make_amqp: MakeAmqp) -> None:
    """The newest of them, whatever their hashes."""
    node = make_amqp()
    queue = node.queue("once", arguments={"x-deduplication-header": "id"})
    publisher = Publisher(node)
    count = PRODUCERS_MAX + 10
    for number in range(count):
        publisher.publish("", "once", b"1", headers={"id": number})
    node.settle()
    assert node.engine("once").ready() == count
    for number in range(10, count):
        publisher.publish("", "once", b"1", headers={"id": number})
    node.settle()
    assert node.engine("once").ready() == count
    publisher.publish("", "once", b"forgotten", headers={"id": 0})
    node.settle()
    assert node.engine(queue.name).ready() == count + 1


def test_values_are_told_apart_by_header() -> None:
    assert value_identity("a", "x") == value_identity("a", b"x")
    assert len({value_identity(*each) for each in (("a", "x"), ("b", "x"), ("a", "y"))}) == 3
    producer, sequence = value_identity("a", "x")
    assert producer > 0
    assert 0 <= sequence < 1 << 63


# One space with MQTT


@pytest.mark.parametrize("shard", [0, 1])
def test_addresses_of_mqtt_are_routing_keys_of_the_default_exchange(
    make_amqp: MakeAmqp, shard: int
) -> None:
    node = make_amqp(2, queues=({"name": "configured"},))
    work = node.queue("work")
    publisher = Publisher(node, shard)
    assert publisher.publish("", "$queue/work", b"1") == 1
    assert publisher.publish("", "$queue/work/key", b"2") == 1
    assert publisher.publish("", "$queue/configured", b"3") == 1
    assert publisher.answers() == [(ACK, 3, True)]
    assert contents(node, work) == [b"1", b"2"]
    configured = node[0].queues.names.info("configured")
    state = node.engine(configured.name)
    assert state.ready() == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_subscribers_of_topics_get_what_is_published_to_the_topic_exchange(
    make_amqp: MakeAmqp, qos: int
) -> None:
    node = make_amqp(2)
    subscribers = [node.connect(shard, f"s{shard}") for shard in (0, 1)]
    for subscriber in subscribers:
        subscriber.subscribe("home/+/light", qos=qos)
    publisher = Publisher(node)
    assert publisher.publish("amq.topic", "home.hall.light", b"1", b"2") == 2
    assert publisher.publish("amq.topic", "home.hall", b"3") == 0
    assert publisher.publish("amq.direct", "home.hall.light", b"4") == 0
    for subscriber in subscribers:
        assert messages(subscriber) == [b"1", b"2"]
    node.settle()
    assert publisher.answers()[-1][:2] == (ACK, 4)


@pytest.mark.parametrize("also", [(), ("home.hall", "$queue.work", "$dlq.work", "$queue.new")])
def test_the_topic_exchange_reaches_no_queue_by_its_address(
    make_amqp: MakeAmqp, also: tuple[str, ...]
) -> None:
    """Review finding 5: write permission on `amq.topic` appends to no queue that is not bound to it."""
    queues = ({"name": "work", "dlq": {"enabled": True}},)
    node = make_amqp(2, queues=queues, auth={"anonymous": {"subscribe": ("#", "$else/#")}})
    node.queue("mine")
    watcher = node.connect(0, "watcher")
    watcher.subscribe("$else/#", qos=1)
    publisher = Publisher(node)
    for key in ("$queue.work", "$dlq.work", "$queue.mine", "$queue.new", "$else.where", "$"):
        assert publisher.publish("amq.topic", key, b"1", also=also) == 0
    node.settle()
    assert [node.engine(name).ready() for name in ("work", "$dlq/work", "mine")] == [0, 0, 0]
    assert node.engine("new") is None, "nor is a queue made"
    assert messages(watcher) == []


def test_bindings_of_the_topic_exchange_match_whatever_key(make_amqp: MakeAmqp) -> None:
    """Review finding 5: who may bind a queue decides what it gets, also of keys that begin with `$`."""
    node = make_amqp()
    node.queue("victim")
    bound = node.queue("bound")
    node.bind("amq.topic", "bound", "$queue.#")
    node.exchange("front", "fanout", arguments={"alternate-exchange": "amq.topic"})
    node.exchange("through", "fanout")
    onward = Binding("/", "through", "amq.topic", "exchange")
    assert node.change(Bind(onward)) is None
    publisher = Publisher(node)
    for exchange in ("amq.topic", "front", "through"):
        assert publisher.publish(exchange, "$queue.victim", exchange.encode()) == 1
    assert contents(node, bound) == [b"amq.topic", b"front", b"through"]
    assert node.engine("victim").ready() == 0


def test_dead_letters_for_the_topic_exchange_reach_no_queue_by_its_address(
    make_amqp: MakeAmqp,
) -> None:
    """Review finding 5: neither does a dead-letter routing key."""
    node = make_amqp()
    node.queue("victim")
    told = {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "$queue.victim"}
    node.queue("dying", arguments={**told, "x-message-ttl": 1000})
    Publisher(node).publish("", "dying", b"1")
    node.advance(3)
    assert [node.engine(name).ready() for name in ("dying", "victim")] == [0, 0]


def test_what_mqtt_publishes_reaches_the_queues_bound_to_the_topic_exchange(
    make_amqp: MakeAmqp,
) -> None:
    node = make_amqp(2)
    queues = [node.queue(f"q{number}", shard=number) for number in range(2)]
    passing = node.queue("passing", shard=1, durable=False)
    for queue in (*queues, passing):
        node.bind("amq.topic", queue.name, "home.*.light")
    clients = [node.connect(shard, f"p{shard}") for shard in (0, 1)]
    for number, client in enumerate(clients):
        assert client.publish("home/hall/light", b"%d" % number, qos=1) == 0
        assert client.publish("home/hall", b"no", qos=1) == 0
    for queue in queues:
        assert contents(node, queue) == [b"0", b"1"]
    assert contents(node, passing, 1) == [b"0", b"1"]


def test_new_bindings_hold_for_topics_that_were_published_before(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    queue = node.queue("work")
    client = node.connect(0, "p")
    assert client.publish("a/b", b"before", qos=1) == 0
    node.bind("amq.topic", "work", "a.#")
    assert client.publish("a/b", b"after", qos=1) == 0
    assert contents(node, queue) == [b"after"]


def test_a_captured_topic_is_stored_once_however_it_comes(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, queues=({"name": "captured", "topics": ("home/#",)},))
    configured = QueueRecord("/", "captured", durable=True, origin=ORIGIN_SETTINGS)
    node.control.change(DeclareQueue(configured))
    node.bind("amq.topic", "captured", "home.*")
    publisher = Publisher(node)
    assert publisher.publish("amq.topic", "home.hall", b"1") == 1
    assert node.connect(1, "p").publish("home/hall", b"2", qos=1) == 0
    node.settle()
    assert node.engine("captured").ready() == 2


def test_queues_of_mqtt_are_amqps(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    queue = node.queue("work")
    fill(node.connect(1, "p"), "work", 3)
    assert contents(node, queue) == [b"0", b"1", b"2"]


# Dead letters


def test_dead_letters_take_the_routes_that_there_are(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    node.exchange("dead", "topic")
    node.queue("work", arguments={"x-dead-letter-exchange": "dead", "x-message-ttl": 1000})
    graves = [node.queue("near"), node.queue("far", shard=1)]
    for queue in graves:
        node.bind("dead", queue.name, "#")
    Publisher(node).publish("", "work", b"1")
    node.advance(3)
    for queue in graves:
        assert contents(node, queue) == [b"1"]
    route = node.amqp()._dead_letter_route
    assert sorted(route("/", "dead", "work", {}) or ()) == ["far", "near"]
    assert route("/", "", "far", {}) == ["far"]
    assert route("/", "nothing", "far", {}) is None


def test_a_policy_gives_dead_letters_somewhere_to_go(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    node.queue("work", arguments={"x-max-length": 1})
    grave = node.queue("grave")
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "grave"}
    node.control.change(SetPolicy(Policy("/", "p", "^work$", QUEUE + "s", 0, definition)))
    node.settle()
    Publisher(node).publish("", "work", b"1", b"2")
    assert contents(node, grave) == [b"1"]


def test_members_of_a_shared_subscription_take_turns(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    members = [node.connect(shard, f"s{shard}") for shard in (0, 1)]
    for member in members:
        member.subscribe("$share/g/a/#", qos=1)
    publisher = Publisher(node)
    assert publisher.publish("amq.topic", "a.b", *(b"%d" % number for number in range(6))) == 1
    got = [messages(member) for member in members]
    assert sorted(got[0] + got[1]) == [b"%d" % number for number in range(6)]
    assert all(got)


def test_what_is_left_of_a_messages_time_is_told_to_subscribers(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    subscriber = node.connect(0, "s")
    subscriber.subscribe("a/b", qos=1)
    publisher = Publisher(node)
    # Row F3: no message that is there says 0.
    for milliseconds, seconds in ((90_000, 90), (1_500, 2), (1_000, 1), (1, 1), (0, 1)):
        publisher.publish("amq.topic", "a.b", b"1", expiry_ms=milliseconds)
        (packet,) = drain(subscriber)
        subscriber.acknowledge(packet)
        assert packet.all(wire.MESSAGE_EXPIRY_INTERVAL) == [seconds]


def test_a_confirm_waits_for_the_sessions_that_are_owed_the_message(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    subscriber = node.connect(1, "s", props=[(wire.SESSION_EXPIRY_INTERVAL, 1000)])
    subscriber.subscribe("a/b", qos=1)
    publisher = Publisher(node)
    assert publisher.publish("amq.topic", "a.b", b"1") == 1
    assert publisher.answers() == [], "neither answered nor on disk"
    (packet,) = drain(subscriber)
    subscriber.acknowledge(packet)
    node.settle()
    assert publisher.answers() == [(ACK, 1, False)]
