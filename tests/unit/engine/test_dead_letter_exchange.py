"""Dead letters through an exchange: kept until stored, dropped or kept as told, not round and round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fluxmq.engine import dead_letters
from fluxmq.engine.names import QueueInfo
from fluxmq.model.properties import Item, PropertyKind, encode
from fluxmq.protocols.amqp091.message_properties import address_of, block_headers
from fluxmq.queues.commands import Verb
from fluxmq.queues.config import SECOND, Overflow, QueueConfig, QueueType
from tests.unit.engine.asking import Asker, host_of, publish
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode
from tests.unit.queues.support import batch_of

Bindings = dict[tuple[str, str, str], list[str]]


def deaths_of(headers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the header says."""
    found: list[dict[str, Any]] = headers["x-death"]
    return found


class Exchanges:
    """Where exchanges lead, by vhost, exchange and routing key; a test changes it. `asked`: headers of each question."""

    def __init__(self, node: QueueNode, bindings: Bindings) -> None:
        self.bindings = bindings
        self.asked: list[Mapping[str, object]] = []
        for shard in node:
            shard.queues.service.dead_letters.route = self.route

    def route(
        self, vhost: str, exchange: str, routing_key: str, headers: Mapping[str, object]
    ) -> list[str] | None:
        """The queues, None without any such exchange."""
        self.asked.append(headers)
        if not any(key[:2] == (vhost, exchange) for key in self.bindings):
            return None
        return self.bindings.get((vhost, exchange, routing_key), [])


def declare(
    node: QueueNode, name: str, shard: int = 0, group: str = "local-0", **values: Any
) -> None:
    """A queue beside the configured ones, as the topology would make it."""
    config = QueueConfig(name, QueueType.CLASSIC, **values)
    for each in node:
        each.queues.names.declare(QueueInfo(name, group, config.type), config)
    found = node[shard].queues.service.find(group)
    assert found is not None
    found.declare(config)
    node.run()


def dead_letter(node: QueueNode, **values: Any) -> None:
    """Queue source, whose dead go to exchange dlx, and queue target."""
    group = node[0].queues.names.info("work").group
    declare(
        node,
        "source",
        group=group,
        **{"dead_letter": True, "dead_letter_exchange": "dlx", "message_ttl": 0, **values},
    )
    declare(node, "target", group=group, message_ttl=0)


def reject(node: QueueNode, *payloads: bytes) -> None:
    """Publish to source, and reject it all."""
    publish(node, 0, *payloads, queue="source")
    consumer = Asker(node, 0, "source")
    first = consumer.offsets[0]
    consumer.settle(Verb.REJECT, first, first + len(payloads) - 1)
    node.run()
    assert consumer.held is not None
    consumer.held.detach()
    node.advance(0.1)


def letters(node: QueueNode, queue: str = "target") -> list[bytes]:
    """Payloads of a queue, taken."""
    asker = Asker(node, 0, queue)
    found = list(asker.payloads)
    if found:
        asker.settle(Verb.ACK, asker.offsets[0], asker.offsets[-1])
    assert asker.held is not None
    asker.held.detach()
    node.advance(0.1)
    return found


def test_a_rejected_message_goes_where_the_exchange_leads(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node)
    exchanges = Exchanges(node, {("/", "dlx", "key"): ["target", "work"]})
    reject(node, b"a")
    assert node.machine("source").kept == 1
    (event,) = deaths_of(exchanges.asked[0])
    assert (event["queue"], event["reason"]) == ("source", "rejected")
    batch = node.group("target").logs[node.machine("target").id].read(0)
    assert address_of(batch.properties(0), batch.key(0)) == (b"dlx", b"key")
    assert block_headers(batch.properties(0))["x-first-death-queue"] == "source"
    assert (letters(node), letters(node, "work")) == ([b"a"], [b"a"])


def test_the_queues_routing_key_takes_the_place_of_the_messages(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node, dead_letter_exchange="", dead_letter_routing_key="target")
    Exchanges(node, {("/", "", "target"): ["target"]})
    reject(node, b"a")
    assert letters(node) == [b"a"]


