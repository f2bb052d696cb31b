"""The OpenAPI document of the management interface, made from its table of routes.

Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from fluxmq.control.columns import LISTS
from fluxmq.control.management.events import PATHS_MAX
from fluxmq.control.management.list_query import PAGE_SIZE_MAX
from fluxmq.control.management.requests import PREFIX, ApiRoute, Right
from fluxmq.control.management.route_texts import CREATED, EVENTS, ROUTE_TEXTS, RouteText
from fluxmq.control.management.versions import PRODUCT, VERSION
from fluxmq.control.traffic import LENGTHS, QUEUE_FIELDS
from fluxmq.ipc.clusters import AuditListing, GroupOutcomes, MemberRow, RaftRow, Transfer
from fluxmq.ipc.messages import NodeStatus
from fluxmq.ipc.migrations import Migrating
from fluxmq.ipc.placements import GroupRow, PinResult, QueueRow

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "boolean"}
_COUNT: Final[Schema] = {"type": "integer"}
_ANY: Final[Schema] = {}
_TABLE: Final[Schema] = {"type": "object"}
_PART: Final = re.compile(r"\{(\w+)(?::([^}]+))?\}")

_QUERY: Final[dict[str, tuple[Schema, str]]] = {
    "page": ({**_COUNT, "minimum": 1}, "Number of a page; without one the list comes whole"),
    "page_size": ({**_COUNT, "minimum": 1, "maximum": PAGE_SIZE_MAX}, "Rows of a page"),
    "name": (_TEXT, "Part of the name, or a regular expression"),
    "use_regex": (_FLAG, "Whether the name is a regular expression"),
    "sort": (_TEXT, "Column to sort by, such as messages or message_stats.publish_details.rate"),
    "sort_reverse": (_FLAG, "Whether the order is descending"),
    "columns": (_TEXT, "Columns, separated by commas"),
    "msg_rates_age": (_COUNT, "Age in seconds of the oldest sample of message rates"),
    "msg_rates_incr": (_COUNT, "Seconds between two samples of message rates"),
    "lengths_age": (_COUNT, "Age in seconds of the oldest sample of lengths"),
    "lengths_incr": (_COUNT, "Seconds between two samples of lengths"),
    "if-unused": (_FLAG, "Whether to refuse it while it is in use"),
    "if-empty": (_FLAG, "Whether to refuse it while there are messages"),
    "force": (_FLAG, "Whether to do so although the node is in contact"),
    "level": (_TEXT, "The least severe level: debug, info, warning, error or critical"),
    "text": (_TEXT, "Part of a line, or of its process's name"),
    "lines": (_COUNT, "Number of lines"),
    "path": (
        {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": PATHS_MAX},
        "Path and query below /api/ whose answer is watched",
    ),
}


def _object(required: Iterable[str] = (), **properties: Schema) -> Schema:
    found: Schema = {"type": "object", "properties": properties}
    needed = list(required)
    return {**found, "required": needed} if needed else found


def _rate() -> Schema:
    sample = _object(sample=_COUNT, timestamp={**_COUNT, "description": "Milliseconds"})
    number: Schema = {"type": "number"}
    samples = {"type": "array", "items": sample}
    return _object(rate=number, samples=samples, avg=number, avg_rate=number)


def _statistics() -> Schema:
    """Return the properties that message statistics add to a row."""
    counters = [name for name in QUEUE_FIELDS if name not in LENGTHS]
    stats: Schema = dict.fromkeys(counters, _COUNT)
    stats |= {f"{name}_details": {"$ref": "#/components/schemas/Rate"} for name in counters}
    found: Schema = {"message_stats": _object(**stats)}
    for name in LENGTHS:
        found[name] = _COUNT
        found[f"{name}_details"] = {"$ref": "#/components/schemas/Rate"}
    return found


def _listed(what: str) -> Schema:
    """Return the schema of a row whose columns fluxmqctl lists too."""
    return _object(**dict.fromkeys(LISTS[what].columns, _ANY))


def _names(*names: str, **others: Schema) -> Schema:
    return _object(**dict.fromkeys(names, _TEXT), **others)


_MESSAGE_PROPERTIES: Final = {**_TABLE, "description": "AMQP's basic properties by name"}


def _rows() -> dict[str, Schema]:
    """Return the schemas of answers."""
    arguments: Schema = {"arguments": _TABLE}
    kept: Schema = {"durable": _FLAG, "auto_delete": _FLAG}
    queue = _listed("queues")
    queue["properties"] = {**queue["properties"], "node": _TEXT, **_statistics()}
    return {
        "Any": _ANY,
        "Rate": _rate(),
        "Error": _object(("error", "reason"), error=_TEXT, reason=_TEXT),
        "Overview": _names(
            *("node", "cluster_name", "product_name", "product_version", "rabbitmq_version"),
            object_totals=_TABLE,
            queue_totals=_TABLE,
            message_stats=_TABLE,
        ),
        "WhoAmI": _names("name", tags={"type": "array", "items": _TEXT}),
        "Node": _names("name", "type", running=_FLAG, mem_used=_COUNT, disk_free=_COUNT),
        "ClusterName": _names("name"),
        "Check": _names("status", "reason"),
        "Exchange": _names(
            *("name", "vhost", "type"), internal=_FLAG, message_stats=_TABLE, **kept, **arguments
        ),
        "Queue": queue,
        "Binding": _names(
            *("source", "vhost", "destination", "destination_type", "routing_key"),
            **{"properties_key": _TEXT, **arguments},
        ),
        "Routed": _object(routed=_FLAG),
        "Message": _names(
            *("payload", "payload_encoding", "exchange", "routing_key"),
            payload_bytes=_COUNT,
            redelivered=_FLAG,
            message_count=_COUNT,
            properties=_MESSAGE_PROPERTIES,
        ),
        "Connection": _listed("connections"),
        "Channel": _listed("channels"),
        "Consumer": _names("consumer_tag", queue=_TABLE, channel_details=_TABLE, **arguments),
        "Vhost": _names("name", "description", "default_queue_type", **_statistics()),
        "Permission": _names("user", "vhost", "configure", "write", "read"),
        "TopicPermission": _names("user", "vhost", "exchange", "write", "read"),
        "User": _names("name", tags={"type": "array", "items": _TEXT}),
        "VhostLimits": _names("vhost", value=_TABLE),
        "UserLimits": _names("user", value=_TABLE),
        "Parameter": _names("vhost", "component", "name", value=_TABLE),
        "GlobalParameter": _names("name", value=_ANY),
        "Policy": _names(
            "vhost", "name", "pattern", "apply-to", definition=_TABLE, priority=_COUNT
        ),
        "Definitions": {**_TABLE, "description": "Definitions in RabbitMQ's format"},
        "Core": _names(
            *("name", "state"),
            **dict.fromkeys(("shard", "core", "pid", "connections", "sessions"), _COUNT),
            groups={"type": "array", "items": _TEXT},
            pinned={"type": "array", "items": _TEXT},
        ),
        "CanStop": _object(can_stop=_FLAG, rows={"type": "array", "items": _TABLE}),
        "Explained": _listed("explained"),
        "Session": _listed("sessions"),
        "Subscription": _listed("subscriptions"),
        "Retained": _listed("retained"),
        "Outbox": _listed("outboxes"),
        "LogLine": _names("process", "level", "text", time={"type": "number"}),
        "Ban": _names("kind", "value", "reason", until={"type": ["number", "null"]}),
    }


def _bodies() -> dict[str, Schema]:
    """Return the schemas of requests' bodies."""
    tags: Schema = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]}
    return {
        "ExchangeDeclaration": _object(
            type=_TEXT, durable=_FLAG, auto_delete=_FLAG, internal=_FLAG, arguments=_TABLE
        ),
        "QueueDeclaration": _object(durable=_FLAG, auto_delete=_FLAG, arguments=_TABLE),
        "BindingDeclaration": _object(routing_key=_TEXT, arguments=_TABLE),
        "Publication": _object(
            ("routing_key", "payload"),
            routing_key=_TEXT,
            payload=_TEXT,
            payload_encoding={"enum": ["string", "base64"]},
            properties=_MESSAGE_PROPERTIES,
        ),
        "Get": _object(
            count=_COUNT,
            ackmode={
                "enum": [f"{what}_requeue_{yes}" for what in ("ack", "reject") for yes in _YES]
            },
            encoding={"enum": ["auto", "base64"]},
            truncate=_COUNT,
        ),
        "Action": _object(("action",), action={"enum": ["sync", "cancel_sync"]}),
        "VhostDeclaration": _names("description", "default_queue_type", tags=tags),
        "UserNames": _object(("users",), users={"type": "array", "items": _TEXT}),
        "UserDeclaration": _names("password", "password_hash", "hashing_algorithm", tags=tags),
        "PermissionDeclaration": _object(
            ("configure", "write", "read"), configure=_TEXT, write=_TEXT, read=_TEXT
        ),
        "TopicPermissionDeclaration": _object(
            ("exchange", "write", "read"), exchange=_TEXT, write=_TEXT, read=_TEXT
        ),
        "Limit": _object(("value",), value=_COUNT),
        "BanDeclaration": _names("reason", seconds={"type": "number"}),
        "ParameterValue": _object(("value",), value=_ANY),
        "PolicyDeclaration": _object(
            ("pattern", "definition"),
            **{"pattern": _TEXT, "definition": _TABLE, "apply-to": _TEXT, "priority": _COUNT},
        ),
        "Place": {**_object(core=_COUNT, shard=_COUNT), "minProperties": 1, "maxProperties": 1},
        "Destination": {**_object(group=_TEXT, type={"enum": ["quorum"]}), "minProperties": 1},
        "Successor": _object(node=_TEXT),
    }


