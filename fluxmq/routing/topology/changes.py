"""Requests to change the topology: values, with conversion to and from plain ones for msgpack.

``asker`` is the id of the requesting connection, for what only the owner of an exclusive queue may
do; None for operators and the broker itself, who may do it to any queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, TypeAlias

from fluxmq.routing.topology.fields import pack_fields, unpack_fields
from fluxmq.routing.topology.records import (
    Arguments,
    Binding,
    Exchange,
    GlobalParameter,
    Policy,
    QueueRecord,
    Vhost,
)
from fluxmq.routing.topology.values import pack_value


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Declare this exchange; a no-op when there is an equal one."""

    exchange: Exchange


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    """Delete this exchange, with bindings from and to it. ``if_unused``: not while it has
    bindings."""

    vhost: str
    name: str
    if_unused: bool = False


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Declare this queue; a no-op when there is an equal one.

    An exclusive queue names its ``owner``. One of origin ``settings`` replaces any other of its
    name.
    """

    queue: QueueRecord


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Delete this queue, with bindings to it.

    ``by_broker``: the queue ended by itself (expiry), which no rule about deletion prevents.
    """

    vhost: str
    name: str
    asker: str | None = None
    by_broker: bool = False


@dataclass(frozen=True, slots=True)
class Bind:
    """Create this binding."""

    binding: Binding
    asker: str | None = None


@dataclass(frozen=True, slots=True)
class Unbind:
    """Remove this binding. An auto-delete exchange goes with its last one."""

    binding: Binding
    asker: str | None = None


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Set this policy, replacing one of the same name."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class ClearPolicy:
    """Remove this policy; 404 when there is none."""

    vhost: str
    name: str
    operator: bool = False


@dataclass(frozen=True, slots=True)
class AddVhost:
    """Create this vhost, with its standard exchanges.

    If it exists, its description, tags and default queue type change; its limits stay.
    """

    vhost: Vhost


@dataclass(frozen=True, slots=True)
class DeleteVhost:
    """Delete this vhost with everything in it; 404 when there is none."""

    name: str


@dataclass(frozen=True, slots=True)
class AddEventExchange:
    """Create the exchange of events in the default vhost, unless it is there."""


@dataclass(frozen=True, slots=True)
class SetVhostLimits:
    """Replace all limits of the vhost."""

    vhost: str
    limits: Arguments = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class SetUserLimits:
    """Set these limits of a user; others that it has stay."""

    user: str
    limits: Arguments = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ClearUserLimits:
    """Remove the limit ``name`` of a user, all of them without a name; a no-op if there is none."""

    user: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class SetGlobalParameter:
    """Set this global parameter, replacing one of the same name; a no-op when it is equal."""

    parameter: GlobalParameter


@dataclass(frozen=True, slots=True)
class ClearGlobalParameter:
    """Remove this global parameter; 404 when there is none."""

    name: str


@dataclass(frozen=True, slots=True)
class DropOwner:
    """Delete the exclusive queues of a connection that ended."""

    owner: str


@dataclass(frozen=True, slots=True)
class DropGroup:
    """Delete the queues of a group whose memory is lost."""

    group: str


@dataclass(frozen=True, slots=True)
class QueueUnused:
    """Delete an auto-delete queue after its last consumer left."""

    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class MigrateQueue:
    """Start moving a queue from the group ``source``, its present one, to ``group``, under the name
    ``migration``. ``becomes``: the type that it has once it is there, empty if that stays.

    A no-op when it is being moved there already.
    """

    vhost: str
    name: str
    source: str
    group: str
    migration: str
    becomes: str = ""


@dataclass(frozen=True, slots=True)
class AbortMigration:
    """Abort a queue's move: it stays in its present group."""

    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class FinishMigration:
    """Complete the move ``migration`` of a queue, which is in its new group from now on."""

    vhost: str
    name: str
    migration: str


Change: TypeAlias = (
    "DeclareExchange | DeleteExchange | DeclareQueue | DeleteQueue | Bind | Unbind | SetPolicy | ClearPolicy | AddVhost"
    " | DeleteVhost | AddEventExchange | SetVhostLimits | SetUserLimits | ClearUserLimits"
    " | SetGlobalParameter | ClearGlobalParameter | DropOwner | DropGroup | QueueUnused | MigrateQueue | AbortMigration"
    " | FinishMigration"
)

_CHANGES: Final[dict[str, type[Any]]] = {
    "declare_exchange": DeclareExchange,
    "delete_exchange": DeleteExchange,
    "declare_queue": DeclareQueue,
    "delete_queue": DeleteQueue,
    "bind": Bind,
    "unbind": Unbind,
    "set_policy": SetPolicy,
    "clear_policy": ClearPolicy,
    "add_vhost": AddVhost,
    "delete_vhost": DeleteVhost,
    "add_event_exchange": AddEventExchange,
    "set_vhost_limits": SetVhostLimits,
    "set_user_limits": SetUserLimits,
    "clear_user_limits": ClearUserLimits,
    "set_global_parameter": SetGlobalParameter,
    "clear_global_parameter": ClearGlobalParameter,
    "drop_owner": DropOwner,
    "drop_group": DropGroup,
    "queue_unused": QueueUnused,
    "migrate_queue": MigrateQueue,
    "abort_migration": AbortMigration,
    "finish_migration": FinishMigration,
}
"""Every change by the name it is packed under."""
_NAMES: Final = {change: name for name, change in _CHANGES.items()}
_INNER: Final[dict[type[Any], tuple[str, type[Any]]]] = {
    DeclareExchange: ("exchange", Exchange),
    DeclareQueue: ("queue", QueueRecord),
    Bind: ("binding", Binding),
    Unbind: ("binding", Binding),
    SetPolicy: ("policy", Policy),
    AddVhost: ("vhost", Vhost),
    SetGlobalParameter: ("parameter", GlobalParameter),
}
"""Changes that hold a record: its field's name and type."""


def pack(change: Change) -> list[Any]:
    """Return a change as plain values for msgpack: its name and its fields. Raises `ValueError` for
    invalid arguments."""
    packed: dict[str, Any] = {}
    for known in fields(change):
        value = getattr(change, known.name)
        if is_dataclass(value):
            packed[known.name] = pack_fields(value)
        else:
            packed[known.name] = pack_value(value) if isinstance(value, Mapping) else value
    return [_NAMES[type(change)], packed]


def unpack(packed: Any) -> Change:
    """Decode a packed change. Raises `ValueError` for anything else."""
    if not isinstance(packed, list | tuple) or len(packed) != 2 or not isinstance(packed[0], str):
        raise ValueError("not a change of the topology")
    kind, values = _CHANGES.get(packed[0]), packed[1]
    if kind is None or not isinstance(values, dict):
        raise ValueError("not a change of the topology")
    if kind not in _INNER:
        change: Change = unpack_fields(kind, values)
        return change
    name, record = _INNER[kind]
    rest = {key: value for key, value in values.items() if key != name}
    if name not in values or not rest.keys() <= {"asker"}:
        raise ValueError("not a change of the topology")
    inner = {name: unpack_fields(record, values[name])}
    if "asker" in {known.name for known in fields(kind)}:
        asker = rest.pop("asker", None)
        if asker is not None and not isinstance(asker, str):
            raise ValueError("the requester of a change is not text")
        inner["asker"] = asker
    if rest:
        raise ValueError("not a change of the topology")
    return kind(**inner)  # type: ignore[no-any-return]
