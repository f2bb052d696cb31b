"""Preconditions, effects and refusals of each change, cascades included. The store's journal undoes
a change interrupted by a refusal.

Source: RabbitMQ 3.10's behaviour, examined case by case; AMQP 0.9.1 sections 1.6.2 and 1.6.3 of its
reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from fluxmq.routing.topology import arguments, changes, checks, migrations, policies
from fluxmq.routing.topology.mirror_keys import term
from fluxmq.routing.topology.names import (
    DEFAULT_VHOST,
    EVENT_EXCHANGE,
    SEPARATOR,
    TRACE_EXCHANGE,
    is_reserved,
)
from fluxmq.routing.topology.records import (
    BINDING,
    EXCHANGE,
    GLOBAL_PARAMETER,
    KINDS,
    ORIGIN_SETTINGS,
    POLICY,
    QUEUE,
    USER_LIMITS,
    Binding,
    Exchange,
    QueueRecord,
    UserLimits,
    Vhost,
    kind_of,
)
from fluxmq.routing.topology.refusals import (
    ACCESS_REFUSED,
    NO_PARAMETER,
    NOT_FOUND,
    Refusal,
    default_exchange,
    locked,
    named,
    no_vhost,
    not_found,
    precondition,
    reserved,
)
from fluxmq.routing.topology.store import Space, TopologyStore

RECORDS_MAX: Final = 2_000_000
"""Maximum records of a node, of all kinds: every shard holds them all, at some hundred bytes to a
kilobyte each."""
GLOBAL_PARAMETERS_MAX: Final = 1000
"""Maximum number of global parameters: they are a few names and notes of the whole cluster."""
MAX_PUBLISH_RATE: Final = "max-publish-rate"
MAX_PUBLISH_BYTE_RATE: Final = "max-publish-byte-rate"
"""Messages and bytes per second; unlike numbers, rates cannot be 0."""
RATES: Final = (MAX_PUBLISH_RATE, MAX_PUBLISH_BYTE_RATE)
LIMITS: Final = ("max-connections", "max-queues", *RATES)
"""Limits that a vhost may have."""
USER_LIMIT_NAMES: Final = ("max-connections", "max-channels")
"""Limits that a user may have."""
STANDARD_EXCHANGES: Final = (
    ("", arguments.DIRECT),
    ("amq.direct", arguments.DIRECT),
    ("amq.fanout", arguments.FANOUT),
    ("amq.headers", arguments.HEADERS),
    ("amq.match", arguments.HEADERS),
    ("amq.topic", arguments.TOPIC),
)
"""Exchanges of every vhost (AMQP 0.9.1 section 3.1.3), which cannot be deleted."""


def space_of(store: TopologyStore, vhost: str) -> Space:
    """Return a vhost's records. Raises `Refusal` 404 when there is no such vhost."""
    space = store.spaces.get(vhost)
    if space is None:
        raise no_vhost(vhost)
    return space


def exchange_of(space: Space, name: str) -> Exchange:
    """Return an exchange. Raises `Refusal` 404."""
    exchange = space.exchanges.get(name)
    if exchange is None:
        raise not_found("exchange", name, space.vhost.name)
    return exchange


def queue_of(space: Space, name: str, asker: str | None) -> QueueRecord:
    """Return a queue. Raises `Refusal` 404, or 405 when it is exclusive to another connection."""
    queue = space.queues.get(name)
    if queue is None:
        raise not_found("queue", name, space.vhost.name)
    checks.check_access(queue, asker)
    return queue


# Exchanges


def check_exchange(store: TopologyStore, wanted: Exchange) -> bool:
    """Return whether there is an equal exchange; False when it may be created. Raises `Refusal`."""
    space = space_of(store, wanted.vhost)
    arguments.check_exchange_type(wanted)
    if not wanted.name:
        raise default_exchange()
    current = space.exchanges.get(wanted.name)
    if current is not None:
        checks.check_exchange_equal(current, wanted)
        return True
    if is_reserved(wanted.name):
        raise reserved("exchange", wanted.name)
    arguments.check_exchange(wanted)
    return False


def _declare_exchange(store: TopologyStore, change: changes.DeclareExchange) -> None:
    if not check_exchange(store, change.exchange):
        store.put(change.exchange)


