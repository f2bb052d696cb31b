"""Consuming: arguments, tags, cancellation, and what becomes of deliveries when a consumer ends."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelOpen,
    QueueDeclare,
    QueueDelete,
    QueueDeleteOk,
)
from fluxmq.queues.commands import Verb
from fluxmq.shards.amqp.consumer_requests import wanted_of
from tests.unit.sessions.amqp091.consumers import (
    DECLARED,
    QUORUM,
    SINGLE,
    STREAM,
    bodies,
    consuming,
    delivered,
)
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer
from tests.unit.sessions.amqp091.scripts import Publish, Script, check, closed, ended, named, play


def bad_argument(key: str, value: object, why: str, first: QueueDeclare | None = None) -> Script:
    declare = first or QueueDeclare("q")
    return Script(
        f"{key} {value!r}",
        [declare, BasicQos(0, 1), BasicConsume("q", "t", arguments={key: value})],
        [
            DECLARED,
            BasicQosOk(),
            closed(406, f"invalid arg '{key}' for queue 'q' in vhost '/': {why}", BasicConsume),
        ],
    )


SCRIPTS = [
    Script(
        "a tag of the broker's",
        [QueueDeclare("q"), BasicConsume()],
        [DECLARED, BasicConsumeOk("amq.ctag-0000000000000000000002")],
    ),
    Script(
        "no queue",
        [BasicConsume("nope")],
        [closed(404, "no queue 'nope' in vhost '/'", BasicConsume)],
    ),
    Script(
        "no name", [BasicConsume()], [closed(404, "no previously declared queue", BasicConsume)]
    ),
    Script(
        "a tag twice",
        [QueueDeclare("q"), BasicConsume("q", "t"), BasicConsume("q", "t")],
        [
            DECLARED,
            BasicConsumeOk("t"),
            ended(530, "attempt to reuse consumer tag 't'", BasicConsume),
        ],
    ),
    Script(
        "a tag again when it is free",
        [QueueDeclare("q"), BasicConsume("q", "t"), BasicCancel("t"), BasicConsume("q", "t")],
        [DECLARED, BasicConsumeOk("t"), BasicCancelOk("t"), BasicConsumeOk("t")],
    ),
    Script(
        "behind an exclusive one",
        [QueueDeclare("q"), BasicConsume("q", "t", exclusive=True), BasicConsume("q", "u")],
        [
            DECLARED,
            BasicConsumeOk("t"),
            closed(403, "queue 'q' in vhost '/' in exclusive use", BasicConsume),
        ],
    ),
    Script(
        "exclusive behind another",
        [QueueDeclare("q"), BasicConsume("q", "t"), BasicConsume("q", "u", exclusive=True)],
        [
            DECLARED,
            BasicConsumeOk("t"),
            closed(403, "queue 'q' in vhost '/' in exclusive use", BasicConsume),
        ],
    ),
    Script(
        "exclusive on a queue with one active consumer",
        [QueueDeclare("q", arguments=SINGLE), BasicConsume("q", "t", exclusive=True)],
        [DECLARED, closed(403, "queue 'q' in vhost '/' in exclusive use", BasicConsume)],
    ),
    Script("cancel what is not", [BasicCancel("nope")], [BasicCancelOk("nope")]),
    Script("cancel without waiting", [BasicCancel("nope", no_wait=True)], []),
    Script(
        "without waiting",
        [QueueDeclare("q"), Publish("", "q"), BasicConsume("q", "t", no_wait=True)],
        [DECLARED, delivered("t", 1)],
    ),
    Script(
        "no-local is ignored",
        [QueueDeclare("q"), BasicConsume("q", "t", no_local=True), Publish("", "q")],
        [DECLARED, BasicConsumeOk("t"), delivered("t", 1)],
    ),
    Script(
        "unknown arguments are ignored",
        [QueueDeclare("q"), BasicConsume("q", "t", arguments={"x-foo": "a"})],
        [DECLARED, BasicConsumeOk("t")],
    ),
    Script(
        "the size of a prefetch",
        [BasicQos(5, 1)],
        [ended(540, "prefetch_size!=0 (5)", BasicQos)],
    ),
    bad_argument("x-consumer-timeout", "1000", '"expected integer, got longstr"'),
    bad_argument("x-consumer-timeout", 0, "{value_zero,0}"),
    bad_argument("x-consumer-timeout", -5, "{value_negative,-5}"),
    bad_argument("x-consumer-timeout", 315_360_000_001, "{value_too_large,315360000001}"),
    bad_argument("x-priority", "a", '"expected integer, got longstr"'),
    bad_argument("x-priority", True, '"expected integer, got bool"'),
    bad_argument("x-cancel-on-ha-failover", "a", "{unacceptable_type,longstr}"),
    bad_argument("x-consumer-group", 5, '"expected text, got signedint"'),
    bad_argument("x-auto-commit", "yes", "{unacceptable_type,longstr}"),
    bad_argument("x-stream-filter", [5], '"expected text, got signedint"', STREAM),
    bad_argument(
        "x-stream-offset",
        "bogus",
        "\"expected first, last, next, an offset, a timestamp or an interval, got 'bogus'\"",
        STREAM,
    ),
    Script(
        "a stream without prefetch",
        [STREAM, BasicConsume("q", "t")],
        [
            DECLARED,
            closed(
                406,
                "consumer prefetch count is not set for 'queue 'q' in vhost '/''",
                BasicConsume,
            ),
        ],
    ),
    Script(
        "a stream with automatic acknowledgement",
        [STREAM, BasicQos(0, 1), BasicConsume("q", "t", no_ack=True)],
        [
            DECLARED,
            BasicQosOk(),
            ended(
                540,
                "automatic acknowledgement not supported by stream queues queue 'q' in vhost '/'",
                BasicConsume,
            ),
        ],
    ),
    Script(
        "a stream with a shared prefetch",
        [STREAM, BasicQos(0, 1), BasicQos(0, 1, True), BasicConsume("q", "t")],
        [
            DECLARED,
            BasicQosOk(),
            BasicQosOk(),
            ended(540, "queue 'q' in vhost '/' does not support global qos", BasicConsume),
        ],
    ),
    Script(
        "a quorum queue with a shared prefetch",
        [QUORUM, BasicQos(0, 1, True), BasicConsume("q", "t")],
        [
            DECLARED,
            BasicQosOk(),
            ended(540, "queue 'q' in vhost '/' does not support global qos", BasicConsume),
        ],
    ),
    Script(
        "a stream's messages say their offset",
        [STREAM, BasicQos(0, 5), Publish("", "q"), Publish("", "q", b"y"), BasicConsume("q", "t")],
        [
            DECLARED,
            BasicQosOk(),
            BasicConsumeOk("t"),
            delivered("t", 1, headers={"x-stream-offset": 0}),
            delivered("t", 2, b"y", headers={"x-stream-offset": 1}),
        ],
    ),
    Script(
        "a stream's messages are not refused",
        [STREAM, BasicQos(0, 5), Publish("", "q"), BasicConsume("q", "t"), BasicNack(1)],
        [
            DECLARED,
            BasicQosOk(),
            BasicConsumeOk("t"),
            delivered("t", 1, headers={"x-stream-offset": 0}),
            ended(
                540,
                "basic.nack and basic.reject not supported by stream queues queue 'q' in vhost '/'",
                BasicNack,
            ),
        ],
    ),
    Script(
        "a quorum queue tells how often",
        [
            QUORUM,
            Publish("", "q"),
            BasicConsume("q", "t"),
            BasicNack(1, requeue=True),
            BasicNack(2, requeue=True),
        ],
        [
            DECLARED,
            BasicConsumeOk("t"),
            delivered("t", 1),
            delivered("t", 2, again=True, headers={"x-delivery-count": 1}),
            delivered("t", 3, again=True, headers={"x-delivery-count": 2}),
        ],
    ),
    Script(
        "the end of the queue, for who does not want to know",
        [QueueDeclare("q"), BasicConsume("q", "t"), QueueDelete("q")],
        [DECLARED, BasicConsumeOk("t"), QueueDeleteOk(0)],
    ),
]


@pytest.mark.parametrize(**named(SCRIPTS))
def test_consume(script: Script) -> None:
    check(script)


# --- cancellation ---


def test_a_cancelled_consumer_may_still_settle() -> None:
    broker = MemoryBroker()
    peer = consuming(broker, 3, BasicQos(0, 2), BasicConsume("q", "t"), BasicCancel("t"))
    peer.receive()
    queue = broker.queues["/", "q"]
    assert queue.consumers == []
    peer.send(1, BasicAck(1))
    assert peer.receive() == []
    peer.send(1, BasicNack(2, requeue=True))
    peer.receive()
    assert queue.settled == [(Verb.ACK, 0), (Verb.NACK, 1)]
    assert queue.ready == [1, 2]
    assert peer.session.channels[1].consumers.leaving == []


def test_a_cancelled_consumers_waiting_deliveries_go_back() -> None:
    broker = MemoryBroker()
    peer = consuming(broker, 40, BasicConsume("q", "t"), body=bytes(1000), limit=10_000)
    peer.send(1, BasicCancel("t"))
    queue = broker.queues["/", "q"]
    shown = len(bodies(peer.got()))
    assert len(queue.ready) == 40 - shown
    assert bodies(peer.got()) == []


def test_what_crosses_a_cancellation_goes_back() -> None:
    broker = MemoryBroker()
    peer = consuming(broker, 2, BasicQos(0, 1), BasicConsume("q", "t"))
    peer.receive()
    queue = broker.queues["/", "q"]
    handle = queue.consumers[0]
    peer.send(1, BasicCancel("t"))
    queue.hand_out(handle, 1)
    assert peer.one() == BasicCancelOk("t")
    assert queue.settled == [(Verb.RELEASE, 1)]


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    peer = Peer(MemoryBroker())
    play(
        peer,
        [
            QueueDeclare("q", auto_delete=True),
            BasicConsume("q", "t"),
            BasicCancel("t"),
            QueueDeclare("q", passive=True),
        ],
    )
    assert peer.got()[-1] == closed(404, "no queue 'q' in vhost '/'", QueueDeclare)


def test_who_wants_to_know_is_told_of_the_end_of_a_queue() -> None:
    broker = MemoryBroker()
    peer = consuming(
        broker,
        2,
        BasicQos(0, 1),
        BasicConsume("q", "t"),
        BasicGet("q"),
        capabilities=["consumer_cancel_notify"],
    )
    peer.receive()
    other = Peer(broker)
    other.send(1, QueueDelete("q"))
    assert peer.one() == BasicCancel("t", True)
    peer.send(1, BasicAck(2, True), QueueDeclare("q"), BasicConsume("q", "t"))
    assert peer.got() == [DECLARED, BasicConsumeOk("t")], "tags may be settled all the same"


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("no_wait", [False, True])
def test_who_deletes_a_queue_is_answered_before_its_consumers_are_cancelled(
    slow: bool, no_wait: bool
) -> None:
    """Row F6: queue.delete-ok is what a client waits for that has consumers of the queue on the same channel."""
    broker = MemoryBroker()
    told = ["consumer_cancel_notify"]
    peer = consuming(broker, 0, BasicConsume("q", "t"), BasicConsume("q", "u"), capabilities=told)
    peer.send(2, ChannelOpen(), BasicConsume("q", "v"), QueueDeclare("r"), BasicConsume("r", "t"))
    peer.receive()
    broker.slow = slow
    peer.send(1, QueueDelete("q", no_wait=no_wait))
    broker.release()
    answers = [item for number, item in peer.receive() if number == 1]
    expected = [BasicCancel("t", True), BasicCancel("u", True)]
    assert answers == (expected if no_wait else [QueueDeleteOk(0), *expected])
    broker.slow = False
    peer.send(2, QueueDelete("r"))
    assert peer.got(2)[-2:] == [QueueDeleteOk(0), BasicCancel("t", True)]


def test_a_deletion_that_is_refused_cancels_nobody() -> None:
    """Row F6: and consumers that end later are told at once."""
    broker = MemoryBroker()
    peer = consuming(broker, 0, BasicConsume("q", "t"), capabilities=["consumer_cancel_notify"])
    peer.receive()
    peer.send(2, ChannelOpen(), QueueDelete("q", if_unused=True))
    assert peer.got(2)[-1].reply_code == 406  # type: ignore[union-attr]
    Peer(broker).send(1, QueueDelete("q"))
    assert peer.one() == BasicCancel("t", True)


def test_a_queue_that_goes_while_a_consumer_is_attached() -> None:
    broker = MemoryBroker()
    peer = consuming(broker, 0)
    broker.slow = True
    peer.send(1, BasicConsume("q", "t"), BasicQos(0, 1))
    del broker.queues["/", "q"]
    broker.release()
    assert peer.one() == closed(404, "no queue 'q' in vhost '/'", BasicConsume)


@pytest.mark.parametrize("method", [BasicConsume("q", "t"), BasicGet("q")])
def test_a_channel_that_ends_while_it_is_attached(method: BasicGet) -> None:
    broker = MemoryBroker()
    peer = consuming(broker, 3)
    broker.slow = True
    peer.send(1, method)
    broker.handler.lost(peer.connection)
    broker.release()
    broker.release()
    broker.tick()
    queue = broker.queues["/", "q"]
    assert queue.consumers == []
    assert queue.ready == [0, 1, 2]


@pytest.mark.parametrize("method", [ChannelClose(200, "", 0, 0), BasicAck(99)])
def test_a_channel_that_ends_passes_on_what_was_acknowledged_and_gives_back_the_rest(
    method: ChannelClose,
) -> None:
    broker = MemoryBroker()
    peer = consuming(broker, 4, BasicConsume("q", "t"), BasicGet("q"))
    peer.receive()
    peer.send(1, BasicAck(2), method)
    peer.receive()
    queue = broker.queues["/", "q"]
    assert queue.settled == [(Verb.ACK, 1)]
    assert queue.ready == [0, 2, 3]
    assert queue.consumers == []


def test_a_consumer_may_have_a_timeout_of_its_own() -> None:
    broker = MemoryBroker()
    arguments: dict[str, object] = {"x-consumer-timeout": 1500}
    play(Peer(broker), [QueueDeclare("q"), BasicConsume("q", "t", arguments=arguments)])
    assert broker.queues["/", "q"].consumers[0].wanted.timeout == 1_500_000


@pytest.mark.parametrize(
    ("queue", "argument", "cancelled"),
    [
        (QueueDeclare("q"), {"x-cancel-on-ha-failover": True}, True),
        (QueueDeclare("q"), {"x-cancel-on-ha-failover": False}, False),
        (QueueDeclare("q"), {}, False),
        (QUORUM, {"x-cancel-on-ha-failover": True}, False),
    ],
)
def test_a_consumer_may_ask_to_be_cancelled_when_another_node_leads(
    queue: QueueDeclare, argument: dict[str, object], cancelled: bool
) -> None:
    """S4-49: of a classic queue."""
    broker = MemoryBroker()
    play(Peer(broker), [queue, BasicConsume("q", "t", arguments=argument)])
    (handle,) = broker.queues["/", "q"].consumers
    assert handle.wanted.cancel_on_failover is cancelled
    assert wanted_of(handle.wanted).cancel_on_failover is cancelled
