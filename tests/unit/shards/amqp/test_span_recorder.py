"""Spans of messages that carry a trace context: which are recorded, with what, and what is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import ERROR_AWAY, Body, Failure
from fluxmq.ipc.span_messages import SPANS, SPANS_MAX, TEXT_MAX, SpanBatch, SpanRecord, SpanStage
from fluxmq.model.outcomes import Outcome
from fluxmq.net.reactor import WATCH_SPANS
from fluxmq.shards import span_recorder
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.amqp.support import AmqpClient, AmqpNode, Publisher, user
from tests.unit.shards.node import messages

MakeAmqp = Callable[..., AmqpNode]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
ACCEPT, COMMIT, DELIVER = SpanStage.ACCEPT, SpanStage.COMMIT, SpanStage.DELIVER


class Taker:
    """The control process of all shards. ``mute``: answers wait; ``away``: nothing can be sent."""

    def __init__(self, node: AmqpNode) -> None:
        self.node = node
        self.spans: list[SpanRecord] = []
        self.requests: list[int] = []
        self.waiting: list[Answered] = []
        self.mute = self.away = False
        for shard in node:
            for each in shard.control_users:
                each.connect(self)
                each.established()

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        if self.away:
            return False
        assert kind == SPANS
        found = SpanBatch.from_body(body).spans
        self.spans += found
        self.requests.append(len(found))
        if self.mute:
            self.waiting.append(answered)
        else:
            answered({})
        return True

    def answer(self, answer: Body | Failure) -> None:
        self.waiting.pop(0)(answer)

    def take(self) -> list[SpanRecord]:
        """What has been recorded since the last call."""
        self.node.settle()
        found, self.spans = self.spans, []
        return found

    def stages(self) -> list[tuple[SpanStage, str]]:
        return sorted((each.stage, each.destination) for each in self.take())


def traced(workers: int = 1, **tracing: Any) -> dict[str, Any]:
    """Arguments of a node that traces."""
    return {"workers": workers, "people": (user(),), "tracing": {"enabled": True, **tracing}}


def context(parent: str = PARENT, state: str = "") -> list[tuple[int, tuple[str, str]]]:
    """User properties."""
    states = [(wire.USER_PROPERTY, ("tracestate", state))] if state else []
    return [(wire.USER_PROPERTY, ("traceparent", parent)), *states]


def samples(node: AmqpNode, shard: int = 0) -> dict[str, float]:
    """Spans by what became of them."""
    return {
        labels["outcome"]: value
        for each in node[shard].control_users
        for _, labels, value in each.samples()
    }


def publish(client: Client, topic: str, count: int = 1, parent: str = PARENT) -> None:
    packet = wire.publish(wire.V5, topic, b"x", qos=0, props=context(parent))
    client.send(*[packet] * count)


def test_nothing_is_there_unless_the_settings_want_it(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),))
    assert not node[0].reactor.watching & WATCH_SPANS
    assert node[0].control_users == ()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_subscribers_here_and_on_another_shard(make_amqp: MakeAmqp, qos: int) -> None:
    """One span for the sessions of a shard, however many, which have the same context as ever."""
    node = make_amqp(**traced(2))
    taker = Taker(node)
    here, there = (node.connect(shard, node.id_of(shard, f"s{shard}")) for shard in (0, 1))
    second = node.connect(1, node.id_of(1, "second"))
    for each in (here, there, second):
        each.subscribe("a/#", qos=qos)
    publisher = node.connect(0, node.id_of(0, "p"))
    publisher.publish("a/b", b"x", qos=qos, props=context(state="a=1"))
    node.settle()
    for each in (here, there, second):
        assert each.take(wire.PUBLISH).all(wire.USER_PROPERTY) == [
            ("traceparent", PARENT),
            ("tracestate", "a=1"),
        ]
    found = sorted(taker.take(), key=lambda each: (each.stage, each.receivers))
    assert [(each.stage, each.receivers, each.messages) for each in found] == [
        (ACCEPT, 0, 1),
        (DELIVER, 1, 1),
        (DELIVER, 2, 1),
    ]
    assert {(each.trace_id, each.span_id, each.flags, each.state) for each in found} == {
        (TRACE, SPAN, 1, "a=1")
    }
    assert {(each.destination, each.protocol) for each in found} == {("a/b", "mqtt")}
    assert found[0].client == node.id_of(0, "p")


def test_a_queue_over_another_shard(make_amqp: MakeAmqp) -> None:
    """The commit is told by the publisher's shard, and lasts until the queue has answered."""
    node = make_amqp(**traced(2))
    taker = Taker(node)
    queue = node.queue("q")
    other = 1 - node.hosts("q")
    publisher = node.connect(other, node.id_of(other, "p"))
    consumer = node.connect(other, node.id_of(other, "c"))
    node.hold()
    publisher.send(
        wire.publish(wire.V5, f"$queue/{queue.name}", b"x", qos=1, packet_id=1, props=context())
    )
    node.run()
    node.clock.now += 0.05
    node.release()
    assert publisher.take(wire.PUBACK).reason == 0
    accept, commit = taker.take()
    assert (accept.stage, commit.stage) == (ACCEPT, COMMIT)
    assert commit.end - commit.start >= 50_000 > accept.end - accept.start
    assert (commit.queue, commit.outcome, commit.messages) == ("q", 0, 1)
    consumer.subscribe("$queue/q", qos=1)
    assert messages(consumer) == [b"x"]
    (deliver,) = taker.take()
    assert (deliver.stage, deliver.queue, deliver.protocol) == (DELIVER, "q", "mqtt")
    assert (deliver.client, deliver.attempts) == (node.id_of(other, "c"), 1)
    assert deliver.trace_id == TRACE


