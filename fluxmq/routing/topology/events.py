"""Events of changes of the topology: a routing key, and headers about the change.

Keys and headers are those of RabbitMQ's event exchange, except that a change does not say which user
made it; the value of a global parameter is JSON as text. A record that is put again without being new is an event only
for global parameters, policies and limits.

Source: RabbitMQ's rabbitmq_event_exchange, and its calls of rabbit_event:notify.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from fluxmq.routing.topology.records import (
    EXCHANGE,
    GLOBAL_PARAMETER,
    USER_LIMITS,
    Binding,
    Exchange,
    GlobalParameter,
    Key,
    Policy,
    QueueRecord,
    Record,
    UserLimits,
    Vhost,
    record_of,
)
from fluxmq.routing.topology.topology import Topology, TopologyRow, global_parameters

Event: TypeAlias = "tuple[str, dict[str, Any]]"
"""Routing key and headers."""


def topology_events(topology: Topology, rows: Iterable[TopologyRow]) -> Iterator[Event]:
    """Yield the events of a change that ``topology`` has not taken yet. Raises `ValueError` for rows
    that are no records."""
    changed: dict[tuple[str, Key], Record | None] = {}
    for kind, key, row in rows:
        identity = (kind, key)
        old = changed[identity] if identity in changed else _present(topology, kind, key)
        new = None if row is None else record_of(kind, key, row)
        changed[identity] = new
        yield from _events(kind, old, new)


def _present(topology: Topology, kind: str, key: Key) -> Record | None:
    """Return the record of this key that the topology has now."""
    if kind == GLOBAL_PARAMETER:
        return global_parameters(topology).get(str(key[0]))
    if kind == USER_LIMITS:
        limits = topology.limits_of_user(str(key[0]))
        return UserLimits(str(key[0]), limits) if limits else None
    space = topology.space(str(key[0]))
    if space is None:
        return None
    match kind:
        case "vhost":
            return space.vhost
        case "exchange":
            return space.exchanges.get(str(key[1]))
        case "queue":
            return space.queues.get(str(key[1]))
        case "policy":
            return space.policies.get(key)
    return space.bindings.get(key)


def _events(kind: str, old: Record | None, new: Record | None) -> Iterator[Event]:
    record = new if new is not None else old
    if record is None:
        return
    match record:
        case GlobalParameter():
            yield _parameter(record, cleared=new is None)
        case UserLimits():
            yield _limits("user", {"username": record.user}, None if new is None else record.limits)
        case Policy():
            yield _policy(record, cleared=new is None)
        case Vhost():
            yield from _vhost(old, new)
        case QueueRecord() | Exchange() | Binding():
            if new is None:
                yield f"{kind}.deleted", _about(record, created=False)
            elif old is None:
                yield f"{kind}.created", _about(record, created=True)


def _about(record: QueueRecord | Exchange | Binding, *, created: bool) -> dict[str, Any]:
    if isinstance(record, Binding):
        return {
            "source_name": record.source,
            "source_kind": EXCHANGE,
            "destination_name": record.destination,
            "destination_kind": record.destination_kind,
            "routing_key": record.routing_key,
            "arguments": dict(record.arguments),
            "vhost": record.vhost,
        }
    names = {"name": record.name, "vhost": record.vhost}
    if not created:
        return {**names, "type": record.type} if isinstance(record, QueueRecord) else names
    about = {
        **names,
        "type": record.type,
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "arguments": dict(record.arguments),
    }
    if isinstance(record, Exchange):
        return {**about, "internal": record.internal}
    return {**about, "owner_pid": record.owner, "exclusive": record.exclusive}


def _policy(policy: Policy, *, cleared: bool) -> Event:
    names = {"name": policy.name, "vhost": policy.vhost}
    if cleared:
        return ("operator.policy.cleared" if policy.operator else "policy.cleared"), names
    return "policy.set", {
        **names,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def _parameter(parameter: GlobalParameter, *, cleared: bool) -> Event:
    names = {"component": "global", "name": parameter.name}
    if cleared:
        return "parameter.cleared", names
    return "parameter.set", {**names, "value": parameter.value}


def _vhost(old: Record | None, new: Record | None) -> Iterator[Event]:
    if not isinstance(new, Vhost):
        assert isinstance(old, Vhost), "one of both is there"
        yield "vhost.deleted", {"name": old.name}
        return
    before = old.limits if isinstance(old, Vhost) else {}
    if old is None:
        yield (
            "vhost.created",
            {
                "name": new.name,
                "description": new.description,
                "tags": list(new.tags),
                "default_queue_type": new.default_queue_type,
            },
        )
    if dict(new.limits) != dict(before):
        yield _limits("vhost", {"vhost": new.name}, new.limits or None)


def _limits(what: str, whose: dict[str, Any], limits: Any) -> Event:
    about = {"name": "limits", **whose}
    if limits is None:
        return f"{what}.limits.cleared", about
    return f"{what}.limits.set", {**about, **limits}