def test_the_exchange_is_one_of_the_queues_vhost(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    group = node[0].queues.names.info("work").group
    name = "shop\x1fsource"
    declare(node, name, group=group, dead_letter=True, dead_letter_exchange="dlx", message_ttl=0)
    exchanges = Exchanges(node, {("shop", "dlx", "key"): ["work"]})
    publish(node, 0, b"a", queue=name)
    consumer = Asker(node, 0, name)
    consumer.settle(Verb.REJECT, 0)
    node.advance(0.1)
    assert letters(node, "work") == [b"a"]
    (event,) = deaths_of(exchanges.asked[0])
    assert event["queue"] == "source"


def test_a_dead_letter_is_kept_until_it_is_stored(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node)
    Exchanges(node, {("/", "dlx", "key"): ["target"]})
    publish(node, 0, b"a", queue="source")
    consumer = Asker(node, 0, "source")
    names = node[0].queues.names
    info = names.info("target")
    names.undeclare("target")
    consumer.settle(Verb.REJECT, 0)
    node.advance(3)
    assert node.machine("source").kept == 0
    assert node[0].queues.service.dead_letters.dropped == 0
    names.add(info)
    node.advance(3)
    assert node.machine("source").kept == 1
    assert letters(node) == [b"a"]


@pytest.mark.parametrize("milliseconds", range(1, 8))
def test_a_crash_between_the_queues_loses_and_doubles_nothing(
    make_queues: MakeQueues, milliseconds: int
) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node)
    bindings: Bindings = {("/", "dlx", "key"): ["target", "work"]}
    Exchanges(node, bindings)
    publish(node, 0, b"a", queue="source")
    consumer = Asker(node, 0, "source")
    consumer.settle(Verb.REJECT, 0)
    for _ in range(3):
        node.advance(milliseconds / 1000)
        node.restart()
        Exchanges(node, bindings)
    node.advance(2)
    left = letters(node, "source")
    assert letters(node) + left == [b"a"]
    assert letters(node, "work") + left == [b"a"]


@pytest.mark.parametrize("bindings", [{}, {("/", "dlx", "other"): ["target"]}])
def test_without_a_route_it_is_dropped_or_kept_as_told(
    make_queues: MakeQueues, bindings: Bindings
) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node)
    exchanges = Exchanges(node, bindings)
    reject(node, b"a")
    service = node[0].queues.service
    assert (node.machine("source").kept, service.dead_letters.dropped) == (1, 1)
    group = node[0].queues.names.info("work").group
    declare(
        node,
        "source",
        group=group,
        dead_letter=True,
        dead_letter_exchange="dlx",
        dead_letter_at_least_once=True,
    )
    reject(node, b"b")
    assert (node.machine("source").kept, service.dead_letters.dropped) == (1, 1)
    exchanges.bindings = {("/", "dlx", "key"): ["target"]}
    node.advance(dead_letters.UNROUTABLE_RETRY_US / SECOND + 1)
    assert node.machine("source").kept == 2
    assert letters(node) == [b"b"]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_full_queue_drops_it_or_has_it_wait_as_told(make_queues: MakeQueues, keeps: bool) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node, dead_letter_at_least_once=keeps)
    group = node[0].queues.names.info("work").group
    declare(node, "target", group=group, max_length=1, overflow=Overflow.REJECT_PUBLISH)
    Exchanges(node, {("/", "dlx", "key"): ["target", "work"]})
    reject(node, b"a", b"b")
    assert node[0].queues.service.dead_letters.dropped == (0 if keeps else 1)
    assert node.machine("source").kept == (1 if keeps else 2)
    assert letters(node) == [b"a"]
    node.advance(3)
    assert letters(node) == ([b"b"] if keeps else [])
    assert letters(node, "work") == [b"a", b"b"], "once, however often it was offered"
    assert node.machine("source").kept == 2


def test_expired_messages_go_not_round_and_round(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node, message_ttl=SECOND)
    exchanges = Exchanges(node, {("/", "dlx", "key"): ["source"]})
    publish(node, 0, b"a", queue="source")
    node.run()
    node.advance(2)
    assert node[0].queues.service.dead_letters.dropped == 1
    assert node.machine("source").next_offset == 1
    exchanges.bindings = {("/", "dlx", "key"): ["source", "target"]}
    publish(node, 0, b"b", queue="source")
    node.run()
    node.advance(2)
    assert (node.machine("source").next_offset, letters(node)) == (2, [b"b"])