def test_amqp_to_two_queues_and_a_subscriber(make_amqp: MakeAmqp) -> None:
    node = make_amqp(**traced())
    taker = Taker(node)
    node.queue("one")
    node.queue("two")
    node.bind("amq.topic", "one", "a.#")
    node.bind("amq.topic", "two", "a.#")
    subscriber = node.connect(0, "s")
    subscriber.subscribe("a/b")
    publisher = Publisher(node)
    assert publisher.publish("amq.topic", "a.b", b"x", headers={"traceparent": PARENT}) == 3
    assert messages(subscriber) == [b"x"]
    assert publisher.answers() == [("basic.ack", 1, False)]
    client = AmqpClient(node)
    client.send(1, "channel.open")
    client.send(1, "basic.consume", queue="one", consumer_tag="c", no_ack=True)
    assert taker.stages() == [
        (COMMIT, "one"),
        (COMMIT, "two"),
        (DELIVER, "a/b"),
        (DELIVER, "one"),
    ]
    client.send(1, "basic.get", queue="two", no_ack=True)
    assert taker.stages() == [(DELIVER, "two")]
    client.publish(1, "amq.topic", "a.b", b"no context")
    assert taker.stages() == []


def test_an_amqp_client_publishes(make_amqp: MakeAmqp) -> None:
    node = make_amqp(**traced())
    taker = Taker(node)
    client = AmqpClient(node)
    client.send(1, "channel.open")
    client.publish(1, "amq.topic", "a.b", b"x", {"headers": {"traceparent": PARENT}})
    (accept,) = taker.take()
    assert (accept.stage, accept.destination, accept.protocol) == (ACCEPT, "amq.topic:a.b", "amqp")


def test_a_refused_commit_has_its_reason(make_amqp: MakeAmqp) -> None:
    node = make_amqp(**traced())
    taker = Taker(node)
    node.queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    publisher = Publisher(node)
    publisher.publish("", "q", b"fits", b"too much", headers={"traceparent": PARENT})
    assert [name for name, *_ in publisher.answers()] == ["basic.ack", "basic.nack"]
    assert [each.outcome & 0xFF for each in taker.take()] == [0, Outcome.OVER_LIMIT]


