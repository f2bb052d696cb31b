"""Events of changes of the topology."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.routing.topology.changes import (
    AddEventExchange,
    AddVhost,
    Bind,
    Change,
    ClearGlobalParameter,
    ClearPolicy,
    ClearUserLimits,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    MigrateQueue,
    SetGlobalParameter,
    SetPolicy,
    SetUserLimits,
    SetVhostLimits,
    Unbind,
)
from fluxmq.routing.topology.events import topology_events
from fluxmq.routing.topology.names import EVENT_EXCHANGE
from fluxmq.routing.topology.records import (
    Binding,
    Exchange,
    GlobalParameter,
    Policy,
    QueueRecord,
    Vhost,
)
from fluxmq.routing.topology.topology import Topology

BINDING = Binding("/", "x", "q", routing_key="k", arguments={"a": 1})
POLICY = Policy("/", "p", "^q", "queues", 3, {"max-length": 5})
OPERATOR = Policy("/", "o", "^q", "queues", 0, {"max-length": 5}, operator=True)
OF_BINDING = {
    "source_name": "x",
    "source_kind": "exchange",
    "destination_name": "q",
    "destination_kind": "queue",
    "routing_key": "k",
    "arguments": {"a": 1},
    "vhost": "/",
}
OF_POLICY = {
    "name": "p",
    "vhost": "/",
    "pattern": "^q",
    "apply-to": "queues",
    "definition": {"max-length": 5},
    "priority": 3,
}


def made(*changes: Change) -> list[tuple[str, dict[str, Any]]]:
    """The events of the last change, as a copy that has the others tells them."""
    authority, copy = Topology(), Topology()
    for change in (
        AddVhost(Vhost("/")),
        DeclareExchange(Exchange("/", "x", durable=True, arguments={"b": 2})),
        DeclareQueue(QueueRecord("/", "q", "quorum", durable=True, group="g")),
        Bind(BINDING),
        *changes,
    ):
        delta = authority.apply(change)
        events = list(topology_events(copy, delta.rows))
        copy.take(delta)
    return events


@pytest.mark.parametrize(
    ("changes", "events"),
    [
        ([Unbind(BINDING)], [("binding.deleted", OF_BINDING)]),
        ([Unbind(BINDING), Bind(BINDING)], [("binding.created", OF_BINDING)]),
        (
            [DeleteQueue("/", "q")],
            [
                ("binding.deleted", OF_BINDING),
                ("queue.deleted", {"name": "q", "vhost": "/", "type": "quorum"}),
            ],
        ),
        (
            [DeleteExchange("/", "x")],
            [
                ("binding.deleted", OF_BINDING),
                ("exchange.deleted", {"name": "x", "vhost": "/"}),
            ],
        ),
        ([MigrateQueue("/", "q", "g", "h", "m")], []),
        ([SetPolicy(POLICY)], [("policy.set", OF_POLICY)]),
        ([SetPolicy(POLICY), SetPolicy(POLICY)], []),
        (
            [SetPolicy(POLICY), ClearPolicy("/", "p")],
            [("policy.cleared", {"name": "p", "vhost": "/"})],
        ),
        (
            [SetPolicy(OPERATOR), ClearPolicy("/", "o", operator=True)],
            [("operator.policy.cleared", {"name": "o", "vhost": "/"})],
        ),
        (
            [SetVhostLimits("/", {"max-queues": 5})],
            [("vhost.limits.set", {"name": "limits", "vhost": "/", "max-queues": 5})],
        ),
        (
            [SetVhostLimits("/", {"max-queues": 5}), SetVhostLimits("/", {})],
            [("vhost.limits.cleared", {"name": "limits", "vhost": "/"})],
        ),
        (
            [SetUserLimits("u", {"max-channels": 5})],
            [("user.limits.set", {"name": "limits", "username": "u", "max-channels": 5})],
        ),
        (
            [SetUserLimits("u", {"max-channels": 5}), ClearUserLimits("u")],
            [("user.limits.cleared", {"name": "limits", "username": "u"})],
        ),
        (
            [SetGlobalParameter(GlobalParameter("a", "[1]"))],
            [("parameter.set", {"component": "global", "name": "a", "value": "[1]"})],
        ),
        (
            [SetGlobalParameter(GlobalParameter("a", "1")), ClearGlobalParameter("a")],
            [("parameter.cleared", {"component": "global", "name": "a"})],
        ),
        ([AddVhost(Vhost("/", description="changed"))], []),
    ],
)
def test_changes_are_events(
    changes: list[Change], events: list[tuple[str, dict[str, Any]]]
) -> None:
    assert made(*changes) == events


def test_a_new_queue_and_exchange_are_described() -> None:
    (event,) = made(DeclareQueue(QueueRecord("/", "new", exclusive=True, owner="me", group="g")))
    assert event == (
        "queue.created",
        {
            "name": "new",
            "vhost": "/",
            "type": "classic",
            "durable": False,
            "auto_delete": False,
            "arguments": {},
            "owner_pid": "me",
            "exclusive": True,
        },
    )
    (event,) = made(AddEventExchange())
    assert event == (
        "exchange.created",
        {
            "name": EVENT_EXCHANGE,
            "vhost": "/",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "arguments": {},
            "internal": True,
        },
    )
    assert made(AddEventExchange(), AddEventExchange()) == []


def test_a_virtual_host_comes_and_goes_with_what_it_has() -> None:
    events = made(AddVhost(Vhost("v", description="V", tags=("t",), default_queue_type="quorum")))
    about = {"name": "v", "description": "V", "tags": ["t"], "default_queue_type": "quorum"}
    assert events[0] == ("vhost.created", about)
    assert {key for key, _ in events[1:]} == {"exchange.created"}
    events = made(AddVhost(Vhost("v")), DeleteVhost("v"))
    assert events[-1] == ("vhost.deleted", {"name": "v"})
    assert {key for key, _ in events[:-1]} == {"exchange.deleted"}


def test_a_record_that_comes_and_goes_within_one_change_is_told_twice() -> None:
    authority, copy = Topology(), Topology()
    copy.take(authority.apply(AddVhost(Vhost("/"))))
    first = authority.apply(DeclareQueue(QueueRecord("/", "q", durable=True)))
    second = authority.apply(DeleteQueue("/", "q"))
    keys = [key for key, _ in topology_events(copy, (*first.rows, *second.rows))]
    assert keys == ["queue.created", "queue.deleted"]