_YES: Final = ("true", "false")
_STRUCTS: Final = (
    *(GroupRow, QueueRow, PinResult, Migrating, RaftRow, MemberRow, AuditListing),
    *(GroupOutcomes, Transfer, NodeStatus),
)


def _schemas() -> dict[str, Schema]:
    _, found = msgspec.json.schema_components(_STRUCTS, ref_template="#/components/schemas/{name}")
    return {**found, **_rows(), **_bodies()}


def document(routes: Iterable[ApiRoute]) -> dict[str, Any]:
    """Return the document. Raises KeyError naming a route that is not described."""
    paths: dict[str, Any] = {}
    for route in routes:
        text = ROUTE_TEXTS[f"{route.method} {route.path}"]
        path = "/" + _PART.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, text)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{PRODUCT} management interface",
            "version": VERSION,
            "description": "RabbitMQ's management API, and the broker's own below /fluxmq/v1.",
        },
        "servers": [{"url": PREFIX.rstrip("/")}],
        "security": [{"basic": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "responses": {
                "Refused": {
                    "description": "The request was refused; the reason says why",
                    "content": _content({"$ref": "#/components/schemas/Error"}),
                }
            },
        },
    }


def _operation(route: ApiRoute, text: RouteText) -> Schema:
    found: Schema = {
        "operationId": _identifier(route),
        "summary": text.summary,
        "description": _rights(route),
        "tags": [_tag(route.path)],
        "parameters": [*_parts(route.path), *map(_query, text.query)],
        "responses": {**_answers(text), "default": {"$ref": "#/components/responses/Refused"}},
        "x-right": route.right.name.lower(),
    }
    if text.body:
        schema = {"$ref": f"#/components/schemas/{text.body}"}
        found["requestBody"] = {"content": _content(schema), "required": True}
    return found