def test_messages_of_different_traces_in_one_batch(make_amqp: MakeAmqp) -> None:
    """Several publishes come in one delivery, of which some are traced."""
    node = make_amqp(**traced())
    taker = Taker(node)
    queue = node.queue("q")
    node.held = True
    publisher = Publisher(node)
    traces = [f"{number:032x}" for number in range(1, 4)]
    for trace in traces:
        publisher.publish("", "q", b"x", headers={"traceparent": f"00-{trace}-{SPAN}-01"})
        publisher.publish("", "q", b"y", headers={"other": "traceparent"})
    node.held = False
    taker.take()
    consumer = node.connect(0, "c")
    consumer.subscribe(f"$queue/{queue.name}", qos=1)
    assert len(messages(consumer)) == 6
    assert [each.trace_id for each in taker.take()] == traces


def test_members_of_a_shared_subscription(make_amqp: MakeAmqp) -> None:
    node = make_amqp(**traced(2))
    taker = Taker(node)
    for shard in (0, 1):
        node.connect(shard, node.id_of(shard, "m")).subscribe("$share/g/t")
    publisher = node.connect(0, node.id_of(0, "p"))
    publish(publisher, "t", count=4)
    found = taker.take()
    assert sum(each.messages for each in found if each.stage is DELIVER) == 4


@pytest.mark.parametrize("parent", [PARENT[:-1] + "0", PARENT.upper(), "", "00-1-2-01"])
def test_traces_that_are_not_sampled_or_none(make_amqp: MakeAmqp, parent: str) -> None:
    node = make_amqp(**traced())
    taker = Taker(node)
    subscriber = node.connect(0, "s")
    subscriber.subscribe("t")
    publish(node.connect(0, "p"), "t", parent=parent)
    assert subscriber.take(wire.PUBLISH).all(wire.USER_PROPERTY) == [("traceparent", parent)]
    assert taker.take() == []


def test_all_shards_draw_the_same_traces(make_amqp: MakeAmqp) -> None:
    node = make_amqp(**traced(2, sample_ratio=0.5))
    taker = Taker(node)
    node.connect(1, node.id_of(1, "s")).subscribe("t")
    publisher = node.connect(0, node.id_of(0, "p"))
    for half in ("7", "8"):
        publish(publisher, "t", parent=f"00-{'0' * 15}1{half}{'0' * 15}-{SPAN}-01")
    found = taker.take()
    assert [each.stage for each in found] == [ACCEPT, DELIVER]
    assert {each.trace_id[16] for each in found} == {"7"}


def test_no_more_in_a_second_than_the_settings_say(make_amqp: MakeAmqp) -> None:
    node = make_amqp(**traced(max_spans_per_second=3))
    taker = Taker(node)
    publisher = node.connect(0, "p")
    for _ in range(5):
        publish(publisher, "t")
        node.run()
    assert len(taker.take()) == 3
    assert samples(node)["rate"] == 2
    node.advance(1.1)
    publish(publisher, "t")
    assert len(taker.take()) == 1
    assert samples(node)["taken"] == 4


def test_what_waits_for_control_is_bounded(
    make_amqp: MakeAmqp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_recorder, "WAITING_MAX", 600)
    node = make_amqp(**traced())
    taker = Taker(node)
    taker.away = True
    publisher = node.connect(0, "p")
    for number in range(602):
        publish(publisher, f"t/{number}")
    assert taker.take() == []
    assert samples(node)["full"] == 2
    taker.away, taker.mute = False, True
    node.advance(span_recorder.RETRY_SECONDS + 0.2)
    assert taker.requests == [SPANS_MAX]
    taker.answer(Failure(ERROR_AWAY, "gone"))
    assert samples(node)["refused"] == SPANS_MAX
    node.advance(span_recorder.RETRY_SECONDS + 0.2)
    assert taker.requests == [SPANS_MAX, 100]
    assert [each.destination for each in taker.spans] == [f"t/{number}" for number in range(600)]


def test_long_names_are_cut(make_amqp: MakeAmqp) -> None:
    node = make_amqp(**traced())
    taker = Taker(node)
    publish(node.connect(0, "p"), "ü" * 300)
    (span,) = taker.take()
    assert span.destination == "ü" * TEXT_MAX
