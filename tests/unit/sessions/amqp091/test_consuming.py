"""Consuming: limits, tags, priorities, cancellation, streams, basic.get."""

from __future__ import annotations

import pytest

from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.content import Properties
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelOpen,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.records import Queue
from fluxmq.sessions.amqp091 import getting
from fluxmq.sessions.amqp091.ports import AmqpLimits
from fluxmq.sessions.amqp091.stream_start import stream_start
from tests.unit.sessions.amqp091.memory import MemoryBroker, Message, Peer
from tests.unit.sessions.amqp091.scripts import (
    Publish,
    Script,
    check,
    closed,
    ended,
    named,
    play,
)

DECLARED = QueueDeclareOk("q", 0, 0)
STREAM = QueueDeclare("q", durable=True, arguments={"x-queue-type": "stream"})
QUORUM = QueueDeclare("q", durable=True, arguments={"x-queue-type": "quorum"})
SINGLE = {"x-single-active-consumer": True}


def delivered(
    tag: str,
    number: int,
    body: bytes = b"x",
    again: bool = False,
    queue: str = "q",
    **properties: object,
) -> Message:
    method = BasicDeliver(tag, number, again, "", queue)
    return Message(method, Properties(**properties), body)  # type: ignore[arg-type]


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

GET = [
    Script(
        "a quorum queue tells basic.get at once how often",
        [QUORUM, Publish("", "q"), BasicGet("q"), BasicNack(1, requeue=True), BasicGet("q")],
        [
            DECLARED,
            Message(
                BasicGetOk(1, False, "", "q", 0), Properties(headers={"x-delivery-count": 0}), b"x"
            ),
            Message(
                BasicGetOk(2, True, "", "q", 0), Properties(headers={"x-delivery-count": 1}), b"x"
            ),
        ],
    ),
    Script("no queue", [BasicGet("nope")], [closed(404, "no queue 'nope' in vhost '/'", BasicGet)]),
    Script("no name", [BasicGet()], [closed(404, "no previously declared queue", BasicGet)]),
    Script(
        "counts what is left",
        [
            QueueDeclare("q"),
            Publish("", "q", b"1"),
            Publish("", "q", b"2"),
            BasicGet("q"),
            BasicGet("q", True),
            BasicGet("q"),
        ],
        [
            DECLARED,
            Message(BasicGetOk(1, False, "", "q", 1), Properties(), b"1"),
            Message(BasicGetOk(2, False, "", "q", 0), Properties(), b"2"),
            BasicGetEmpty(),
        ],
    ),
    Script(
        "again what was given back",
        [
            QueueDeclare("q"),
            Publish("", "q", b""),
            BasicGet("q"),
            BasicNack(1, requeue=True),
            BasicGet("q"),
            BasicNack(1, requeue=True),
        ],
        [
            DECLARED,
            Message(BasicGetOk(1, False, "", "q", 0), Properties(), b""),
            Message(BasicGetOk(2, True, "", "q", 0), Properties(), b""),
            closed(406, "unknown delivery tag 1", BasicNack),
        ],
    ),
    Script(
        "beside a prefetch",
        [
            QueueDeclare("q"),
            Publish("", "q", b"1"),
            Publish("", "q", b"2"),
            BasicQos(0, 1),
            BasicConsume("q", "t"),
            BasicGet("q"),
        ],
        [
            DECLARED,
            BasicQosOk(),
            BasicConsumeOk("t"),
            delivered("t", 1, b"1"),
            Message(BasicGetOk(2, False, "", "q", 0), Properties(), b"2"),
        ],
    ),
    Script(
        "not of a stream",
        [STREAM, BasicGet("q")],
        [
            DECLARED,
            ended(540, "basic.get not supported by stream queues queue 'q' in vhost '/'", BasicGet),
        ],
    ),
    Script(
        "not of a quorum queue with one active consumer",
        [QUORUM._replace(arguments={**QUORUM.arguments, **SINGLE}), BasicGet("q")],
        [
            DECLARED,
            closed(
                405,
                "cannot obtain access to locked queue 'q' in vhost '/'. basic.get operations are not supported by quorum "
                "queues with single active consumer",
                BasicGet,
            ),
        ],
    ),
]


@pytest.mark.parametrize(**named(SCRIPTS))
def test_consume(script: Script) -> None:
    check(script)


@pytest.mark.parametrize(**named(GET))
def test_get(script: Script) -> None:
    check(script)


