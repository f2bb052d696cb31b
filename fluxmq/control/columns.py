"""Lists and their columns, named as in rabbitmqctl.

RabbitMQ columns without a meaning here (paging to disk, Erlang's own) are left out, so that asking for
one is refused instead of answered with something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

QUEUE_STATIC: Final = (
    "name",
    "vhost",
    "durable",
    "auto_delete",
    "exclusive",
    "arguments",
    "type",
    "policy",
    "operator_policy",
    "effective_policy_definition",
    "owner_pid",
)
"""Queue columns that control knows; the shard that holds the queue supplies all others."""


@dataclass(frozen=True, slots=True)
class ListSpec:
    """One list: its columns, the default ones, and whether it is per virtual host."""

    columns: tuple[str, ...]
    shown: tuple[str, ...]
    scoped: bool
    title: str


QUEUE_REPLICAS: Final = frozenset(("leader", "members", "online"))
"""Columns of a queue that name nodes in a cluster."""

MIRROR_PIDS: Final = (
    "slave_pids",
    "mirror_pids",
    "synchronised_slave_pids",
    "synchronised_mirror_pids",
)
QUEUE_MIRRORS: Final = (
    *MIRROR_PIDS,
    "slave_nodes",
    "mirror_nodes",
    "synchronised_slave_nodes",
    "synchronised_mirror_nodes",
    "recoverable_slaves",
    "mirrors_syncing",
)
"""Columns of mirrored queues, which control knows."""

LISTS: Final[dict[str, ListSpec]] = {
    "queues": ListSpec(
        (
            *QUEUE_STATIC,
            "pid",
            "state",
            "messages",
            "messages_ready",
            "messages_unacknowledged",
            "messages_persistent",
            "message_bytes",
            "consumers",
            "leader",
            "group",
            "members",
            "online",
            "migration",
            *QUEUE_MIRRORS,
        ),
        ("name", "messages"),
        True,
        "Listing queues for vhost {vhost} ...",
    ),
    "exchanges": ListSpec(
        ("name", "type", "durable", "auto_delete", "internal", "arguments", "policy"),
        ("name", "type"),
        True,
        "Listing exchanges for vhost {vhost} ...",
    ),
    "bindings": ListSpec(
        (
            "source_name",
            "source_kind",
            "destination_name",
            "destination_kind",
            "routing_key",
            "arguments",
        ),
        (
            "source_name",
            "source_kind",
            "destination_name",
            "destination_kind",
            "routing_key",
            "arguments",
        ),
        True,
        "Listing bindings for vhost {vhost}...",
    ),
    "connections": ListSpec(
        (
            "pid",
            "name",
            "host",
            "port",
            "peer_host",
            "peer_port",
            "ssl",
            "peer_cert_subject",
            "state",
            "channels",
            "protocol",
            "auth_mechanism",
            "user",
            "vhost",
            "timeout",
            "frame_max",
            "channel_max",
            "client_properties",
            "send_pend",
            "recv_oct",
            "send_oct",
            "connected_at",
            "node",
        ),
        ("user", "peer_host", "peer_port", "state"),
        False,
        "Listing connections ...",
    ),
    "channels": ListSpec(
        (
            "pid",
            "connection",
            "name",
            "number",
            "user",
            "vhost",
            "transactional",
            "confirm",
            "consumer_count",
            "messages_unacknowledged",
            "messages_unconfirmed",
            "messages_uncommitted",
            "acks_uncommitted",
            "prefetch_count",
            "global_prefetch_count",
            "state",
            "node",
        ),
        ("pid", "user", "consumer_count", "messages_unacknowledged"),
        False,
        "Listing channels ...",
    ),
    "consumers": ListSpec(
        (
            "queue_name",
            "channel_pid",
            "consumer_tag",
            "ack_required",
            "prefetch_count",
            "active",
            "activity_status",
            "exclusive",
            "priority",
            "arguments",
            "vhost",
            "node",
        ),
        (
            "queue_name",
            "channel_pid",
            "consumer_tag",
            "ack_required",
            "prefetch_count",
            "active",
            "arguments",
        ),
        True,
        "Listing consumers in vhost {vhost} ...",
    ),
    "sessions": ListSpec(
        (
            *("name", "vhost", "connected", "user", "peer", "protocol", "keep_alive", "expiry"),
            *("subscriptions", "inflight", "pending", "pending_bytes", "will", "shard", "node"),
        ),
        ("name", "connected", "subscriptions", "pending"),
        False,
        "Listing MQTT sessions ...",
    ),
    "subscriptions": ListSpec(
        (
            *("name", "vhost", "client_id", "connected", "qos", "no_local", "retain_as_published"),
            *("subscription_id", "share", "queue", "node"),
        ),
        ("client_id", "name", "qos"),
        False,
        "Listing MQTT subscriptions ...",
    ),
    "retained": ListSpec(
        ("name", "vhost", "qos", "payload_bytes", "expires_in", "payload"),
        ("name", "qos", "payload_bytes"),
        False,
        "Listing retained messages ...",
    ),
    "outboxes": ListSpec(
        ("name", "vhost", "group", "batches", "bytes", "shard", "node"),
        ("name", "group", "batches"),
        False,
        "Listing outboxes ...",
    ),
    "vhosts": ListSpec(
        ("name", "description", "tags", "default_queue_type"),
        ("name",),
        False,
        "Listing vhosts ...",
    ),
    "vhost_limits": ListSpec(
        ("vhost", "limits"), ("limits",), True, 'Listing limits for vhost "{vhost}" ...'
    ),
    "parameters": ListSpec(
        ("component", "name", "value"),
        ("component", "name", "value"),
        True,
        'Listing runtime parameters for vhost "{vhost}" ...',
    ),
    "global_parameters": ListSpec(
        ("name", "value"), ("name", "value"), False, "Listing global runtime parameters ..."
    ),
    "user_limits": ListSpec(("user", "limits"), ("limits",), False, "Listing limits of users ..."),
    "policies": ListSpec(
        ("vhost", "name", "pattern", "apply-to", "definition", "priority"),
        ("vhost", "name", "pattern", "apply-to", "definition", "priority"),
        True,
        'Listing policies for vhost "{vhost}" ...',
    ),
    "operator_policies": ListSpec(
        ("vhost", "name", "pattern", "apply-to", "definition", "priority"),
        ("vhost", "name", "pattern", "apply-to", "definition", "priority"),
        True,
        'Listing operator policy overrides for vhost "{vhost}" ...',
    ),
    "explained": ListSpec(
        ("key", "value", "source", "others"),
        ("key", "value", "source", "others"),
        True,
        "Settings of {subject} in vhost {vhost}, and where they come from ...",
    ),
}
"""Lists by the name of their subject."""
