"""Rows of the broker's lists as RabbitMQ's management interface shows them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from xxhash import xxh3_64_digest

from fluxmq.auth.imported_hashes import rabbitmq_algorithm
from fluxmq.auth.scram import StoredKeys
from fluxmq.auth.users import User
from fluxmq.control.columns import LISTS
from fluxmq.control.management.list_query import JsonRow
from fluxmq.control.management.requests import Ask, error_of
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import MessageError
from fluxmq.ipc.row_messages import LIST, Listed, ListRequest, plain
from fluxmq.routing.topology.records import Binding, Exchange, Policy, QueueRecord, Vhost
from fluxmq.routing.topology.values import canonical

HASHING: Final = "argon2id"
SCRAM_BYTES: Final = ("salt", "stored_key", "server_key")
"""Byte strings among the keys of a password for SCRAM."""
ROWS_MAX: Final = 200_000
"""Rows of a list from the shards, beyond which the rest is left out: half a gigabyte as JSON."""


async def rows_of(
    ask: Ask, what: str, vhost: str | None = None, subject: str = ""
) -> list[JsonRow]:
    """Return all rows of a list that shards have, of all nodes; with a ``subject`` those about it.
    Raises ApiError."""
    rows: list[JsonRow] = []
    columns = LISTS[what].columns
    if LISTS[what].scoped:
        columns = tuple(dict.fromkeys(("vhost", *columns)))
    place: tuple[int, ...] = ()
    while len(rows) < ROWS_MAX:
        try:
            wanted = ListRequest(what, columns, vhost, place, subject)
            listed = Listed.from_body(await ask(LIST, wanted.to_body()))
        except (RequestError, MessageError) as problem:
            raise error_of(problem) from problem
        rows += listed.rows
        place = listed.place
        if not place:
            break
    return rows


def exchange_row(exchange: Exchange, policy: str) -> JsonRow:
    """Return an exchange."""
    return {
        "name": exchange.name,
        "vhost": exchange.vhost,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(exchange.arguments),
        **({"policy": policy} if policy else {}),
    }


def queue_row(queue: QueueRecord) -> JsonRow:
    """Return a queue's definition."""
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "type": queue.type,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": plain(queue.arguments),
    }


def binding_definition(binding: Binding) -> JsonRow:
    """Return a binding's definition."""
    return {key: value for key, value in binding_row(binding).items() if key != "properties_key"}


def binding_row(binding: Binding) -> JsonRow:
    """Return a binding."""
    return {
        "source": binding.source,
        "vhost": binding.vhost,
        "destination": binding.destination,
        "destination_type": binding.destination_kind,
        "routing_key": binding.routing_key,
        "arguments": plain(binding.arguments),
        "properties_key": properties_key(binding),
    }


def properties_key(binding: Binding) -> str:
    """Return the name of a binding among those of its source and destination: of its routing key and
    arguments."""
    key = quote(binding.routing_key, safe="") or ("" if binding.arguments else "~")
    if not binding.arguments:
        return key
    digest = base64.urlsafe_b64encode(xxh3_64_digest(canonical(binding.arguments)))
    return f"{key}~{digest.decode().rstrip('=')}"


def policy_row(policy: Policy) -> JsonRow:
    """Return a policy."""
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": plain(policy.definition),
        "priority": policy.priority,
    }


def vhost_row(vhost: Vhost, nodes: Iterable[str], totals: JsonRow, *, traced: bool) -> JsonRow:
    """Return a virtual host; ``nodes``: those that run; ``totals``: its messages and their rates; ``traced``: this node copies
    its messages to the firehose."""
    return {
        "name": vhost.name,
        "description": vhost.description,
        "tags": list(vhost.tags),
        "default_queue_type": vhost.default_queue_type,
        "metadata": {
            "description": vhost.description,
            "tags": list(vhost.tags),
            "default_queue_type": vhost.default_queue_type,
        },
        "tracing": traced,
        "cluster_state": dict.fromkeys(nodes, "running"),
        **totals,
    }


def user_row(user: User, limits: Mapping[str, Any], *, secret: bool) -> JsonRow:
    """Return a user with its limits; ``secret``: with the password's hash."""
    algorithm = rabbitmq_algorithm(user.hash)
    stored: JsonRow = {
        "password_hash": user.hash.rpartition("$")[2] if algorithm else user.hash,
        "hashing_algorithm": algorithm or HASHING,
    }
    if user.scram is not None:
        stored["scram"] = scram_row(user.scram)
    return {
        "name": user.name,
        **(stored if secret else {}),
        "tags": list(user.tags),
        "limits": dict(limits),
        "enabled": user.enabled,
        "publish": list(user.publish),
        "subscribe": list(user.subscribe),
    }


def scram_row(keys: StoredKeys) -> JsonRow:
    """Return the keys of a password for SCRAM-SHA-256; bytes in base64."""
    return {
        "iterations": keys.iterations,
        **{each: base64.b64encode(getattr(keys, each)).decode() for each in SCRAM_BYTES},
    }


def scram_keys(row: JsonRow) -> StoredKeys:
    """Return the keys in a row. Raises ValueError when they cannot be keys."""
    parts = (base64.b64decode(str(row.get(each, "")), validate=True) for each in SCRAM_BYTES)
    return StoredKeys(int(row.get("iterations") or 0), *parts)


def permission_rows(user: User) -> list[JsonRow]:
    """Return a user's permissions."""
    return [
        {
            "user": user.name,
            "vhost": each.vhost,
            "configure": each.configure,
            "write": each.write,
            "read": each.read,
        }
        for each in user.permissions
    ]


def topic_permission_rows(user: User) -> list[JsonRow]:
    """Return a user's permissions on routing keys."""
    return [
        {
            "user": user.name,
            "vhost": each.vhost,
            "exchange": each.exchange,
            "write": each.write,
            "read": each.read,
        }
        for each in user.topic_permissions
    ]


def connection_row(row: JsonRow) -> JsonRow:
    """Return a connection."""
    told = {key: value for key, value in row.items() if value is not None}
    # Nodes of earlier versions do not tell the time of MQTT connections, and tools want a number.
    found: dict[str, Any] = {"connected_at": 0, "client_properties": {}, **told, "type": "network"}
    found["name"] = row.get("name") or row.get("pid")
    found["username"] = row.get("user")
    return found


def channel_row(row: JsonRow, connections: dict[str, JsonRow]) -> JsonRow:
    """Return a channel, with its connection."""
    connection = connections.get(str(row.get("connection")), {})
    details = {key: connection.get(key) for key in ("name", "peer_host", "peer_port")}
    return {**row, "connection_details": details}


def consumer_row(row: JsonRow, channels: dict[str, JsonRow], timeout: int) -> JsonRow:
    """Return a consumer, with its queue and channel; ``timeout``: milliseconds that a message may stay
    unacknowledged."""
    channel = channels.get(str(row.get("channel_pid")))
    shown = ("consumer_tag", "ack_required", "exclusive", "prefetch_count", "active")
    return {
        "queue": {"name": row.get("queue_name"), "vhost": row.get("vhost")},
        "channel_details": {} if channel is None else _details(channel),
        "consumer_timeout": timeout,
        **{key: row.get(key) for key in shown},
        "activity_status": row.get("activity_status"),
        "arguments": row.get("arguments") or {},
    }


def _details(channel: JsonRow) -> JsonRow:
    """Return what a consumer's row says of its channel."""
    connection = channel["connection_details"]
    return {
        **{key: channel.get(key) for key in ("name", "number", "node", "user")},
        "connection_name": connection["name"],
        **{key: connection[key] for key in ("peer_host", "peer_port")},
    }