def check_delete_exchange(store: TopologyStore, vhost: str, name: str, if_unused: bool) -> bool:
    """Return whether the exchange exists and may be deleted; False when it is missing. Raises
    `Refusal`."""
    space = space_of(store, vhost)
    if not name:
        raise default_exchange()
    if is_reserved(name):
        raise Refusal(
            ACCESS_REFUSED, f"deletion of system {named('exchange', name, vhost)} not allowed"
        )
    if name not in space.exchanges:
        return False
    if if_unused and space.from_source.get(name):
        raise precondition(f"{named('exchange', name, vhost)} in use")
    return True


def _delete_exchange(store: TopologyStore, change: changes.DeleteExchange) -> None:
    if check_delete_exchange(store, change.vhost, change.name, change.if_unused):
        _remove(store, change.vhost, (EXCHANGE, change.name))


def _remove(store: TopologyStore, vhost: str, what: tuple[str, str]) -> None:
    """Remove an exchange or queue, with its bindings and exchanges auto-deleted with them."""
    space = store.spaces[vhost]
    waiting = [what]
    while waiting:
        kind, name = waiting.pop()
        sources: dict[str, None] = {}
        if kind == EXCHANGE:
            for binding in list(space.from_source.get(name, {}).values()):
                store.drop(BINDING, binding.key)
        for binding in list(space.to_destination.get((kind, name), {}).values()):
            sources[binding.source] = None
            store.drop(BINDING, binding.key)
        store.drop(kind, (vhost, name))
        waiting.extend((EXCHANGE, source) for source in sources if _is_over(space, source))


def _is_over(space: Space, source: str) -> bool:
    """Return whether an exchange that just lost a binding is auto-deleted."""
    exchange = space.exchanges.get(source)
    return exchange is not None and exchange.auto_delete and source not in space.from_source


# Queues


def check_queue(store: TopologyStore, wanted: QueueRecord) -> bool:
    """Return whether there is an equal queue; False when it may be created. Raises `Refusal`."""
    space = space_of(store, wanted.vhost)
    wanted = _as_kept(wanted)
    current = space.queues.get(wanted.name)
    if current is not None:
        checks.check_queue_equal(current, wanted)
        return True
    limit = space.vhost.limits.get("max-queues", -1)
    if 0 <= limit <= len(space.queues):
        raise precondition(
            f"cannot declare queue '{wanted.name}': queue limit in vhost '{wanted.vhost}' ({limit}) is reached"
        )
    arguments.check_queue(wanted)
    if wanted.exclusive != bool(wanted.owner):
        raise locked(wanted.name, wanted.vhost)
    return False


def _as_kept(wanted: QueueRecord) -> QueueRecord:
    """Return a queue as stored: an exclusive one is never durable, whatever its declarer said."""
    return replace(wanted, durable=False) if wanted.exclusive and wanted.durable else wanted


def _declare_queue(store: TopologyStore, change: changes.DeclareQueue) -> None:
    wanted = _as_kept(change.queue)
    if wanted.origin == ORIGIN_SETTINGS:
        current = space_of(store, wanted.vhost).queues.get(wanted.name)
        wanted = migrations.where_it_is(current, wanted)
        if current != wanted:
            store.put(wanted)  # the settings were validated when they were read
    elif not check_queue(store, wanted):
        store.put(wanted)


def check_delete_queue(store: TopologyStore, vhost: str, name: str, asker: str | None) -> bool:
    """Return whether the queue exists and may be deleted; False when it is missing. Raises
    `Refusal`."""
    queue = space_of(store, vhost).queues.get(name)
    if queue is None:
        return False
    checks.check_access(queue, asker)
    if queue.origin == ORIGIN_SETTINGS:
        raise Refusal(
            ACCESS_REFUSED, f"deletion of configured {named('queue', name, vhost)} not allowed"
        )
    return True


def _delete_queue(store: TopologyStore, change: changes.DeleteQueue) -> None:
    space = space_of(store, change.vhost)
    if change.by_broker:
        if change.name in space.queues:
            _remove(store, change.vhost, (QUEUE, change.name))
    elif check_delete_queue(store, change.vhost, change.name, change.asker):
        _remove(store, change.vhost, (QUEUE, change.name))


def _queue_unused(store: TopologyStore, change: changes.QueueUnused) -> None:
    space = store.spaces.get(change.vhost)
    queue = space.queues.get(change.name) if space is not None else None
    if queue is not None and queue.auto_delete:
        _remove(store, change.vhost, (QUEUE, change.name))


def _drop_owner(store: TopologyStore, change: changes.DropOwner) -> None:
    for queue in list(store.owned.get(change.owner, {}).values()):
        _remove(store, queue.vhost, (QUEUE, queue.name))


