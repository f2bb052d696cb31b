"""Runtime parameters and global parameters over HTTP, as RabbitMQ has them, and the cluster's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
from aiohttp import web

from fluxmq.control.management.administration import Administration
from fluxmq.control.management.list_query import JsonRow, ListQuery
from fluxmq.control.management.objects import MessagingObjects
from fluxmq.control.management.requests import (
    ApiError,
    ApiRoute,
    Call,
    Right,
    answer,
    bad_request,
    done,
    not_authorised,
    not_found,
    text_of,
)
from fluxmq.ipc.row_messages import plain
from fluxmq.routing.topology.changes import (
    Change,
    ClearGlobalParameter,
    SetGlobalParameter,
)
from fluxmq.routing.topology.parameters import (
    CLUSTER_NAME,
    OPERATOR_POLICY,
    VHOST_LIMITS,
    RuntimeParameter,
    clearing,
    parameters,
    setting,
)
from fluxmq.routing.topology.records import GlobalParameter
from fluxmq.routing.topology.refusals import NOT_FOUND, Refusal
from fluxmq.routing.topology.topology import Topology, global_parameters

ONE: Final = "parameters/{component}/{vhost}/{name}"


class Parameters:
    """Serves the routes. ``node``: name of this node, and of the cluster until it gets another."""

    def __init__(
        self,
        topology: Callable[[], Topology],
        administration: Administration,
        objects: MessagingObjects,
        node: str,
    ) -> None:
        self._topology = topology
        self._administration = administration
        self._objects = objects
        self._node = node

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        right, one = Right.POLICYMAKER, "global-parameters/{name}"
        return [
            ApiRoute("GET", "parameters", self._list, right),
            ApiRoute("GET", "parameters/{component}", self._list, right),
            ApiRoute("GET", "parameters/{component}/{vhost}", self._list, right),
            ApiRoute("GET", ONE, self._show, right),
            ApiRoute("PUT", ONE, self._set, right),
            ApiRoute("DELETE", ONE, self._clear, right),
            ApiRoute("GET", "global-parameters", self._list_global, right),
            ApiRoute("GET", one, self._show_global, right),
            ApiRoute("PUT", one, self._set_global, right),
            ApiRoute("DELETE", one, self._clear_global, right),
            ApiRoute("GET", "cluster-name", self._cluster_name),
            ApiRoute("PUT", "cluster-name", self._set_cluster_name, Right.ADMINISTRATOR),
        ]

    # Parameters of components

    async def _list(self, call: Call) -> web.Response:
        vhosts, component = self._objects.vhosts(call), call.parts.get("component", "")
        rows = [parameter_row(each) for each in parameters(self._topology(), vhosts, component)]
        return answer(ListQuery(call).whole(rows))

    async def _show(self, call: Call) -> web.Response:
        return answer(parameter_row(self._found(call)))

    def _found(self, call: Call) -> RuntimeParameter:
        """Return the parameter of a path. Raises ApiError 404."""
        component, name = call.part("component"), call.part("name")
        for each in parameters(self._topology(), self._objects.vhosts(call), component):
            if each.name == name:
                return each
        raise not_found(f"there is no parameter {name!r} of {component!r} in vhost {call.vhost!r}")

    async def _set(self, call: Call) -> web.Response:
        self._check(call)
        body = {"component": call.part("component"), "vhost": call.vhost, "name": call.part("name")}
        return done(await self.put({**await call.body(), **body}))

    @staticmethod
    def _check(call: Call) -> None:
        """Demand the right that the component's own routes demand. Raises ApiError 401."""
        of_administrators = call.part("component") in (VHOST_LIMITS, OPERATOR_POLICY)
        if of_administrators and not call.caller.has(Right.ADMINISTRATOR):
            raise not_authorised("Not administrator user")

    async def put(self, body: JsonRow) -> bool:
        """Set a parameter of a component; return whether it is new. Raises ApiError."""
        component, vhost, name = (text_of(body, each) for each in ("component", "vhost", "name"))
        if self._topology().vhost(vhost) is None:
            raise not_found(f"virtual host {vhost!r} does not exist")
        known = parameters(self._topology(), [vhost], component)
        created = all(each.name != name for each in known)
        await self._change(lambda: setting(vhost, component, name, value_in(body)))
        return created

    async def _clear(self, call: Call) -> web.Response:
        self._check(call)
        found = self._found(call)
        await self._change(lambda: clearing(found.vhost, found.component, found.name))
        return done()

    async def _change(self, wanted: Callable[[], Change]) -> None:
        try:
            change = wanted()
        except Refusal as refusal:
            missing = refusal.code == NOT_FOUND
            raise not_found(refusal.text) if missing else bad_request(refusal.text) from refusal
        await self._administration.change(change)

    # Global parameters

    def global_rows(self) -> list[JsonRow]:
        """Return all global parameters, by name."""
        found = global_parameters(self._topology())
        return [{"name": name, "value": orjson.loads(found[name].value)} for name in sorted(found)]

    async def _list_global(self, call: Call) -> web.Response:
        return answer(ListQuery(call).whole(self.global_rows()))

    async def _show_global(self, call: Call) -> web.Response:
        for row in self.global_rows():
            if row["name"] == call.part("name"):
                return answer(row)
        raise not_found(f"there is no global parameter {call.part('name')!r}")

    async def _set_global(self, call: Call) -> web.Response:
        return done(await self.put_global({**await call.body(), "name": call.part("name")}))

    async def put_global(self, body: JsonRow) -> bool:
        """Set a global parameter; return whether it is new. Raises ApiError."""
        name = text_of(body, "name")
        created = name not in global_parameters(self._topology())
        value = orjson.dumps(value_in(body)).decode()
        await self._administration.change(SetGlobalParameter(GlobalParameter(name, value)))
        return created

    async def _clear_global(self, call: Call) -> web.Response:
        await self._administration.change(ClearGlobalParameter(call.part("name")))
        return done()

    # The cluster's name

    @property
    def cluster_name(self) -> str:
        """The global parameter of this name, if it is a text; else the node's name."""
        found = global_parameters(self._topology()).get(CLUSTER_NAME)
        name = None if found is None else orjson.loads(found.value)
        return name if isinstance(name, str) and name else self._node

    async def _cluster_name(self, _call: Call) -> web.Response:
        return answer({"name": self.cluster_name})

    async def _set_cluster_name(self, call: Call) -> web.Response:
        name = text_of(await call.body(), "name")
        await self.put_global({"name": CLUSTER_NAME, "value": name})
        return done()


def parameter_row(parameter: RuntimeParameter) -> JsonRow:
    """Return a parameter of a component as RabbitMQ shows it."""
    return {
        "value": plain(parameter.value),
        "vhost": parameter.vhost,
        "component": parameter.component,
        "name": parameter.name,
    }


def value_in(body: JsonRow) -> Any:
    """Return the value in a body, which may be any JSON. Raises ApiError."""
    if "value" not in body:
        raise ApiError(400, "bad_request", "[{key_missing,value}]: value is required")
    return body["value"]
