"""Definitions: everything that is declared, as RabbitMQ's JSON, out and in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson
from aiohttp import web

from fluxmq.auth.users import User
from fluxmq.control.management.administration import Administration
from fluxmq.control.management.declared_groups import DeclaringNode
from fluxmq.control.management.list_query import JsonRow
from fluxmq.control.management.parameters import Parameters, parameter_row
from fluxmq.control.management.requests import (
    ApiError,
    ApiRoute,
    Call,
    Right,
    answer,
    bad_request,
    done,
    flag_of,
    not_found,
    table_of,
    text_of,
)
from fluxmq.control.management.rows import (
    binding_definition,
    exchange_row,
    permission_rows,
    policy_row,
    queue_row,
    topic_permission_rows,
    user_row,
)
from fluxmq.control.management.versions import PRODUCT, VERSION
from fluxmq.control.peers import RequestError
from fluxmq.ipc.definition_messages import (
    EXPORT_DEFINITIONS,
    DefinitionsText,
    ImportedDefinitions,
)
from fluxmq.ipc.group_choice import GroupChoice
from fluxmq.ipc.messages import ERROR_INVALID, Body, ControlMessage
from fluxmq.logs import get_logger
from fluxmq.routing.topology.arguments import queue_type
from fluxmq.routing.topology.changes import (
    Bind,
    Change,
    DeclareExchange,
    DeclareQueue,
)
from fluxmq.routing.topology.names import is_reserved
from fluxmq.routing.topology.parameters import OPERATOR_POLICY, VHOST_LIMITS, parameters
from fluxmq.routing.topology.records import EXCHANGE, QUEUE, Binding, Exchange, QueueRecord
from fluxmq.routing.topology.topology import Topology

CHANGES_AT_ONCE: Final = 200
"""Records declared by one change: it is one transaction."""
_log = get_logger(__name__)


class Definitions:
    """Serves the routes."""

    def __init__(
        self,
        topology: Callable[[], Topology],
        users: Callable[[], tuple[User, ...]],
        administration: Administration,
        parameters: Parameters,
        groups: DeclaringNode,
        version: str,
    ) -> None:
        """``version``: of the RabbitMQ that files are told to come from."""
        self._version = version
        self._topology = topology
        self._users = users
        self._administration = administration
        self._parameters = parameters
        self._groups = groups

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        admin = Right.ADMINISTRATOR
        return [
            ApiRoute("GET", "definitions", self._export, admin),
            ApiRoute("GET", "all-configuration", self._export, admin),
            ApiRoute("POST", "definitions", self._import, admin),
            ApiRoute("GET", "definitions/{vhost}", self._export_vhost, admin),
            ApiRoute("POST", "definitions/{vhost}", self._import_vhost, admin),
        ]

    # Out

    async def _export(self, _call: Call) -> web.Response:
        return answer(self.everything())

    def everything(self) -> JsonRow:
        """Return everything that is declared and lasts."""
        vhosts, users = self._topology().vhosts(), self._users()
        found: JsonRow = {
            "rabbit_version": self._version,
            "rabbitmq_version": self._version,
            "product_name": PRODUCT,
            "product_version": VERSION,
            "users": [
                user_row(each, self._topology().limits_of_user(each.name), secret=True)
                for each in users
            ],
            "vhosts": [
                {
                    "name": each.name,
                    "description": each.description,
                    "tags": list(each.tags),
                    "default_queue_type": each.default_queue_type,
                    "metadata": {
                        "description": each.description,
                        "tags": list(each.tags),
                        "default_queue_type": each.default_queue_type,
                    },
                }
                for each in vhosts
            ],
            "permissions": [row for each in users for row in permission_rows(each)],
            "topic_permissions": [row for each in users for row in topic_permission_rows(each)],
            "parameters": self._of_components([each.name for each in vhosts]),
            "global_parameters": self._parameters.global_rows(),
        }
        for vhost in vhosts:
            for key, rows in self._of_vhost(vhost.name).items():
                found.setdefault(key, []).extend(rows)
        return found

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request of fluxmqctl. Raises RequestError or MessageError."""
        if message.kind == EXPORT_DEFINITIONS:
            return DefinitionsText(encoded(self.everything())).to_body()
        try:
            return (
                await self.load(decoded(DefinitionsText.from_body(message.body).text))
            ).to_body()
        except ApiError as refusal:
            raise RequestError(ERROR_INVALID, refusal.reason) from refusal

    async def _export_vhost(self, call: Call) -> web.Response:
        if self._topology().vhost(call.vhost) is None:
            raise not_found(f"virtual host {call.vhost!r} does not exist")
        found = self._of_vhost(call.vhost)
        without = {
            key: [{k: v for k, v in row.items() if k != "vhost"} for row in rows]
            for key, rows in {**found, "parameters": self._of_components([call.vhost])}.items()
        }
        versions = {"rabbitmq_version": self._version, "product_name": PRODUCT}
        return answer({**versions, **without})

    def _of_components(self, vhosts: list[str]) -> list[JsonRow]:
        return [parameter_row(each) for each in parameters(self._topology(), vhosts)]

    def _of_vhost(self, vhost: str) -> dict[str, list[JsonRow]]:
        """Return what is declared in a virtual host and lasts: no exclusive queues, and neither the
        standard exchanges nor the bindings of the default one."""
        topology = self._topology()
        kept = [each for each in topology.queues(vhost) if each.durable and not each.exclusive]
        names = {each.name for each in kept}
        bindings = [
            each
            for each in topology.bindings(vhost)
            if each.destination_kind == EXCHANGE or each.destination in names
        ]
        return {
            "policies": [
                policy_row(each) for each in topology.policies(vhost) if not each.operator
            ],
            "queues": [queue_row(each) for each in kept],
            "exchanges": [
                exchange_row(each, "")
                for each in topology.exchanges(vhost)
                if each.durable and each.name and not is_reserved(each.name)
            ],
            "bindings": [binding_definition(each) for each in bindings],
        }

    # In

    async def _import(self, call: Call) -> web.Response:
        await self.load(await _definitions(call))
        return done()

    async def _import_vhost(self, call: Call) -> web.Response:
        if self._topology().vhost(call.vhost) is None:
            raise not_found(f"virtual host {call.vhost!r} does not exist")
        body = await _definitions(call)
        for kind in ("policies", "queues", "exchanges", "bindings", "parameters"):
            for row in _rows(body, kind):
                row["vhost"] = call.vhost
        of_vhost = {key: value for key, value in body.items() if key not in _GLOBAL}
        await self.load(of_vhost)
        return done()

    async def load(self, body: JsonRow) -> ImportedDefinitions:
        """Declare everything; what exists already stays or is changed. Return how much of each kind,
        and what was ignored. Raises ApiError at the first thing that is refused."""
        ignored: list[str] = []
        administration = self._administration
        for row in _rows(body, "vhosts"):
            await _named("vhost", row, administration.put_vhost(row))
        for row in _rows(body, "users"):
            await _named("user", row, administration.put_user(row))
        for row in _rows(body, "permissions"):
            await _named("permission", row, administration.permit(row))
        for row in _rows(body, "topic_permissions"):
            await _named("topic permission", row, administration.permit_topics(row))
        for row in _rows(body, "parameters"):
            await self._load_parameter(row, ignored)
        for row in _rows(body, "global_parameters"):
            await _named("global parameter", row, self._parameters.put_global(row))
        for row in _rows(body, "policies"):
            await _named("policy", row, administration.put_policy(row))
        await self._declare(await self._queues(_rows(body, "queues")))
        await self._declare([DeclareExchange(_exchange(row)) for row in _rows(body, "exchanges")])
        await self._declare([Bind(_binding(row)) for row in _rows(body, "bindings")])
        kinds = ("vhosts", "users", "permissions", "policies", "queues", "exchanges", "bindings")
        counts = {each: len(_rows(body, each)) for each in kinds}
        _log.info("definitions imported", extra=dict(counts))
        if ignored:
            _log.warning("definitions: some things are not supported", extra={"ignored": ignored})
        return ImportedDefinitions(counts, tuple(each[:255] for each in ignored[:1000]))

    async def _load_parameter(self, row: JsonRow, ignored: list[str]) -> None:
        component = text_of(row, "component", "")
        if component in (VHOST_LIMITS, OPERATOR_POLICY):
            await _named("parameter", row, self._parameters.put(row))
        else:
            ignored.append(f"{component} {row.get('name')}")

    async def _declare(self, changes: list[Change]) -> None:
        for begin in range(0, len(changes), CHANGES_AT_ONCE):
            await self._administration.change(*changes[begin : begin + CHANGES_AT_ONCE])

    async def _queues(self, rows: list[JsonRow]) -> list[Change]:
        """Return the declarations of queues; each new one counts for the placement of the next."""
        choice = await self._groups.choice()
        new: list[QueueRecord] = []
        return [DeclareQueue(self._queue(row, choice, new)) for row in rows]

    def _queue(self, row: JsonRow, choice: GroupChoice, new: list[QueueRecord]) -> QueueRecord:
        vhost, name = text_of(row, "vhost"), text_of(row, "name")
        known = self._topology().queue(vhost, name)
        if known is not None:
            return known  # it stays as it is
        arguments = table_of(row, "arguments")
        durable = flag_of(row, "durable", True)
        kind = str(row.get("type") or queue_type(arguments))
        queue = QueueRecord(
            *(vhost, name, kind, durable, False, flag_of(row, "auto_delete"), arguments)
        )
        queue = replace(queue, group=choice.of(self._topology(), queue, new))
        new.append(queue)
        return queue