def _drop_group(store: TopologyStore, change: changes.DropGroup) -> None:
    for queue in list(store.grouped.get(change.group, {}).values()):
        _remove(store, queue.vhost, (QUEUE, queue.name))


def _migrate_queue(store: TopologyStore, change: changes.MigrateQueue) -> None:
    queue = queue_of(space_of(store, change.vhost), change.name, None)
    moving = migrations.begun(queue, change.source, change.group, change.migration, change.becomes)
    if moving != queue:
        store.put(moving)


def _abort_migration(store: TopologyStore, change: changes.AbortMigration) -> None:
    queue = queue_of(space_of(store, change.vhost), change.name, None)
    store.put(migrations.aborted(queue))


def _finish_migration(store: TopologyStore, change: changes.FinishMigration) -> None:
    queue = queue_of(space_of(store, change.vhost), change.name, None)
    store.put(migrations.finished(queue, change.migration))


# Bindings


def check_bind(store: TopologyStore, binding: Binding, asker: str | None) -> bool:
    """Return whether the binding exists; False when it may be created. Raises `Refusal`."""
    space = space_of(store, binding.vhost)
    to_exchange = binding.destination_kind == EXCHANGE
    if not binding.source or (to_exchange and not binding.destination):
        raise default_exchange()
    source = exchange_of(space, binding.source)
    if to_exchange:
        exchange_of(space, binding.destination)
    elif binding.destination not in space.queues:
        raise not_found("queue", binding.destination, binding.vhost)
    arguments.check_binding(source, binding)
    if not to_exchange:
        checks.check_access(space.queues[binding.destination], asker)
    return binding.key in space.bindings


def _bind(store: TopologyStore, change: changes.Bind) -> None:
    if not check_bind(store, change.binding, change.asker):
        store.put(change.binding)


def check_unbind(store: TopologyStore, binding: Binding, asker: str | None) -> bool:
    """Return whether the binding exists and may be removed; False when it is missing. Raises
    `Refusal`."""
    space = space_of(store, binding.vhost)
    to_exchange = binding.destination_kind == EXCHANGE
    if not binding.source or (to_exchange and not binding.destination):
        raise default_exchange()
    try:
        known = binding.key in space.bindings
    except (ValueError, RecursionError):
        return False  # arguments that no binding can have
    if known and not to_exchange:
        checks.check_access(space.queues[binding.destination], asker)
    return known


def _unbind(store: TopologyStore, change: changes.Unbind) -> None:
    binding = change.binding
    if check_unbind(store, binding, change.asker):
        store.drop(BINDING, binding.key)
        if _is_over(store.spaces[binding.vhost], binding.source):
            _remove(store, binding.vhost, (EXCHANGE, binding.source))


# Policies and vhosts


def _set_policy(store: TopologyStore, change: changes.SetPolicy) -> None:
    policy = change.policy
    space = space_of(store, policy.vhost)
    policies.check_policy(policy)
    if space.policies.get(policy.key) != policy:
        store.put(policy)


def _clear_policy(store: TopologyStore, change: changes.ClearPolicy) -> None:
    key = (change.vhost, "operator_policy" if change.operator else "policy", change.name)
    if key not in space_of(store, change.vhost).policies:
        raise Refusal(NOT_FOUND, f"no policy '{change.name}' in vhost '{change.vhost}'")
    store.drop(POLICY, key)


def _add_vhost(store: TopologyStore, change: changes.AddVhost) -> None:
    wanted = change.vhost
    space = store.spaces.get(wanted.name)
    if space is not None:
        kept = replace(wanted, limits=space.vhost.limits)
        if kept != space.vhost:
            store.put(kept)
        return
    if SEPARATOR in wanted.name or not wanted.name:
        raise precondition("a vhost's name is empty or has control characters")
    _check_limits(wanted.limits, LIMITS)
    store.put(wanted)
    for name, kind in STANDARD_EXCHANGES:
        store.put(Exchange(wanted.name, name, kind, durable=True))
    kind = arguments.TOPIC
    store.put(Exchange(wanted.name, TRACE_EXCHANGE, kind, durable=True, internal=True))


def _add_event_exchange(store: TopologyStore, _change: changes.AddEventExchange) -> None:
    space = store.spaces.get(DEFAULT_VHOST)
    if space is not None and EVENT_EXCHANGE not in space.exchanges:
        kind = arguments.TOPIC
        store.put(Exchange(DEFAULT_VHOST, EVENT_EXCHANGE, kind, durable=True, internal=True))