def test_a_retry_queue_gives_back_what_a_consumer_rejected(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node)
    group = node[0].queues.names.info("work").group
    declare(
        node,
        "retry",
        group=group,
        dead_letter=True,
        dead_letter_exchange="back",
        message_ttl=5 * SECOND,
    )
    Exchanges(node, {("/", "dlx", "key"): ["retry"], ("/", "back", "key"): ["source"]})
    for expected in (1, 2, 3):
        if expected == 1:
            publish(node, 0, b"a", queue="source")
        consumer = Asker(node, 0, "source")
        assert consumer.payloads == [b"a"]
        consumer.settle(Verb.REJECT, consumer.offsets[0])
        node.run()
        assert consumer.held is not None
        consumer.held.detach()
        node.advance(6)
        machine = node.machine("source")
        batch = node.group("source").logs[machine.id].read(machine.next_offset - 1)
        events = deaths_of(block_headers(batch.properties(0)))
        assert [(each["queue"], each["count"]) for each in events] == [
            ("retry", expected),
            ("source", expected),
        ]


def test_expiration_is_told_and_taken_out(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node)
    Exchanges(node, {("/", "dlx", "key"): ["target"]})
    items = [
        Item(PropertyKind.PROTOCOL, 2),
        Item(PropertyKind.EXCHANGE, b""),
        Item(PropertyKind.EXPIRATION, b"1000"),
    ]
    publish(node, 0, b"a", queue="source", block=encode(items), expires=SECOND)
    node.run()
    node.advance(3)
    batch = node.group("target").logs[node.machine("target").id].read(0)
    (event,) = deaths_of(block_headers(batch.properties(0)))
    assert (event["reason"], event["original-expiration"]) == ("expired", "1000")
    node.advance(3)
    assert letters(node) == [b"a"], "it has no time to live any more"


def test_what_a_full_queue_refuses_goes_to_its_exchange(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node, max_length=1, overflow=Overflow.REJECT_PUBLISH_DLX)
    Exchanges(node, {("/", "dlx", "key"): ["target"]})
    answers = publish(node, 0, b"a", b"b", queue="source")
    node.advance(0.1)
    assert answers == [0, 0x97]
    assert node.machine("source").next_offset == 1
    batch = node.group("target").logs[node.machine("target").id].read(0)
    (event,) = deaths_of(block_headers(batch.properties(0)))
    assert (event["reason"], event["queue"]) == ("maxlen", "source")
    assert letters(node) == [b"b"]


@pytest.mark.parametrize("overflow", [Overflow.DROP_HEAD, Overflow.REJECT_PUBLISH])
def test_other_overflows_do_not_publish_what_is_refused(
    make_queues: MakeQueues, overflow: Overflow
) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node, max_length=1, overflow=overflow)
    Exchanges(node, {("/", "dlx", "key"): ["target"]})
    publish(node, 0, b"a", b"b", queue="source")
    node.advance(0.1)
    assert letters(node) == ([b"a"] if overflow == Overflow.DROP_HEAD else [])


def test_of_messages_that_came_together_those_are_refused_that_have_no_room(
    make_queues: MakeQueues,
) -> None:
    node = make_queues({"name": "work"})
    dead_letter(node, max_length=3, overflow=Overflow.REJECT_PUBLISH_DLX)
    Exchanges(node, {("/", "dlx", "key"): ["target"]})
    answers: list[int] = []
    batch = batch_of([b"%d" % number for number in range(8)], keys=b"key")
    host_of(node, 0, "source").append("source", batch, answers.append)
    host_of(node, 0, "source").append("source", batch_of([b"x"] * 2, keys=b"key"), None)
    node.advance(0.1)
    assert answers == [0x97]
    assert letters(node, "source") == [b"0", b"1", b"2"]
    assert letters(node) == [b"3", b"4", b"5", b"6", b"7", b"x", b"x"]
    host_of(node, 0, "source").append("source", batch_of([b"y"] * 3, keys=b"key"), answers.append)
    node.advance(0.1)
    assert answers == [0x97, 0]


@pytest.mark.parametrize("values", [{}, {"dead_letter_exchange": "dlx"}])
def test_what_a_full_queue_refuses_does_not_come_back_to_it(
    make_queues: MakeQueues, values: dict[str, Any]
) -> None:
    node = make_queues({"name": "work"})
    group = node[0].queues.names.info("work").group
    overflow = Overflow.REJECT_PUBLISH_DLX
    declare(node, "source", group=group, max_length=1, overflow=overflow, **values)
    exchanges = Exchanges(node, {("/", "", "key"): ["source"], ("/", "dlx", "key"): ["source"]})
    answers = publish(node, 0, b"a", b"b", queue="source")
    node.advance(0.1)
    assert answers == [0, 0x97]
    assert len(exchanges.asked) == (1 if values else 0)
    assert node.machine("source").next_offset == 1
