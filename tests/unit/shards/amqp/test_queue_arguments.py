"""Arguments and policies of queues as the engine of whoever hosts the queue has them, and what they do there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluxmq.routing.topology.changes import ClearPolicy, DeleteQueue, SetPolicy
from fluxmq.routing.topology.records import Policy
from fluxmq.storage.queue_log import QueueLog
from tests.unit.shards.amqp.support import AmqpNode, Consumer, Publisher, contents

MakeAmqp = Callable[..., AmqpNode]

KEYS: list[tuple[str, str, Any, str, Any]] = [
    ("quorum", "max-in-memory-length", 7, "max_in_memory_length", 7),
    ("quorum", "max-in-memory-bytes", 4096, "max_in_memory_bytes", 4096),
    ("stream", "stream-max-segment-size-bytes", 20_000, "max_segment_bytes", 20_000),
    ("quorum", "consumer-timeout", 60_000, "visibility_timeout", 60_000_000),
    ("classic", "consumer-timeout", 60_000, "visibility_timeout", 60_000_000),
]
WITHOUT_EFFECT = [
    ("classic", "x-queue-mode", "lazy"),
    ("classic", "x-queue-version", 2),
    ("classic", "x-queue-master-locator", "min-masters"),
    ("quorum", "x-queue-leader-locator", "balanced"),
    ("quorum", "x-quorum-initial-group-size", 3),
    ("stream", "x-initial-cluster-size", 3),
    ("stream", "x-queue-leader-locator", "least-leaders"),
]


def policy(node: AmqpNode, **definition: Any) -> None:
    """Set one for all queues."""
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    node.control.change(SetPolicy(Policy("/", "p", ".*", "queues", 0, named)))
    node.settle()


@pytest.mark.parametrize(("kind", "key", "value", "field", "wanted"), KEYS)
def test_an_argument_is_the_engines(
    make_amqp: MakeAmqp, kind: str, key: str, value: Any, field: str, wanted: Any
) -> None:
    node = make_amqp(2)
    node.queue("q", type=kind, arguments={f"x-{key}": value})
    assert getattr(node.engine("q").config, field) == wanted


@pytest.mark.parametrize(("kind", "key", "value", "field", "wanted"), KEYS)
def test_a_policy_is_the_engines_while_there_is_one(
    make_amqp: MakeAmqp, kind: str, key: str, value: Any, field: str, wanted: Any
) -> None:
    node = make_amqp(2)
    node.queue("q", type=kind)
    before = node.engine("q").config
    policy(node, **{key: value})
    assert getattr(node.engine("q").config, field) == wanted != getattr(before, field)
    node.control.change(ClearPolicy("/", "p"))
    node.settle()
    assert node.engine("q").config == before


@pytest.mark.parametrize(("kind", "key", "value"), WITHOUT_EFFECT)
def test_what_one_node_has_no_use_for_is_kept_and_changes_nothing(
    make_amqp: MakeAmqp, kind: str, key: str, value: Any
) -> None:
    node = make_amqp(1)
    queue = node.queue("q", type=kind, arguments={key: value})
    node.queue("plain", type=kind)
    assert node.control.topology.queue("/", "q") == queue
    one, other = node.engine("q").config.pack(), node.engine("plain").config.pack()
    assert {**one, "name": ""} == {**other, "name": ""}


def early(node: AmqpNode) -> set[str]:
    """Queues that deliver before the sync, on which all shards agree."""
    first, *others = [set(shard.queues.names.before_sync) for shard in node]
    assert all(each == first for each in others)
    return first


def test_argument_policy_and_setting_say_which_queues_deliver_before_the_sync(
    make_amqp: MakeAmqp,
) -> None:
    node = make_amqp(2)
    node.queue("yes", arguments={"x-deliver-before-sync": True})
    node.queue("no", arguments={"x-deliver-before-sync": False})
    node.queue("other")
    node.queue("safe", type="quorum")
    assert early(node) == {"yes"}
    policy(node, deliver_before_sync=True)
    assert early(node) == {"yes", "other"}
    node.control.change(ClearPolicy("/", "p"))
    node.settle()
    assert early(node) == {"yes"}
    node.control.change(DeleteQueue("/", "yes"))
    node.settle()
    assert early(node) == set()


def test_the_setting_is_the_default_of_classic_queues(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, queue_manager={"deliver_before_sync": True})
    node.queue("no", arguments={"x-deliver-before-sync": False})
    node.queue("other")
    node.queue("safe", type="quorum")
    assert early(node) == {"other"}
    policy(node, deliver_before_sync=False)
    assert early(node) == set()


@pytest.mark.parametrize("wanted", [True, False])
def test_a_policy_takes_effect_on_messages_published_from_then_on(
    make_amqp: MakeAmqp, wanted: bool
) -> None:
    node = make_amqp(1, queue_manager={"deliver_before_sync": not wanted})
    consumer = Consumer(node, node.queue("q"))
    policy(node, deliver_before_sync=wanted)
    node.advance(1)
    node.hold_syncs()
    publisher = Publisher(node)
    publisher.publish("", "q", b"1")
    assert publisher.answers() == []
    assert consumer.payloads == [b"1"] * wanted
    node.hold_syncs(False)
    assert publisher.answers() == [("basic.ack", 1, False)]
    assert consumer.payloads == [b"1"]


def sizes(node: AmqpNode, name: str) -> list[int]:
    """Bytes of the segments of a queue, the growing one left out."""
    for shard in node:
        for group in shard.queues.service.all_groups():
            state = group.machine.queue(name)
            if state is not None:
                store: Any = group.logs[state.id]
                store.flush()
                files = sorted(Path(store.directory).glob("*.seg"))
                return [path.stat().st_size for path in files][:-1]
    raise AssertionError(f"no shard has {name}")


def test_a_streams_segments_are_as_large_as_it_says(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    node.queue("small", type="stream", arguments={"x-stream-max-segment-size-bytes": 16_384})
    node.queue("other", type="stream")
    publisher = Publisher(node, 1)
    for name in ("small", "other"):
        publisher.publish("", name, *[bytes(1000)] * 60)
    node.settle()
    assert len(sizes(node, "small")) >= 4
    assert all(15_000 < size <= 16_384 for size in sizes(node, "small"))
    assert sizes(node, "other") == []
    policy(node, stream_max_segment_size_bytes=32_768)
    publisher.publish("", "other", *[bytes(1000)] * 5)
    publisher.publish("", "small", *[bytes(1000)] * 20)
    node.settle()
    assert all(size <= 16_384 for size in sizes(node, "small")), "the argument is before the policy"


def test_a_queue_that_keeps_little_in_memory_gives_all_there_is(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1)
    queue = node.queue("q", type="quorum", arguments={"x-max-in-memory-length": 2})
    Publisher(node).publish("", "q", *[b"%d" % number for number in range(50)])
    node.settle()
    (log,) = (
        group.logs[state.id]
        for group in node[0].queues.service.all_groups()
        if (state := group.machine.queue("q")) is not None
    )
    assert isinstance(log, QueueLog)
    assert log._recent.messages == 2
    assert contents(node, queue) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("shard", [0, 1])
def test_a_consumers_timeout_gives_its_messages_to_others(make_amqp: MakeAmqp, shard: int) -> None:
    node = make_amqp(2)
    queue = node.queue("q", arguments={"x-consumer-timeout": 20_000})
    publisher = Publisher(node)
    publisher.publish("", "q", b"a")
    slow = Consumer(node, queue, shard)
    slow.answers[0].stop()
    own = Consumer(node, queue, shard, timeout=5_000_000)
    publisher.publish("", "q", b"b")
    node.run()
    assert (slow.payloads, own.payloads) == ([b"a"], [b"b"])
    own.answers[0].stop()
    other = Consumer(node, queue, 1 - shard)
    node.advance(4.8)
    assert other.payloads == []
    node.advance(0.6)
    assert other.payloads == [b"b"]
    node.advance(15)
    assert other.payloads == [b"b", b"a"]


@pytest.mark.parametrize("key", ["max-length", "max-length-bytes"])
@pytest.mark.parametrize("by", ["argument", "policy"])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_length_of_nothing_drops_or_dead_letters_everything(
    make_amqp: MakeAmqp, key: str, by: str, kind: str
) -> None:
    """Row F5: with drop-head nothing is kept, and what waits for nobody is confirmed and dead-lettered as `maxlen`."""
    node = make_amqp(2)
    letters = node.queue("letters")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
    limit = {f"x-{key}": 0} if by == "argument" else {}
    queue = node.queue("q", type=kind, arguments={**dead, **limit})
    if by == "policy":
        pattern = Policy("/", "p", "^q$", "queues", 0, {key: 0})
        node.control.change(SetPolicy(pattern))
        node.settle()
    publisher = Publisher(node, 1)
    publisher.publish("", "q", b"a", b"b")
    assert publisher.answers()[-1][0] == "basic.ack"
    node.settle()
    assert node.engine("q").ready() == 0
    assert contents(node, letters) == [b"a", b"b"]
    consumer = Consumer(node, queue)
    publisher.publish("", "q", b"c")
    node.settle()
    assert consumer.payloads == [b"c"], "given to who waits for it"


@pytest.mark.parametrize("key", ["max-length", "max-length-bytes"])
def test_a_length_of_nothing_refuses_everything(make_amqp: MakeAmqp, key: str) -> None:
    """Row F5: with reject-publish, of a run each message."""
    node = make_amqp(2)
    node.queue("q", arguments={f"x-{key}": 0, "x-overflow": "reject-publish"})
    publisher = Publisher(node, 1)
    publisher.publish("", "q", b"a", b"b")
    assert [name for name, _, _ in publisher.answers()] == ["basic.nack"]
    assert node.engine("q").ready() == 0