def consuming(
    broker: MemoryBroker,
    count: int,
    *steps: object,
    body: bytes = b"",
    **peer_options: object,
) -> Peer:
    """A peer after these steps, on a queue with ``count`` messages before them; what came is not taken yet."""
    peer = Peer(broker, **peer_options)  # type: ignore[arg-type]
    peer.send(1, QueueDeclare("q"))
    peer.receive()
    for number in range(count):
        peer.publish("", "q", body or b"%d" % number)
    play(peer, steps)  # type: ignore[arg-type]
    return peer


def bodies(items: list[object]) -> list[bytes]:
    return [item.body for item in items if isinstance(item, Message)]


# --- limits ---


def test_prefetch_holds_for_consumers_to_come() -> None:
    broker = MemoryBroker()
    peer = consuming(broker, 5, BasicQos(0, 2), BasicConsume("q", "t"), BasicQos(0, 0))
    assert bodies(peer.got()) == [b"0", b"1"]
    peer.send(1, BasicAck(1))
    assert peer.bodies() == [b"2"]
    peer.send(1, BasicAck(3, True))
    assert peer.bodies() == [b"3", b"4"]


def test_prefetch_0_is_no_limit() -> None:
    peer = consuming(MemoryBroker(), 3000, BasicConsume("q", "t"))
    assert len(bodies(peer.got())) == 3000


def test_automatic_acknowledgement_knows_no_prefetch_and_settles() -> None:
    broker = MemoryBroker()
    peer = consuming(
        broker, 5, BasicQos(0, 2), BasicQos(0, 1, True), BasicConsume("q", "t", no_ack=True)
    )
    assert len(bodies(peer.got())) == 5
    assert broker.queues["/", "q"].settled == [(Verb.ACK, offset) for offset in range(5)]
    peer.send(1, BasicAck(1))
    assert peer.one() == closed(406, "unknown delivery tag 1", BasicAck)


def test_a_shared_limit_holds_for_all_consumers_of_the_channel() -> None:
    broker = MemoryBroker()
    peer = consuming(
        broker, 6, BasicQos(0, 3, True), BasicConsume("q", "a"), BasicConsume("q", "b")
    )
    peer.send(2, ChannelOpen())
    first = [item for _, item in peer.receive()]
    assert len(bodies(first)) == 3
    peer.send(1, BasicAck(1))
    assert len(peer.bodies()) == 1
    peer.send(1, BasicNack(2, requeue=False))
    assert len(peer.bodies()) == 1
    peer.send(1, BasicQos(0, 0, True))
    assert len(bodies(peer.got())) == 1


def test_a_shared_limit_does_not_count_basic_get() -> None:
    peer = consuming(MemoryBroker(), 4, BasicGet("q"), BasicQos(0, 2, True), BasicConsume("q", "a"))
    assert bodies(peer.got()) == [b"0", b"1", b"2"]


def test_a_shared_limit_lowers_a_consumers_own() -> None:
    peer = consuming(
        MemoryBroker(), 5, BasicQos(0, 4), BasicQos(0, 2, True), BasicConsume("q", "a")
    )
    assert len(bodies(peer.got())) == 2
    peer.send(1, BasicQos(0, 3, True))
    assert bodies(peer.got()) == [b"2"]
    peer.send(1, BasicQos(0, 9, True))
    assert bodies(peer.got()) == [b"3"]


def test_the_limit_of_consumers() -> None:
    peer = Peer(MemoryBroker(AmqpLimits(max_consumers=2)))
    peer.send(1, QueueDeclare("q"), *[BasicConsume("q", f"t{number}") for number in range(3)])
    answers = peer.receive()
    text = "reached maximum (2) of consumers per channel"
    assert answers[-1] == (0, ended(530, text, BasicConsume))


def test_higher_priority_first() -> None:
    broker = MemoryBroker()
    peer = consuming(
        broker,
        3,
        BasicQos(0, 2),
        BasicConsume("q", "low", arguments={"x-priority": -(1 << 40)}, no_wait=True),
    )
    peer.send(1, BasicConsume("q", "high", arguments={"x-priority": 7}, no_wait=True))
    wanted = [held.wanted.priority for held in broker.queues["/", "q"].consumers]
    assert sorted(wanted) == [-(2**31 - 1), 7]


# --- output that is not taken ---


def test_deliveries_wait_for_a_connection_that_does_not_take_them() -> None:
    broker = MemoryBroker()
    peer = consuming(broker, 40, BasicConsume("q", "t"), body=bytes(1000), limit=10_000)
    held = broker.queues["/", "q"].consumers[0]
    assert peer.connection.feeding
    assert peer.connection.size < 10_000 + 2000
    assert held.limit == 1, "the queue was told to wait"
    peer.publish("", "q", b"late")
    broker.tick()
    assert len(broker.queues["/", "q"].ready) > 25
    got: list[bytes] = []
    while len(got) < 40:
        more = bodies(peer.got())
        assert more
        assert len(more) < 15
        got += more
    assert held.limit == 0
    assert (got + bodies(peer.got()))[-1] == b"late"