_GLOBAL: Final = frozenset(
    ("users", "vhosts", "permissions", "topic_permissions", "global_parameters")
)


def encoded(definitions: JsonRow) -> bytes:
    """Return definitions as JSON."""
    return orjson.dumps(definitions, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)


def decoded(text: bytes) -> JsonRow:
    """Return definitions from JSON. Raises ApiError."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as problem:
        raise bad_request(f"not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise bad_request("not a JSON object")
    return found


async def _definitions(call: Call) -> JsonRow:
    """Return the body: JSON, or a form with a file, as pages send it. Raises ApiError."""
    if not call.request.content_type.startswith("multipart/"):
        return await call.body()
    raise bad_request("send the definitions as JSON, not as a form")


def _rows(body: Mapping[str, Any], kind: str) -> list[JsonRow]:
    rows = body.get(kind) or []
    if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
        raise bad_request(f"{kind} is not a list of objects")
    return rows


async def _named(what: str, row: JsonRow, making: Any) -> None:
    """Await a change; errors say about what it was."""
    try:
        await making
    except ApiError as problem:
        name = row.get("name") or f"{row.get('user')} in {row.get('vhost')}"
        reason = f"{what} {name}: {problem.reason}"
        raise ApiError(problem.status, problem.error, reason) from problem


def _exchange(row: JsonRow) -> Exchange:
    return Exchange(
        text_of(row, "vhost"),
        text_of(row, "name"),
        text_of(row, "type"),
        flag_of(row, "durable", True),
        flag_of(row, "auto_delete"),
        flag_of(row, "internal"),
        table_of(row, "arguments"),
    )


def _binding(row: JsonRow) -> Binding:
    kind = text_of(row, "destination_type", QUEUE)
    if kind not in (QUEUE, EXCHANGE):
        raise bad_request(f"destination_type is neither {QUEUE} nor {EXCHANGE}")
    return Binding(
        text_of(row, "vhost"),
        text_of(row, "source"),
        text_of(row, "destination"),
        kind,
        text_of(row, "routing_key", ""),
        table_of(row, "arguments"),
    )