def _rights(route: ApiRoute) -> str:
    needed = f"Needs the tag {route.right.name.lower()}, or one that includes it"
    if "{vhost}" not in route.path or (route.right is Right.ADMINISTRATOR and not route.enters):
        return f"{needed}."
    how = "permissions in" if route.enters else "permissions in, or the tag monitoring for,"
    return f"{needed}, and {how} the virtual host."


def _answers(text: RouteText) -> Schema:
    name, several = text.answer.removesuffix("[]"), text.answer.endswith("[]")
    if not name:
        return {"204": {"description": "Done"}}
    if name == CREATED:
        return {"201": {"description": "Created"}, "204": {"description": "Changed"}}
    if name == EVENTS:
        content: Schema = {"text/event-stream": {"schema": _TEXT}}
        return {"200": {"description": "Events, numbered as the paths", "content": content}}
    schema: Schema = {"$ref": f"#/components/schemas/{name}"}
    if several:
        schema = {"type": "array", "items": schema}
        if "page" in text.query:
            numbers = dict.fromkeys(("page", "page_count", "page_size", "item_count"), _COUNT)
            numbers |= {"filtered_count": _COUNT, "total_count": _COUNT}
            schema = {"oneOf": [schema, _object(("items",), items=schema, **numbers)]}
    return {"200": {"description": "Success", "content": _content(schema)}}


def _content(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _parts(path: str) -> list[Schema]:
    found = []
    for name, pattern in _PART.findall(path):
        schema = {**_TEXT, "pattern": f"^({pattern})$"} if pattern else _TEXT
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    return found


def _query(name: str) -> Schema:
    schema, description = _QUERY[name]
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _identifier(route: ApiRoute) -> str:
    words = re.sub(r"[^A-Za-z0-9]+", "_", _PART.sub(r"by_\1", route.path)).strip("_")
    return f"{route.method.lower()}_{words}"


def _tag(path: str) -> str:
    """Return the heading under which a route is listed."""
    first, *others = path.split("/")
    return others[1] if first == "fluxmq" else first