def _delete_vhost(store: TopologyStore, change: changes.DeleteVhost) -> None:
    space = space_of(store, change.name)
    for record in sorted(space.records(), key=lambda each: -KINDS.index(kind_of(each))):
        store.drop(kind_of(record), record.key)


def _set_vhost_limits(store: TopologyStore, change: changes.SetVhostLimits) -> None:
    vhost: Vhost = space_of(store, change.vhost).vhost
    _check_limits(change.limits, LIMITS)
    if dict(vhost.limits) != dict(change.limits):
        store.put(replace(vhost, limits=dict(change.limits)))


def _set_user_limits(store: TopologyStore, change: changes.SetUserLimits) -> None:
    _check_limits(change.limits, USER_LIMIT_NAMES)
    known = store.user_limits.get(change.user)
    before = {} if known is None else dict(known.limits)
    _put_user_limits(store, change.user, before, {**before, **change.limits})


def _clear_user_limits(store: TopologyStore, change: changes.ClearUserLimits) -> None:
    known = store.user_limits.get(change.user)
    before = {} if known is None else dict(known.limits)
    kept = {name: each for name, each in before.items() if change.name and name != change.name}
    _put_user_limits(store, change.user, before, kept)


def _put_user_limits(
    store: TopologyStore, user: str, before: dict[str, Any], limits: dict[str, Any]
) -> None:
    if not limits:
        store.drop(USER_LIMITS, (user,))
    elif limits != before:
        store.put(UserLimits(user, limits))


def _set_global_parameter(store: TopologyStore, change: changes.SetGlobalParameter) -> None:
    wanted = change.parameter
    if not wanted.name:
        raise precondition("a global parameter has a name")
    known = store.global_parameters.get(wanted.name)
    if known is None and len(store.global_parameters) >= GLOBAL_PARAMETERS_MAX:
        raise precondition(f"there are {GLOBAL_PARAMETERS_MAX} global parameters already")
    if known != wanted:
        store.put(wanted)


def _clear_global_parameter(store: TopologyStore, change: changes.ClearGlobalParameter) -> None:
    if change.name not in store.global_parameters:
        raise Refusal(NOT_FOUND, NO_PARAMETER)
    store.drop(GLOBAL_PARAMETER, (change.name,))


def _check_limits(limits: Any, known: tuple[str, ...]) -> None:
    for key, value in limits.items():
        if key not in known:
            raise precondition(f"Unrecognised terms [{{{term(key)},{term(value)}}}] in limits")
        if isinstance(value, bool) or not isinstance(value, int):
            raise precondition(f"{key} should be a number, actually was {term(value)}")
        if not value and key in RATES:
            raise precondition(f"{key} should be at least 1, or negative for no limit")


_RULES: Final[dict[type[Any], Callable[[TopologyStore, Any], None]]] = {
    changes.DeclareExchange: _declare_exchange,
    changes.DeleteExchange: _delete_exchange,
    changes.DeclareQueue: _declare_queue,
    changes.DeleteQueue: _delete_queue,
    changes.Bind: _bind,
    changes.Unbind: _unbind,
    changes.SetPolicy: _set_policy,
    changes.ClearPolicy: _clear_policy,
    changes.AddVhost: _add_vhost,
    changes.DeleteVhost: _delete_vhost,
    changes.AddEventExchange: _add_event_exchange,
    changes.SetVhostLimits: _set_vhost_limits,
    changes.SetUserLimits: _set_user_limits,
    changes.ClearUserLimits: _clear_user_limits,
    changes.SetGlobalParameter: _set_global_parameter,
    changes.ClearGlobalParameter: _clear_global_parameter,
    changes.DropOwner: _drop_owner,
    changes.DropGroup: _drop_group,
    changes.QueueUnused: _queue_unused,
    changes.MigrateQueue: _migrate_queue,
    changes.AbortMigration: _abort_migration,
    changes.FinishMigration: _finish_migration,
}


def carry_out(store: TopologyStore, change: changes.Change, records_max: int = RECORDS_MAX) -> None:
    """Make a change. Raises `Refusal` and leaves half of it behind, for `TopologyStore.undo`."""
    before = store.count
    _RULES[type(change)](store, change)
    if store.count > max(before, records_max):
        raise precondition(
            f"limit of exchanges, queues and bindings of the node ({records_max}) is reached"
        )
