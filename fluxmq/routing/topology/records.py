"""Records: global parameters, limits of users, vhosts, exchanges, queues, bindings, policies. Values, each with its identifying key.

A record's key and row are plain values, for disk and for other processes. Records are checked when
they are unpacked, and by the rules when they are declared, but not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fluxmq.routing.topology import names
from fluxmq.routing.topology.fields import pack_fields, unpack_fields
from fluxmq.routing.topology.values import canonical

Arguments: TypeAlias = "Mapping[str, Any]"
Key: TypeAlias = "tuple[str | bytes, ...]"
"""Identity of a record among those of its kind."""

GLOBAL_PARAMETER: Final = "global_parameter"
USER_LIMITS: Final = "user_limits"
VHOST: Final = "vhost"
EXCHANGE: Final = "exchange"
QUEUE: Final = "queue"
BINDING: Final = "binding"
POLICY: Final = "policy"
KINDS: Final = (GLOBAL_PARAMETER, USER_LIMITS, VHOST, EXCHANGE, QUEUE, POLICY, BINDING)
"""Kinds of records, each after those it needs."""

ORIGIN_CLIENT: Final = "client"
ORIGIN_SETTINGS: Final = "settings"
"""Origin of configured queues: no client may delete them."""

# Dicts are excluded from a record's hash: they have none.


@dataclass(frozen=True, slots=True)
class GlobalParameter:
    """A value that people and programs keep at the cluster; ``value``: any JSON, as text."""

    name: str
    value: str

    @property
    def key(self) -> Key:
        """Name."""
        return (self.name,)


@dataclass(frozen=True, slots=True)
class UserLimits:
    """Limits of a user in all vhosts: ``max-connections`` and ``max-channels``; negative is
    unlimited."""

    user: str
    limits: Arguments = field(default_factory=dict, hash=False)

    @property
    def key(self) -> Key:
        """The user's name."""
        return (self.user,)


@dataclass(frozen=True, slots=True)
class Vhost:
    """A namespace. ``limits``: by the names in `rules.LIMITS`; negative is unlimited."""

    name: str
    limits: Arguments = field(default_factory=dict, hash=False)
    default_queue_type: str = "classic"
    tags: tuple[str, ...] = ()
    description: str = ""

    @property
    def key(self) -> Key:
        """Name."""
        return (self.name,)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Target of publishes. The default exchange has the empty name and type direct."""

    vhost: str
    name: str
    type: str = "direct"
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict, hash=False)

    @property
    def key(self) -> Key:
        """Vhost and name."""
        return (self.vhost, self.name)


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """Holder of messages. ``owner``: id of the only connection that may use it, empty unless it is
    exclusive.

    One with an owner is not durable. ``group``: the replication group that holds it. ``origin``:
    ``client`` or ``settings``. ``moving_to``: the group that it is being moved to, empty for none;
    ``migration`` identifies that move, or the last one; ``becomes``: the type that it has once it is there,
    empty if that stays.
    """

    vhost: str
    name: str
    type: str = "classic"
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict, hash=False)
    owner: str = ""
    group: str = ""
    origin: str = ORIGIN_CLIENT
    moving_to: str = ""
    migration: str = ""
    becomes: str = ""

    @property
    def key(self) -> Key:
        """Vhost and name."""
        return (self.vhost, self.name)

    @property
    def internal_name(self) -> str:
        """The queue engine's name of the queue."""
        return names.internal_name(self.vhost, self.name)


@dataclass(frozen=True, slots=True)
class Binding:
    """Binding from an exchange to a queue or an exchange (``destination_kind``)."""

    vhost: str
    source: str
    destination: str
    destination_kind: str = QUEUE
    routing_key: str = ""
    arguments: Arguments = field(default_factory=dict, hash=False)

    @property
    def key(self) -> Key:
        """All fields: bindings that differ in anything are different."""
        return (
            self.vhost,
            self.source,
            self.destination_kind,
            self.destination,
            self.routing_key,
            canonical(self.arguments),
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """Arguments for all queues and exchanges whose name matches ``pattern``; ``operator``: limits
    above all of them.

    ``apply_to``: ``all``, ``exchanges``, ``queues``, ``classic_queues``, ``quorum_queues`` or
    ``streams``.
    """

    vhost: str
    name: str
    pattern: str
    apply_to: str = "all"
    priority: int = 0
    definition: Arguments = field(default_factory=dict, hash=False)
    operator: bool = False

    @property
    def key(self) -> Key:
        """Vhost, kind of policy, name."""
        return (self.vhost, "operator_policy" if self.operator else "policy", self.name)


Record: TypeAlias = (
    "GlobalParameter | UserLimits | Vhost | Exchange | QueueRecord | Binding | Policy"
)
RECORDS: Final[
    dict[
        str,
        type[GlobalParameter | UserLimits | Vhost | Exchange | QueueRecord | Binding | Policy],
    ]
] = {
    GLOBAL_PARAMETER: GlobalParameter,
    USER_LIMITS: UserLimits,
    VHOST: Vhost,
    EXCHANGE: Exchange,
    QUEUE: QueueRecord,
    POLICY: Policy,
    BINDING: Binding,
}
_KIND_OF: Final = {record: kind for kind, record in RECORDS.items()}


def kind_of(record: Record) -> str:
    """Return the record's kind, one of `KINDS`."""
    return _KIND_OF[type(record)]


def row_of(record: Record) -> dict[str, Any]:
    """Return a record as plain values for msgpack."""
    return pack_fields(record)


def record_of(kind: str, key: Key, row: Any) -> Record:
    """Decode the row of the record with this key. Raises `ValueError` for anything else."""
    known = RECORDS.get(kind)
    if known is None:
        raise ValueError("a row of unknown kind")
    record = unpack_fields(known, row)
    if record.key != tuple(key):
        raise ValueError("a row under another key")
    return record
