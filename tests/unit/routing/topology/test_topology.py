"""The topology as a whole: all or nothing, deltas, copies, what is found in it."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.routing.topology.changes import (
    AddVhost,
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    DropGroup,
    DropOwner,
    SetPolicy,
    SetVhostLimits,
    Unbind,
)
from fluxmq.routing.topology.records import Binding, Exchange, Policy, QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Delta, OutOfStepError, Topology, TopologyRow
from tests.unit.routing.topology.indexes import in_group, owned_by

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


def test_nothing_of_several_changes_stays_when_one_is_refused(topology: Topology) -> None:
    before = topology.snapshot()
    owned, grouped = owned_by(topology, "me"), in_group(topology, "g")
    with pytest.raises(Refusal, match="no queue 'nq'"):
        topology.apply_all(
            [
                DeleteQueue("/", "q"),
                DropOwner("me"),
                DropGroup("g"),
                exchange("new"),
                link("new", "e"),
                DeleteExchange("/", "e"),
                AddVhost(Vhost("v")),
                SetPolicy(Policy("/", "p", "", definition={"max-length": 1})),
                SetVhostLimits("/", {}),
                bind("amq.topic", "nq"),
            ]
        )
    assert sorted(topology.snapshot().rows, key=repr) == sorted(before.rows, key=repr)
    assert topology.revision == before.revision
    assert (owned_by(topology, "me"), in_group(topology, "g")) == (owned, grouped)


def test_a_fault_of_our_own_leaves_nothing_either(topology: Topology) -> None:
    before = topology.snapshot()
    with pytest.raises(KeyError):
        topology.apply_all([exchange("new"), "no change"])  # type: ignore[list-item]
    assert topology.snapshot() == before
    topology.apply(exchange("new"))


def test_a_delta_has_what_is_different_and_no_more(topology: Topology) -> None:
    revision = topology.revision
    delta = topology.apply_all(
        [exchange("gone"), exchange("x"), DeleteExchange("/", "gone"), DeleteQueue("/", "q")]
    )
    assert (delta.revision, delta.previous) == (revision + 1, revision)
    assert [(row.kind, row.key[1], row.row is None) for row in delta.rows] == [
        ("binding", "e", True),
        ("queue", "q", True),
        ("exchange", "x", False),
    ]


def test_deltas_are_plain_values_and_come_back(topology: Topology) -> None:
    for delta in (topology.snapshot(), topology.apply(DeleteQueue("/", "q"))):
        assert Delta.unpack(msgpack.unpackb(msgpack.packb(delta.pack()))) == delta


@pytest.mark.parametrize(
    "packed",
    [
        None,
        [],
        [1, 0],
        ["1", 0, []],
        [True, 0, []],
        [-1, 0, []],
        [1, "0", []],
        [1, 0, None],
        [1, 0, [["queue", ["/"]]]],
        [1, 0, [["zork", ["/"], None]]],
        [1, 0, [["queue", [5], None]]],
        [1, 0, [["queue", 5, None]]],
    ],
)
def test_what_is_no_delta(packed: Any) -> None:
    with pytest.raises(ValueError, match="of the topology"):
        Delta.unpack(packed)


def test_a_copy_takes_deltas_in_order_only(topology: Topology) -> None:
    copy = Topology()
    copy.take(topology.snapshot())
    first, second = topology.apply(exchange("a")), topology.apply(exchange("b"))
    before = copy.snapshot()
    with pytest.raises(OutOfStepError):
        copy.take(second)
    assert copy.snapshot() == before
    copy.take(first)
    copy.take(second)
    with pytest.raises(OutOfStepError):
        copy.take(second)
    assert copy.snapshot() == topology.snapshot()
    copy.take(topology.apply(exchange("b")))  # equal: nothing, from here to here
    assert copy.revision == topology.revision


def test_a_delta_that_does_not_fit_changes_nothing(topology: Topology) -> None:
    copy = Topology()
    copy.take(topology.snapshot())
    before = copy.snapshot()
    new = TopologyRow("exchange", ("/", "new"), {"vhost": "/", "name": "new"})
    for wrong in (
        TopologyRow("queue", ("v", "q"), {"vhost": "v", "name": "q"}),
        TopologyRow("queue", ("/", "q"), {"vhost": "/", "name": "r"}),
        TopologyRow("queue", ("/", "q"), {}),
        TopologyRow(
            "binding",
            Binding("/", "e", "nq").key,
            {"vhost": "/", "source": "e", "destination": "nq"},
        ),
        TopologyRow(
            "binding",
            Binding("/", "nox", "q").key,
            {"vhost": "/", "source": "nox", "destination": "q"},
        ),
    ):
        with pytest.raises(OutOfStepError):
            copy.take(Delta(copy.revision + 1, copy.revision, (new, wrong)))
        assert copy.snapshot() == before


def test_a_snapshot_replaces_what_was_there(topology: Topology) -> None:
    copy = Topology()
    copy.apply_all([AddVhost(Vhost("other")), DeclareQueue(QueueRecord("other", "old"))])
    copy.take(topology.snapshot())
    assert copy.snapshot() == topology.snapshot()
    assert copy.vhost("other") is None
    assert copy.revision == topology.revision


def test_rows_from_disk_are_taken_as_far_as_they_go_together(topology: Topology) -> None:
    kept = [row for row in topology.snapshot().rows if row.kind != "queue" or row.key[1] != "mine"]
    broken = TopologyRow("queue", ("/", "broken"), {"vhost": "/"})
    again = Topology()
    unusable = again.restore([*reversed(kept), broken], 77)
    assert {row.key for row in unusable} == {
        Binding("/", "e", "mine", "queue", "k").key,
        broken.key,
    }
    assert again.revision == 77
    assert {each.name for each in again.queues("/")} == {"q", "ttl", "big", "file"}
    assert again.apply(exchange("new")).revision == 78


def test_what_the_nodes_restart_leaves(topology: Topology) -> None:
    topology.apply_all(
        [
            exchange("d", durable=True),
            bind("d", "big"),
            bind("d", "q"),
            bind("e", "big"),
            link("d", "amq.topic"),
            SetPolicy(Policy("/", "p", "", definition={"max-length": 1})),
        ]
    )
    durable = [
        row.key[1:4]
        for row in topology.snapshot().rows
        if topology.is_durable(row.kind, row.key) and not str(row.key[-1]).startswith("amq.")
    ]
    assert sorted(durable, key=repr) == sorted(
        [
            (),
            ("",),
            ("d",),
            ("big",),
            ("file",),
            ("policy", "p"),
            ("d", "queue", "big"),
            ("d", "exchange", "amq.topic"),
        ],
        key=repr,
    )
    assert not topology.is_durable("queue", ("/", "missing"))
    assert not topology.is_durable("queue", ("v", "missing"))


def test_vhosts_come_with_their_exchanges_and_go_with_everything() -> None:
    topology = Topology()
    topology.apply_all([AddVhost(Vhost("/")), AddVhost(Vhost("v", {"max-queues": 3}))])
    assert {
        (each.name, each.type, each.durable, each.internal) for each in topology.exchanges("v")
    } == {
        ("", "direct", True, False),
        ("amq.direct", "direct", True, False),
        ("amq.fanout", "fanout", True, False),
        ("amq.headers", "headers", True, False),
        ("amq.match", "headers", True, False),
        ("amq.topic", "topic", True, False),
        ("amq.rabbitmq.trace", "topic", True, True),
    }
    only = topology.snapshot()
    topology.apply_all(
        [
            DeclareQueue(QueueRecord("v", "q", exclusive=True, owner="me", group="g")),
            DeclareQueue(QueueRecord("v", "s", origin="settings", durable=True)),
            Bind(Binding("v", "amq.topic", "q")),
            Bind(Binding("v", "amq.topic", "amq.fanout", "exchange")),
            SetPolicy(Policy("v", "p", "", definition={"max-length": 1})),
            AddVhost(Vhost("v", description="of mine")),
        ]
    )
    assert topology.vhost("v") == Vhost("v", {"max-queues": 3}, description="of mine")
    copy = Topology()
    copy.take(topology.snapshot())
    copy.take(topology.apply(DeleteVhost("v")))
    assert topology.vhosts() == copy.vhosts() == [Vhost("/")]
    assert not owned_by(topology, "me")
    assert not in_group(topology, "g")
    assert len(topology) == len(copy) == len(only.rows) // 2
    assert topology.exchanges("v") == []
    assert topology.bindings("v") == []
    assert topology.policies("v") == []
    assert list(topology.queues("v")) == []
    assert topology.bindings_from("v", "e") == []


def test_looking(topology: Topology) -> None:
    mine = topology.queue("/", "mine")
    assert mine == QueueRecord("/", "mine", exclusive=True, owner="me")
    assert topology.queue_called("mine") == mine
    assert topology.queue_called("v\x1fmine") is None
    assert owned_by(topology, "me") == [mine]
    assert [each.name for each in in_group(topology, "g")] == ["file"]
    assert [each.name for each in topology.queues()] == ["q", "mine", "ttl", "big", "file"]
    assert topology.bindings_to("/", "queue", "mine") == [Binding("/", "e", "mine", "queue", "k")]
    assert len(topology.bindings_from("/", "e")) == len(topology.bindings("/")) == 2
    assert Binding("/", "", "big", "queue", "big") in list(topology.implied_bindings("/"))
    assert topology.exchange("/", "") == Exchange("/", "", durable=True)
    assert topology.exchange("v", "") is None
    assert topology.queue("v", "") is None


def test_what_passive_declarations_ask_for(topology: Topology) -> None:
    assert topology.require_exchange("/", "e").name == "e"
    assert topology.require_queue("/", "mine", "me").name == "mine"
    assert topology.require_queue("/", "mine").name == "mine"
    for asked, wanted in (
        (lambda: topology.require_exchange("/", ""), Refusal(403, DEFAULT)),
        (lambda: topology.require_exchange("/", "n"), Refusal(404, "no exchange 'n' in vhost '/'")),
        (lambda: topology.require_queue("/", "n"), Refusal(404, "no queue 'n' in vhost '/'")),
        (lambda: topology.require_queue("/", "mine", "you"), Refusal(405, LOCKED)),
    ):
        with pytest.raises(Refusal) as caught:
            asked()
        assert caught.value == wanted


def test_a_copy_answers_before_a_change_is_asked_for(topology: Topology) -> None:
    assert topology.check_exchange(Exchange("/", "e"))
    assert not topology.check_exchange(Exchange("/", "new"))
    assert topology.check_queue(QueueRecord("/", "q", group="other"))
    mine = QueueRecord("/", "mine", exclusive=True, owner="me", durable=True)
    assert topology.check_queue(mine)  # never durable, whatever its declarer says
    topology.apply(SetVhostLimits("/", {}))
    assert not topology.check_queue(QueueRecord("/", "new"))
    assert topology.check_bind(Binding("/", "e", "q", routing_key="k"))
    assert not topology.check_bind(Binding("/", "e", "q", routing_key="other"))
    assert topology.check_unbind(Binding("/", "e", "q", routing_key="k"))
    assert not topology.check_unbind(Binding("/", "e", "q", routing_key="other"))
    assert topology.check_delete_exchange("/", "e")
    assert not topology.check_delete_exchange("/", "new", if_unused=True)
    assert topology.check_delete_queue("/", "mine", "me")
    assert not topology.check_delete_queue("/", "new")


def test_an_exclusive_queue_has_an_owner(topology: Topology) -> None:
    topology.apply(SetVhostLimits("/", {}))
    for wrong in (queue("new", exclusive=True), queue("new", owner="me")):
        with pytest.raises(Refusal) as caught:
            topology.apply(wrong)
        assert caught.value.code == 405


def test_policies_are_set_replaced_and_cleared(topology: Topology) -> None:
    one = Policy("/", "p", "^q", definition={"max-length": 1})
    other = Policy("/", "p", "^q", definition={"max-length": 2}, operator=True)
    topology.apply_all([SetPolicy(one), SetPolicy(other)])
    assert topology.policies("/") == [one, other]
    assert not topology.apply(SetPolicy(one)).rows
    assert (
        len(topology.apply(SetPolicy(Policy("/", "p", "^r", definition={"max-length": 1}))).rows)
        == 1
    )
    topology.apply(ClearPolicy("/", "p", operator=True))
    assert [policy.pattern for policy in topology.policies("/")] == ["^r"]
