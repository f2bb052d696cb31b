"""Acknowledgements: tags that are and are not outstanding, recovery, and a model of random settling.

The queues of ``memory`` hold it against whoever settles what its consumer does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluxmq.protocols.amqp091.content import BasicProperties
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    ConnectionClose,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxRollback,
    TxSelect,
)
from fluxmq.queues.commands import Verb
from fluxmq.sessions.amqp091.ports import ConfirmCallback, Range
from tests.unit.sessions.amqp091.memory import MemoryBroker, Message, Peer
from tests.unit.sessions.amqp091.scripts import Publish, Script, check, closed, ended, named, play

NOT_RECOVERED = "requeue=false"
DELIVERED = Message(BasicDeliver("t", 1, False, "", "q"), BasicProperties(), b"x")


def unknown(method: Method, tag: int) -> Script:
    return Script(
        f"{type(method).__name__} {tag}",
        [method],
        [closed(406, f"unknown delivery tag {tag}", type(method))],
    )


SCRIPTS = [
    unknown(BasicAck(1), 1),
    unknown(BasicAck(0), 0),
    unknown(BasicAck(5, True), 5)._replace(name="BasicAck multiple"),
    unknown(BasicNack(1), 1),
    unknown(BasicNack(5, True), 5)._replace(name="BasicNack multiple"),
    unknown(BasicReject(1), 1),
    Script(
        "all of nothing", [BasicAck(0, True), BasicNack(0, True), BasicQos(0, 0)], [BasicQosOk()]
    ),
    Script("recover nothing", [BasicRecover(True)], [BasicRecoverOk()]),
    Script("recover to the same", [BasicRecover(False)], [ended(540, NOT_RECOVERED, BasicRecover)]),
    Script("recover without answer", [BasicRecoverAsync(True), BasicQos(0, 0)], [BasicQosOk()]),
    Script(
        "recover to the same, without answer",
        [BasicRecoverAsync(False)],
        [ended(540, NOT_RECOVERED, BasicRecoverAsync)],
    ),
    Script(
        "twice",
        [QueueDeclare("q"), Publish("", "q"), BasicConsume("q", "t"), BasicAck(1), BasicAck(1)],
        [
            QueueDeclareOk("q", 0, 0),
            BasicConsumeOk("t"),
            DELIVERED,
            closed(406, "unknown delivery tag 1", BasicAck),
        ],
    ),
    Script(
        "recovered messages come again with new tags",
        [
            QueueDeclare("q"),
            Publish("", "q"),
            BasicConsume("q", "t"),
            BasicRecover(True),
            BasicAck(1),
        ],
        [
            QueueDeclareOk("q", 0, 0),
            BasicConsumeOk("t"),
            DELIVERED,
            BasicRecoverOk(),
            DELIVERED._replace(method=BasicDeliver("t", 2, True, "", "q")),
            closed(406, "unknown delivery tag 1", BasicAck),
        ],
    ),
]


@pytest.mark.parametrize(**named(SCRIPTS))
def test_settling(script: Script) -> None:
    check(script)


@pytest.mark.parametrize(
    ("methods", "settled"),
    [
        ([BasicAck(2)], [(Verb.ACK, 1)]),
        ([BasicAck(3, True)], [(Verb.ACK, 0), (Verb.ACK, 1), (Verb.ACK, 2)]),
        ([BasicAck(2), BasicAck(0, True)], [(Verb.ACK, offset) for offset in range(4)]),
        ([BasicReject(2)], [(Verb.REJECT, 1)]),
        ([BasicReject(2, True)], [(Verb.NACK, 1)]),
        ([BasicNack(2, True)], [(Verb.REJECT, 0), (Verb.REJECT, 1)]),
        ([BasicNack(2, True, True)], [(Verb.NACK, 0), (Verb.NACK, 1)]),
    ],
)
def test_what_queues_are_told(methods: list[Method], settled: list[tuple[Verb, int]]) -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(1, QueueDeclare("q"), BasicQos(0, 4), BasicConsume("q", "t"))
    for number in range(4):
        peer.publish("", "q", b"%d" % number)
    peer.receive()
    peer.send(1, *methods)
    broker.handler.flush_marked()
    assert sorted(broker.queues["/", "q"].settled) == sorted(settled)


def test_recover_gives_back_what_was_taken_by_get_as_well() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    play(
        peer,
        [QueueDeclare("q"), Publish("", "q"), BasicGet("q"), BasicRecover(True), BasicGet("q")],
    )
    got = peer.got()
    assert [type(item).__name__ for item in got] == [
        "QueueDeclareOk",
        "Message",
        "BasicRecoverOk",
        "Message",
    ]
    again = got[3]
    assert isinstance(again, Message)
    assert again.method == BasicGetOk(2, True, "", "q", 0)


def test_acknowledgements_of_a_tick_are_told_at_once() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    play(peer, [QueueDeclare("q"), BasicConsume("q", "t")])
    for number in range(10):
        peer.publish("", "q", b"%d" % number)
    peer.receive()
    told: list[object] = []
    handle = broker.queues["/", "q"].consumers[0]
    settle = handle.settle

    def noted(
        verb: Verb, ranges: Sequence[Range], delay: int, reason: bytes, done: ConfirmCallback | None
    ) -> None:
        told.append(ranges)
        settle(verb, ranges, delay, reason, done)

    handle.settle = noted  # type: ignore[method-assign]
    peer.send(1, BasicAck(3), BasicAck(1), BasicAck(2), BasicAck(7), BasicAck(6, True))
    assert told == []
    peer.receive()
    assert told == [[(0, 6)]]


# --- a model ---

SETTLE = st.one_of(
    st.builds(BasicAck, st.integers(0, 30), st.booleans()),
    st.builds(BasicNack, st.integers(0, 30), st.booleans(), st.booleans()),
    st.builds(BasicReject, st.integers(1, 30), st.booleans()),
    st.builds(BasicRecover, st.just(True)),
    st.just("get"),
    st.just("publish"),
    st.just("tick"),
)
TRANSACTIONAL = st.one_of(SETTLE, st.just(TxCommit()), st.just(TxRollback()))


class Model:
    """What is outstanding, by tag; what was settled for good, by body; within a transaction, what is not committed."""

    def __init__(self) -> None:
        self.outstanding: dict[int, bytes] = {}
        self.done: list[bytes] = []
        self.pending: dict[int, tuple[bytes, bool]] = {}

    def take(self, items: Iterable[object]) -> None:
        """Deliveries came."""
        for item in items:
            if isinstance(item, Message):
                tag = item.method.delivery_tag  # type: ignore[attr-defined]
                assert tag not in self.outstanding
                self.outstanding[tag] = item.body

    def named(self, method: BasicAck | BasicNack | BasicReject) -> list[int] | None:
        """The tags that it settles; None when it names none that is outstanding."""
        tag = method.delivery_tag
        if getattr(method, "multiple", False):
            if tag and tag not in self.outstanding:
                return None
            return [each for each in self.outstanding if not tag or each <= tag]
        return [tag] if tag in self.outstanding else None

    def settle(self, tags: list[int], method: Method, transaction: bool) -> None:
        """Do what it says."""
        kept = bool(getattr(method, "requeue", False))
        for tag in tags:
            body = self.outstanding.pop(tag)
            if transaction:
                self.pending[tag] = (body, kept)
            elif not kept:
                self.done.append(body)


def run_model(steps: list[object], transaction: bool) -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(1, QueueDeclare("a"), QueueDeclare("b"), BasicQos(0, 5))
    peer.send(1, BasicConsume("a", "one"), BasicConsume("a", "two"), BasicConsume("b", "three"))
    if transaction:
        peer.send(1, TxSelect())
    helper = Peer(broker)
    peer.receive()
    model = Model()
    published = 0
    for step in steps:
        if step == "publish":
            for queue in ("a", "b", "a"):
                helper.publish("", queue, b"%d" % published)
                published += 1
        elif step == "get":
            peer.send(1, BasicGet("b"))
        elif isinstance(step, BasicAck | BasicNack | BasicReject):
            tags = model.named(step)
            if tags is None:
                continue
            model.settle(tags, step, transaction)
            peer.send(1, step)
        elif isinstance(step, BasicRecover):
            model.outstanding.clear()
            peer.send(1, step)
        elif isinstance(step, TxCommit | TxRollback):
            for tag, (body, kept) in model.pending.items():
                if isinstance(step, TxRollback):
                    model.outstanding[tag] = body
                elif not kept:
                    model.done.append(body)
            model.pending.clear()
            peer.send(1, step)
        model.take(item for number, item in peer.receive(tick=step == "tick") if number == 1)
        assert peer.session.channels[1].is_open
    if transaction:
        broker.tick()  # a commit waits for the answer to the one before it, and is lost until then
    broker.handler.lost(peer.connection)
    broker.tick()
    gone = [
        (queue.record.name, offset)
        for queue in broker.queues.values()
        for verb, offset in queue.settled
        if verb in (Verb.ACK, Verb.REJECT)
    ]
    assert len(gone) == len(set(gone)), "nothing is settled twice"
    assert len(gone) == len(model.done)
    left = [
        batch.payload(index)
        for queue in broker.queues.values()
        for batch, index in (queue.messages[offset] for offset in queue.ready)
    ]
    assert sorted(left + model.done) == sorted(b"%d" % number for number in range(published))


@settings(deadline=None)
@given(st.lists(SETTLE, max_size=60))
def test_every_message_is_settled_once_or_comes_again(steps: list[object]) -> None:
    run_model(["publish", "tick", *steps], transaction=False)


@settings(deadline=None)
@given(st.lists(TRANSACTIONAL, max_size=60))
@example([BasicAck(2), TxCommit(), BasicAck(1), TxCommit()])
def test_every_message_is_settled_once_in_transactions(steps: list[object]) -> None:
    run_model(["publish", "tick", *steps], transaction=True)


def test_acknowledgements_do_not_overtake_what_waits() -> None:
    """Behind a method whose answer is awaited, what a channel said before an acknowledgement counts first."""
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(1, QueueDeclare("q"), BasicConsume("q", "t"))
    for number in range(7):
        peer.publish("", "q", b"%d" % number)
    peer.receive()
    channel = peer.session.channels[1].channel
    answered = channel.later(QueueDeclare, lambda: None)
    peer.send(1, BasicNack(5, True, False), BasicAck(7, True))
    broker.handler.flush_marked()
    assert broker.queues["/", "q"].settled == []
    answered()
    broker.handler.flush_marked()
    settled = broker.queues["/", "q"].settled
    assert sorted(offset for verb, offset in settled if verb is Verb.REJECT) == [0, 1, 2, 3, 4]
    assert sorted(offset for verb, offset in settled if verb is Verb.ACK) == [5, 6]
    assert channel.ledger.direct


def test_an_acknowledgement_within_a_content_is_an_error() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(1, QueueDeclare("q"), BasicConsume("q", "t"))
    peer.publish("", "q", b"x")
    peer.receive()
    peer.send(1, BasicPublish("", "q", False, False), BasicAck(1))
    (close,) = peer.got(0)
    assert isinstance(close, ConnectionClose)
    assert close.reply_code == 505
