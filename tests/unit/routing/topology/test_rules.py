"""What each change does, and what is refused, with RabbitMQ 3.10's codes and texts."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.routing.topology.changes import (
    AddVhost,
    Bind,
    Change,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    DropGroup,
    DropOwner,
    QueueUnused,
    SetPolicy,
    SetVhostLimits,
    Unbind,
)
from fluxmq.routing.topology.records import Binding, Exchange, Policy, QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Delta, Topology

LOCKED = (
    "cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on another "
    "connection or the exclusive property value does not match that of the original declaration."
)
DEFAULT = "operation not permitted on the default exchange"


def exchange(name: str, kind: str = "direct", **fields: Any) -> DeclareExchange:
    return DeclareExchange(Exchange("/", name, kind, **fields))


def queue(name: str, **fields: Any) -> DeclareQueue:
    return DeclareQueue(QueueRecord("/", name, **fields))


def bind(source: str, name: str, key: str = "", asker: str | None = None, **arguments: Any) -> Bind:
    return Bind(Binding("/", source, name, "queue", key, arguments), asker)


def link(source: str, name: str, key: str = "") -> Bind:
    return Bind(Binding("/", source, name, "exchange", key))


def unbind(change: Bind, asker: str | None = None) -> Unbind:
    return Unbind(change.binding, asker)


@pytest.fixture
def topology() -> Topology:
    """One vhost with some of everything."""
    topology = Topology()
    topology.apply_all(
        [
            AddVhost(Vhost("/")),
            exchange("e"),
            exchange("i", internal=True),
            queue("q"),
            queue("mine", exclusive=True, owner="me", durable=True),
            queue("ttl", arguments={"x-message-ttl": 1000}),
            queue("big", type="quorum", durable=True, arguments={"x-queue-type": "quorum"}),
            queue("file", type="quorum", durable=True, origin="settings", group="g"),
            bind("e", "q", "k"),
            bind("e", "mine", "k"),
            SetVhostLimits("/", {"max-queues": 5}),
        ]
    )
    return topology


REFUSED: list[tuple[Change, int, str]] = [
    (exchange("u", "nope"), 503, "unknown exchange type 'nope'"),
    (exchange("e", "nope"), 503, "unknown exchange type 'nope'"),
    (exchange(""), 403, DEFAULT),
    (exchange("amq.foo"), 403, "exchange name 'amq.foo' contains reserved prefix 'amq.*'"),
    (
        exchange("e", "fanout"),
        406,
        "inequivalent arg 'type' for exchange 'e' in vhost '/': received 'fanout' but current is 'direct'",
    ),
    *(
        (
            exchange("e", "direct", **{field: True}),
            406,
            f"inequivalent arg '{field}' for exchange 'e' in vhost '/': received 'true' but current is 'false'",
        )
        for field in ("durable", "auto_delete", "internal")
    ),
    (
        exchange("e", arguments={"alternate-exchange": "foo"}),
        406,
        (
            "inequivalent arg 'alternate-exchange' for exchange 'e' in vhost '/': "
            "received the value 'foo' of type 'longstr' but current is none"
        ),
    ),
    (
        exchange("amq.direct"),
        406,
        "inequivalent arg 'durable' for exchange 'amq.direct' in vhost '/': received 'false' but current is 'true'",
    ),
    (
        exchange("n", arguments={"alternate-exchange": 4}),
        406,
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'n' in vhost '/'",
    ),
    (DeleteExchange("/", ""), 403, DEFAULT),
    *(
        (
            DeleteExchange("/", name),
            403,
            f"deletion of system exchange '{name}' in vhost '/' not allowed",
        )
        for name in ("amq.topic", "amq.missing")
    ),
    (DeleteExchange("/", "e", if_unused=True), 406, "exchange 'e' in vhost '/' in use"),
    (
        queue("q", durable=True),
        406,
        "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'",
    ),
    (
        queue("q", auto_delete=True),
        406,
        "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true' but current is 'false'",
    ),
    (queue("q", exclusive=True, owner="me"), 405, LOCKED.replace("mine", "q")),
    (queue("mine", exclusive=True, owner="you"), 405, LOCKED),
    (queue("mine"), 405, LOCKED),
    (
        queue("q", arguments={"x-message-ttl": 1000}),
        406,
        (
            "inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': "
            "received the value '1000' of type 'signedint' but current is none"
        ),
    ),
    (
        queue("ttl"),
        406,
        (
            "inequivalent arg 'x-message-ttl' for queue 'ttl' in vhost '/': "
            "received none but current is the value '1000' of type 'signedint'"
        ),
    ),
    *(
        (
            queue("ttl", arguments={"x-message-ttl": value}),
            406,
            (
                "inequivalent arg 'x-message-ttl' for queue 'ttl' in vhost '/': "
                f"received '{value}' but current is '1000'"
            ),
        )
        for value in (2000, "2000", "1000")
    ),
    (
        queue("q", type="quorum", arguments={"x-queue-type": "quorum"}),
        406,
        (
            "inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': "
            "received the value 'quorum' of type 'longstr' but current is none"
        ),
    ),
    (
        queue("big", durable=True),
        406,
        (
            "inequivalent arg 'x-queue-type' for queue 'big' in vhost '/': "
            "received none but current is the value 'quorum' of type 'longstr'"
        ),
    ),
    (
        queue("big", durable=True, arguments={"x-queue-type": "classic"}),
        406,
        (
            "inequivalent arg 'x-queue-type' for queue 'big' in vhost '/': "
            "received 'classic' but current is 'quorum'"
        ),
    ),
    (
        queue("file", durable=True, arguments={"x-queue-type": "classic"}),
        406,
        (
            "inequivalent arg 'x-queue-type' for queue 'file' in vhost '/': "
            "received 'classic' but current is 'quorum'"
        ),
    ),
    (
        queue("file"),
        406,
        "inequivalent arg 'durable' for queue 'file' in vhost '/': received 'false' but current is 'true'",
    ),
    (queue("sixth"), 406, "cannot declare queue 'sixth': queue limit in vhost '/' (5) is reached"),
    (DeleteQueue("/", "mine", "you"), 405, LOCKED),
    (
        DeleteQueue("/", "file", "me"),
        403,
        "deletion of configured queue 'file' in vhost '/' not allowed",
    ),
    (DeleteQueue("/", "file"), 403, "deletion of configured queue 'file' in vhost '/' not allowed"),
    (bind("e", "nq"), 404, "no queue 'nq' in vhost '/'"),
    (bind("nox", "q"), 404, "no exchange 'nox' in vhost '/'"),
    (bind("nox", "nq"), 404, "no exchange 'nox' in vhost '/'"),
    (bind("", "q"), 403, DEFAULT),
    (bind("e", "mine", "k", "you"), 405, LOCKED),
    (
        bind("amq.headers", "mine", "", "you", **{"x-match": 4}),
        406,
        "Invalid x-match field type signedint (value 4); expected longstr",
    ),
    (unbind(bind("", "q")), 403, DEFAULT),
    (unbind(bind("e", "mine", "k"), "you"), 405, LOCKED),
    (link("e", "nod"), 404, "no exchange 'nod' in vhost '/'"),
    (link("nos", "nod"), 404, "no exchange 'nos' in vhost '/'"),
    (link("", "e"), 403, DEFAULT),
    (link("e", ""), 403, DEFAULT),
    (unbind(link("e", "")), 403, DEFAULT),
    (ClearPolicy("/", "p"), 404, "no policy 'p' in vhost '/'"),
    (DeleteVhost("v"), 404, "no vhost 'v'"),
    (SetVhostLimits("v", {}), 404, "no vhost 'v'"),
    (SetVhostLimits("/", {"zork": 2}), 406, 'Unrecognised terms [{<<"zork">>,2}] in limits'),
    (
        SetVhostLimits("/", {"max-queues": "a"}),
        406,
        'max-queues should be a number, actually was <<"a">>',
    ),
    (
        SetVhostLimits("/", {"max-queues": True}),
        406,
        "max-queues should be a number, actually was true",
    ),
    (AddVhost(Vhost("a\x1fb")), 406, "a vhost's name is empty or has control characters"),
    *(
        (change, 404, "no vhost 'v'")
        for change in (
            DeclareExchange(Exchange("v", "e")),
            DeclareQueue(QueueRecord("v", "q")),
            DeleteExchange("v", "e"),
            DeleteQueue("v", "q"),
            DeleteQueue("v", "q", by_broker=True),
            Bind(Binding("v", "e", "q")),
            Unbind(Binding("v", "e", "q")),
            SetPolicy(Policy("v", "p", "", definition={"max-length": 1})),
            ClearPolicy("v", "p"),
        )
    ),
]


@pytest.mark.parametrize(("change", "code", "text"), REFUSED)
def test_what_is_refused(topology: Topology, change: Change, code: int, text: str) -> None:
    before = topology.snapshot()
    with pytest.raises(Refusal) as caught:
        topology.apply(change)
    assert caught.value == Refusal(code, text)
    assert str(caught.value) == text
    assert topology.snapshot() == before


SAME: list[Change] = [
    exchange("e"),
    exchange("e", arguments={"zork": "foo"}),
    exchange("amq.direct", durable=True),
    exchange("amq.rabbitmq.trace", "topic", durable=True, internal=True),
    queue("q"),
    queue("q", arguments={"zork": 1000}),
    queue("q", arguments={"x-queue-type": "classic"}),
    queue("q", group="elsewhere"),
    queue("mine", exclusive=True, owner="me"),
    queue("mine", exclusive=True, owner="me", durable=True),
    queue("ttl", arguments={"x-message-ttl": 1000, "zork": 1}),
    queue("big", type="quorum", durable=True, arguments={"x-queue-type": "quorum"}),
    queue("big", type="quorum", durable=True),
    queue("file", durable=True),
    queue("file", type="quorum", durable=True, arguments={"x-queue-type": "quorum"}),
    queue("file", type="quorum", durable=True, origin="settings", group="g"),
    DeleteExchange("/", "missing"),
    DeleteQueue("/", "missing", "me"),
    DeleteQueue("/", "missing", by_broker=True),
    bind("e", "q", "k"),
    unbind(bind("e", "q", "zz")),
    unbind(bind("e", "q", "k", more=1)),
    unbind(bind("e", "q", "k", wrong=NotImplemented)),
    unbind(bind("e", "nq")),
    unbind(bind("nox", "q")),
    unbind(bind("e", "mine", "other"), "you"),
    QueueUnused("/", "q"),
    QueueUnused("/", "missing"),
    QueueUnused("v", "q"),
    DropOwner("you"),
    DropGroup("other"),
    AddVhost(Vhost("/")),
    SetVhostLimits("/", {"max-queues": 5}),
]


@pytest.mark.parametrize("change", SAME, ids=repr)
def test_what_changes_nothing(topology: Topology, change: Change) -> None:
    before = topology.snapshot()
    assert topology.apply(change) == Delta(topology.revision, topology.revision, ())
    assert topology.snapshot() == before


def test_a_queue_of_the_settings_takes_the_place_of_another(topology: Topology) -> None:
    settings = QueueRecord("/", "q", "stream", durable=True, origin="settings")
    delta = topology.apply(DeclareQueue(settings))
    assert [row.kind for row in delta.rows] == ["queue"]
    assert topology.queue("/", "q") == settings
    assert topology.bindings_to("/", "queue", "q")


def test_the_broker_ends_a_queue_whoever_declared_it(topology: Topology) -> None:
    topology.apply_all([DeleteQueue("/", name, by_broker=True) for name in ("file", "mine")])
    assert [each.name for each in topology.queues("/")] == ["q", "ttl", "big"]


@pytest.mark.parametrize("limit", [-1, 6])
def test_limits_of_queues(topology: Topology, limit: int) -> None:
    topology.apply_all([SetVhostLimits("/", {"max-queues": limit}), queue("sixth")])
    assert topology.queue("/", "sixth") is not None


def test_records_of_a_node_are_bounded() -> None:
    topology = Topology(records_max=10)
    topology.apply_all([AddVhost(Vhost("/")), queue("a"), queue("b")])
    with pytest.raises(
        Refusal, match=r"limit of exchanges, queues and bindings of the node \(10\)"
    ):
        topology.apply(queue("c"))
    topology.apply_all([DeleteQueue("/", "a"), queue("c")])
    assert len(topology) == 10


def names(topology: Topology) -> set[str]:
    """Exchanges and queues that a test made."""
    found = {each.name for each in topology.exchanges("/") if each.name.startswith("x")}
    return found | {each.name for each in topology.queues("/")}


X: dict[str, Any] = {"auto_delete": True}
CASCADES: list[tuple[str, list[Change], list[Change], set[str]]] = [
    (
        "unbinding the last",
        [exchange("x1", **X), queue("q"), bind("x1", "q")],
        [unbind(bind("x1", "q"))],
        {"q"},
    ),
    (
        "unbinding one of two",
        [exchange("x1", **X), queue("q"), bind("x1", "q"), bind("x1", "q", "k")],
        [unbind(bind("x1", "q"))],
        {"q", "x1"},
    ),
    (
        "unbinding what is not bound",
        [exchange("x1", **X), queue("q")],
        [unbind(bind("x1", "q"))],
        {"q", "x1"},
    ),
    (
        "deleting the queue",
        [exchange("x1", **X), queue("q"), bind("x1", "q")],
        [DeleteQueue("/", "q")],
        set(),
    ),
    (
        "being a destination only",
        [exchange("x1", **X), link("amq.fanout", "x1")],
        [unbind(link("amq.fanout", "x1"))],
        {"x1"},
    ),
    (
        "a chain",
        [exchange("x1", **X), exchange("x2", **X), link("x1", "x2"), queue("q"), bind("x2", "q")],
        [unbind(bind("x2", "q"))],
        {"q"},
    ),
    (
        "a cycle that queues keep",
        [
            exchange("x1", **X),
            exchange("x2", **X),
            link("x1", "x2"),
            link("x2", "x1"),
            queue("q"),
            bind("x2", "q"),
        ],
        [DeleteQueue("/", "q")],
        {"x1", "x2"},
    ),
    (
        "deleting the destination exchange",
        [exchange("x1", **X), exchange("x2"), link("x1", "x2")],
        [DeleteExchange("/", "x2")],
        set(),
    ),
    (
        "a loop onto itself",
        [exchange("x1", **X), link("x1", "x1")],
        [unbind(link("x1", "x1"))],
        set(),
    ),
    (
        "if-unused of a destination only",
        [exchange("x1"), link("amq.fanout", "x1")],
        [DeleteExchange("/", "x1", if_unused=True)],
        set(),
    ),
    (
        "the last consumer leaves",
        [queue("q", auto_delete=True), queue("r"), exchange("x1", **X), bind("x1", "q")],
        [QueueUnused("/", "q"), QueueUnused("/", "r")],
        {"r"},
    ),
    (
        "a connection ends",
        [
            queue("q", exclusive=True, owner="me"),
            queue("r", exclusive=True, owner="you"),
            exchange("x1", **X),
            bind("x1", "q"),
        ],
        [DropOwner("me")],
        {"r"},
    ),
    (
        "a memory is gone",
        [queue("q", group="memory-1"), queue("r", group="memory-2"), bind("amq.topic", "q")],
        [DropGroup("memory-1")],
        {"r"},
    ),
]


@pytest.mark.parametrize(
    ("made", "done", "left"), [case[1:] for case in CASCADES], ids=[case[0] for case in CASCADES]
)
def test_cascades(made: list[Change], done: list[Change], left: set[str]) -> None:
    topology = Topology()
    topology.apply_all([AddVhost(Vhost("/")), *made])
    copy = Topology()
    copy.take(topology.snapshot())
    copy.take(topology.apply_all(done))
    assert names(topology) == names(copy) == left
    assert {row.key for row in topology.snapshot().rows} == {
        row.key for row in copy.snapshot().rows
    }
