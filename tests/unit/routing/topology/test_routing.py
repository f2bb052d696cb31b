"""From exchange and routing key to queues; edges as RabbitMQ 3.10 has them."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.routing.topics import matches
from fluxmq.routing.topology import routing
from fluxmq.routing.topology.changes import (
    AddVhost,
    Bind,
    Change,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    SetPolicy,
    Unbind,
)
from fluxmq.routing.topology.records import Binding, Exchange, Policy, QueueRecord, Vhost
from fluxmq.routing.topology.routing import DELAY_MAX, delay_of, route, topic_filters
from fluxmq.routing.topology.topic_trie import TopicTrie
from fluxmq.routing.topology.topology import Topology


def exchange(name: str, kind: str = "fanout", **arguments: Any) -> DeclareExchange:
    known = {key.replace("_", "-"): value for key, value in arguments.items()}
    return DeclareExchange(Exchange("/", name, kind, arguments=known))


def bind(source: str, name: str, key: str = "", **arguments: Any) -> Bind:
    return Bind(Binding("/", source, name, "queue", key, arguments))


def link(source: str, name: str, key: str = "") -> Bind:
    return Bind(Binding("/", source, name, "exchange", key))


def made(*changes: Change) -> Topology:
    """A topology with queues q, r and s."""
    topology = Topology()
    queues = [DeclareQueue(QueueRecord("/", name)) for name in ("s", "r", "q")]
    topology.apply_all([AddVhost(Vhost("/")), *queues, *changes])
    return topology


def names(
    topology: Topology, source: str, key: str = "", headers: dict[str, Any] | None = None
) -> str:
    """Queues reached at once; those reached later behind a bar."""
    routed = route(topology, "/", source, key, headers)
    found = "".join(queue.name for queue in routed.queues)
    later = "".join(queue.name for queue in routed.delayed)
    return f"{found}|{later} {routed.delayed_ms}" if later or routed.delayed_ms else found


def test_types() -> None:
    topology = made(
        bind("amq.direct", "q", "k"),
        bind("amq.direct", "r", "k"),
        bind("amq.direct", "s", "other"),
        bind("amq.fanout", "q", "k"),
        bind("amq.fanout", "q", "other"),
        bind("amq.fanout", "s"),
        bind("amq.topic", "q", "a.*"),
        bind("amq.topic", "q", "#"),
        bind("amq.topic", "r", "a.b"),
        bind("amq.match", "r", a=1),
    )
    assert names(topology, "amq.direct", "k") == "qr"
    assert names(topology, "amq.direct", "none") == ""
    assert names(topology, "amq.fanout", "whatever") == "qs"
    assert names(topology, "amq.topic", "a.b") == "qr"
    assert names(topology, "amq.topic", "") == "q"
    assert names(topology, "amq.match", "", {"a": 1}) == "r"
    assert names(topology, "amq.match", "", {"a": 2}) == ""
    assert names(topology, "amq.match") == ""
    assert names(topology, "missing", "k") == ""
    assert route(topology, "v", "amq.direct", "k") == routing.NOWHERE


def test_the_default_exchange_knows_every_queue() -> None:
    dead = DeclareQueue(QueueRecord("/", "$dlq/q"))
    odd = DeclareQueue(QueueRecord("/", "$queue/r"))
    topology = made(dead)
    assert names(topology, "", "q") == "q"
    assert names(topology, "", "none") == ""
    assert names(topology, "", "$queue/q") == "q"
    assert names(topology, "", "$queue/q/eu/1") == "q"
    assert names(topology, "", "$queue/none") == ""
    assert names(topology, "", "$queue/q/$ack") == ""
    assert names(topology, "", "$queue/q/$ack/x") == ""
    assert names(topology, "", "$queue/") == ""
    assert names(topology, "", "$dlq/q") == names(topology, "", "$dlq/q/eu") == "$dlq/q"
    topology.apply(odd)
    assert names(topology, "", "$queue/r") == "$queue/r"
    topology.apply(DeleteQueue("/", "q"))
    assert names(topology, "", "q") == names(topology, "", "$queue/q") == ""


def test_exchanges_lead_to_exchanges_and_cycles_end() -> None:
    topology = made(
        exchange("a"),
        exchange("b"),
        exchange("c", "direct"),
        link("a", "b"),
        link("b", "a"),
        link("b", "c", ""),
        link("a", "a"),
        bind("a", "q"),
        bind("b", "q"),
        bind("b", "r"),
        bind("c", "s", "k"),
    )
    assert names(topology, "a", "k") == names(topology, "b", "k") == "qrs"
    assert names(topology, "a", "x") == "qr"


def test_long_chains_take_no_stack() -> None:
    count = 3000
    chain = [exchange(f"x{number}") for number in range(count)]
    links = [link(f"x{number}", f"x{number + 1}") for number in range(count - 1)]
    topology = made(*chain, *links, bind(f"x{count - 1}", "q"))
    assert names(topology, "x0") == "q"


def test_an_alternate_gets_what_leads_nowhere() -> None:
    topology = made(
        exchange("last"),
        bind("last", "s"),
        exchange("first", "direct", alternate_exchange="last"),
        bind("first", "q", "k"),
    )
    assert names(topology, "first", "k") == "q"
    assert names(topology, "first", "other") == "s"
    topology.apply(DeleteExchange("/", "last"))
    assert names(topology, "first", "other") == ""


def test_an_exchange_that_leads_to_another_needs_no_alternate() -> None:
    # As RabbitMQ 3.10.8 answered: what becomes of the message at the other makes no difference.
    topology = made(
        exchange("last"),
        bind("last", "s"),
        exchange("outer", alternate_exchange="last"),
        exchange("inner"),
        link("outer", "inner"),
    )
    assert names(topology, "outer") == ""
    topology.apply_all([exchange("deep", alternate_exchange="last"), link("inner", "deep")])
    assert names(topology, "outer") == "s"


def test_alternates_go_round_once_and_the_default_exchange_is_none() -> None:
    topology = made(
        exchange("a", "direct", alternate_exchange="b"),
        exchange("b", "direct", alternate_exchange="a"),
        bind("a", "q", "k"),
        exchange("d", "direct", alternate_exchange=""),
    )
    assert names(topology, "b", "k") == "q"
    assert names(topology, "b", "none") == ""
    assert names(topology, "d", "q") == ""


def test_a_policy_gives_an_alternate_and_the_argument_prevails() -> None:
    topology = made(
        exchange("one"),
        bind("one", "q"),
        exchange("two"),
        bind("two", "r"),
        exchange("told", "direct", alternate_exchange="one"),
        exchange("untold", "direct"),
    )
    assert names(topology, "untold") == ""
    topology.apply(SetPolicy(Policy("/", "p", "told$", definition={"alternate-exchange": "two"})))
    assert names(topology, "untold") == "r"
    assert names(topology, "told") == "q"
    topology.apply(ClearPolicy("/", "p"))
    assert names(topology, "untold") == ""


def test_a_hash_gives_each_message_to_one() -> None:
    topology = made(
        exchange("h", "x-consistent-hash"),
        exchange("p", "x-consistent-hash", hash_property="message_id"),
        *(bind(name, queue, "1") for name in "hp" for queue in "qrs"),
    )
    found = {names(topology, "h", f"key-{number}") for number in range(40)}
    assert found == {"q", "r", "s"}
    by_property = {
        route(topology, "/", "p", "k", None, {"message_id": str(number)}).queues[0].name
        for number in range(40)
    }
    assert by_property == {"q", "r", "s"}


def test_keys_that_are_not_utf8_lead_where_they_match() -> None:
    key = b"$queue/\xff".decode("utf-8", "surrogateescape")
    topology = made(
        bind("amq.topic", "q", "#"), exchange("h", "x-consistent-hash"), bind("h", "r", "1")
    )
    found = {
        source: names(topology, source, key) for source in ("", "amq.topic", "amq.direct", "h")
    }
    assert found == {"": "", "amq.topic": "q", "amq.direct": "", "h": "r"}


def test_a_delay() -> None:
    topology = made(
        exchange("d", "x-delayed-message", x_delayed_type="topic"),
        bind("d", "q", "a.#"),
        bind("d", "r", "b"),
    )
    assert names(topology, "d", "a.b") == "q"
    assert names(topology, "d", "a.b", {"x-delay": 500}) == "|q 500"
    assert names(topology, "d", "a.b", {"x-delay": 0}) == "q"
    assert names(topology, "d", "none", {"x-delay": 500}) == ""
    assert names(topology, "d", "a.b", {"x-delay": 700}) == "|q 700"


def test_what_goes_round_a_delay_is_not_delayed() -> None:
    topology = made(
        exchange("a"),
        exchange("d", "x-delayed-message", x_delayed_type="fanout"),
        exchange("behind"),
        link("a", "d"),
        link("d", "behind"),
        bind("a", "q"),
        bind("d", "q"),
        bind("d", "r"),
        bind("behind", "s"),
    )
    assert names(topology, "a", "", {"x-delay": 5}) == "q|rs 5"
    assert names(topology, "d", "", {"x-delay": 5}) == "|qrs 5"
    topology.apply(link("a", "behind"))
    assert names(topology, "a", "", {"x-delay": 5}) == "qs|r 5"
    assert names(topology, "a") == "qrs"


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        (None, 0),
        ({}, 0),
        ({"x-delay": 5}, 5),
        ({"x-delay": -5}, 0),
        ({"x-delay": True}, 0),
        ({"x-delay": "5"}, 0),
        ({"x-delay": 5.0}, 0),
        ({"x-delay": DELAY_MAX + 1}, DELAY_MAX),
    ],
)
def test_delays(headers: dict[str, Any] | None, delay: int) -> None:
    assert delay_of(headers) == delay


def test_a_route_is_kept_until_a_change_could_make_another() -> None:
    topology = made(exchange("a"), link("a", "amq.topic"), bind("amq.topic", "q", "k"))
    kept = route(topology, "/", "a", "k")
    assert route(topology, "/", "a", "k") is kept
    topology.apply(DeclareQueue(QueueRecord("/", "new")))
    assert route(topology, "/", "a", "k") is kept
    topology.apply(bind("amq.topic", "r", "#"))
    assert names(topology, "a", "k") == "qr"
    topology.apply(Unbind(Binding("/", "amq.topic", "r", routing_key="#")))
    assert names(topology, "a", "k") == "q"
    settings = QueueRecord("/", "q", "quorum", durable=True, origin="settings")
    topology.apply(DeclareQueue(settings))
    assert route(topology, "/", "a", "k").queues == (settings,)
    topology.apply_all([DeleteQueue("/", "q", by_broker=True), DeclareQueue(QueueRecord("/", "q"))])
    assert names(topology, "a", "k") == ""


def test_a_copy_forgets_as_well() -> None:
    topology, copy = made(bind("amq.fanout", "q")), Topology()
    copy.take(topology.snapshot())
    assert names(copy, "amq.fanout") == "q"
    copy.take(topology.apply(bind("amq.fanout", "r")))
    assert names(copy, "amq.fanout") == "qr"
    copy.take(topology.apply(DeleteQueue("/", "q")))
    assert names(copy, "amq.fanout") == "r"
    copy.take(Topology().snapshot())
    assert names(copy, "amq.fanout") == ""


def test_routes_that_look_at_headers_are_not_kept() -> None:
    topology = made(
        exchange("a"),
        link("a", "amq.headers"),
        bind("amq.headers", "q", a=1),
        exchange("h", "x-consistent-hash", hash_header="h"),
        exchange("d", "x-delayed-message", x_delayed_type="direct"),
    )
    assert names(topology, "a", "k", {"a": 1}) == "q"
    assert names(topology, "a", "k", {"a": 2}) == ""
    space = topology.space("/")
    assert space is not None
    for source in ("a", "h", "d"):
        route(topology, "/", source, "k")
    assert space.routes == {}


def test_kept_routes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "ROUTES_MAX", 10)
    topology = made(bind("amq.topic", "q", "#"))
    space = topology.space("/")
    assert space is not None
    for number in range(100):
        assert names(topology, "amq.topic", f"key-{number}") == "q"
        assert 0 < len(space.routes) <= 10


def test_a_redeclared_exchange_keeps_nothing_of_the_old_one() -> None:
    topology, copy = made(exchange("a"), bind("a", "q", "k")), Topology()
    copy.take(topology.snapshot())
    change: list[Change] = [DeleteExchange("/", "a"), exchange("a", "direct"), bind("a", "q", "k")]
    copy.take(topology.apply_all(change))
    for each in (topology, copy):
        assert names(each, "a", "k") == "q"
        assert names(each, "a", "other") == ""


FILTERS = [
    ("a.b", "a/b", True),
    ("a.*.b", "a/+/b", True),
    ("a.#", "a/#", True),
    ("#", "#", True),
    ("a.#.b", "a/#", False),
    ("#.#", "#", False),
    ("a+.b", "+/b", False),
    ("+", "+", False),
    ("a#.*", "+/+", False),
    (".a", "/a", True),
    ("a/b.c", "a.b/c", True),
    (".", "/", True),
]


@pytest.mark.parametrize(("key", "wanted", "exact"), FILTERS)
def test_bindings_of_the_topic_exchange_as_filters(key: str, wanted: str, exact: bool) -> None:
    topology = made(bind("amq.topic", "q", key), bind("amq.fanout", "q", "other"))
    assert [(each.filter, each.exact) for each in topic_filters(topology, "/")] == [(wanted, exact)]


def test_a_filter_covers_its_binding() -> None:
    topics = ["a", "a/b", "a/x/b", "a/b/c/b", "/", "/a", "b", "a+", "x/y", "a/", "a.b/c", "a/c/d"]
    for key, covering, exact in FILTERS:
        trie: TopicTrie[int] = TopicTrie()
        trie.add(key, 1)
        for topic in topics:
            routed = bool(trie.find(topic.translate(str.maketrans("/.", "./"))))
            covered = matches(covering.encode(), topic.encode())
            assert covered or not routed, (key, topic)
            assert routed or not (exact and covered), (key, topic)


def test_a_binding_without_words_wants_no_topic() -> None:
    assert topic_filters(made(bind("amq.topic", "q", "")), "/") == []
    assert topic_filters(made(), "v") == []