def test_automatic_deliveries_wait_as_well_and_are_settled_when_written() -> None:
    broker = MemoryBroker()
    peer = consuming(
        broker, 40, BasicConsume("q", "t", no_ack=True), body=bytes(1000), limit=10_000
    )
    queue = broker.queues["/", "q"]
    broker.tick()
    assert 0 < len(queue.settled) < 15
    broker.handler.lost(peer.connection)
    assert len(queue.settled) + len(queue.ready) == 40, "what was not written is not lost"


def test_a_consumer_of_few_is_not_throttled() -> None:
    broker = MemoryBroker()
    consuming(broker, 40, BasicQos(0, 100), BasicConsume("q", "t"), body=bytes(1000), limit=10_000)
    assert broker.queues["/", "q"].consumers[0].limit == 100


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
    assert peer.client.channels[1].leaving == []


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
    held = queue.consumers[0]
    peer.send(1, BasicCancel("t"))
    queue.hand_out(held, 1)
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


# --- basic.get ---


def test_getters_are_kept_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getting, "GETTERS_MAX", 3)
    broker = MemoryBroker()
    peer = Peer(broker)
    names = [f"q{number}" for number in range(6)]
    peer.send(1, *[QueueDeclare(name) for name in names])
    peer.publish("", "q0")
    peer.receive()
    for name in names:
        peer.send(1, BasicGet(name))
    peer.receive()
    getters = peer.client.channels[1].getters
    assert [name for name, _ in getters] == ["q0", "q4", "q5"], "what is owed something stays"
    peer.send(1, BasicAck(1))
    peer.receive()
    assert broker.queues["/", "q0"].settled == [(Verb.ACK, 0)]


def test_a_getter_whose_queue_has_gone_and_come_again() -> None:
    peer = consuming(MemoryBroker(), 1, BasicGet("q", True), QueueDelete("q"), QueueDeclare("q"))
    play(peer, [Publish("", "q", b"new"), BasicGet("q", True)])
    assert bodies(peer.got()) == [b"0", b"new"]


# --- streams ---


@pytest.mark.parametrize(
    ("value", "start"),
    [
        (None, None),
        ("first", ("first", 0)),
        ("last", ("last", 0)),
        ("next", ("next", 0)),
        (5, ("offset", 5)),
        (-5, ("offset", 0)),
        (1 << 70, ("offset", (1 << 63) - 1)),
        ("offset=17", ("offset", 17)),
        (Timestamp(7), ("timestamp", 7_000_000)),
        ("timestamp=7", ("timestamp", 7_000_000)),
        ("timestamp=1700000000000", ("timestamp", 1_700_000_000_000_000)),
        ("1h", ("interval", 3_600_000_000)),
        ("7D", ("interval", 7 * 86_400_000_000)),
    ],
)
def test_where_a_streams_consumer_begins(value: object, start: tuple[str, int] | None) -> None:
    assert stream_start(value, Queue("/", "q", "stream")) == start


@pytest.mark.parametrize("value", [True, "bogus", "offset=-1", "offset=", 1.5, [], {}, "1w", ""])
def test_what_is_no_place_in_a_stream(value: object) -> None:
    with pytest.raises(SoftError, match="x-stream-offset"):
        stream_start(value, Queue("/", "q", "stream"))


def test_a_streams_consumer_asks_for_what_its_arguments_say() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    arguments = {
        "x-stream-offset": "first",
        "x-consumer-group": "g",
        "x-auto-commit": False,
        "x-stream-filter": ["a.#", "b"],
        "x-priority": 3,
    }
    play(
        peer, [STREAM, BasicQos(0, 7), BasicConsume("q", "t", exclusive=True, arguments=arguments)]
    )
    wanted = broker.queues["/", "q"].consumers[0].wanted
    assert (wanted.start, wanted.group, wanted.auto_commit) == (("first", 0), "g", False)
    assert (wanted.filters, wanted.priority, wanted.limit) == (("a.#", "b"), 3, 7)
    assert (wanted.tag, wanted.exclusive, wanted.taking) == ("t", True, False)
    assert wanted.timeout == 0


def test_a_consumer_may_have_a_timeout_of_its_own() -> None:
    broker = MemoryBroker()
    arguments = {"x-consumer-timeout": 1500}
    play(Peer(broker), [QueueDeclare("q"), BasicConsume("q", "t", arguments=arguments)])
    assert broker.queues["/", "q"].consumers[0].wanted.timeout == 1_500_000
