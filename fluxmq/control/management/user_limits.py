"""Limits of users over HTTP, as RabbitMQ has them: connections and channels of a user in all virtual
hosts."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from fluxmq.control.management.administration import Administration
from fluxmq.control.management.requests import (
    ApiRoute,
    Call,
    Right,
    answer,
    bad_request,
    done,
    number_of,
)
from fluxmq.routing.topology.changes import ClearUserLimits, SetUserLimits
from fluxmq.routing.topology.rules import USER_LIMIT_NAMES
from fluxmq.routing.topology.topology import Topology


class UserLimitRoutes:
    """Serves ``user-limits``."""

    def __init__(self, topology: Callable[[], Topology], administration: Administration) -> None:
        self._topology = topology
        self._administration = administration

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        admin, one = Right.ADMINISTRATOR, "user-limits/{user}/{name}"
        return [
            ApiRoute("GET", "user-limits", self._all, admin),
            ApiRoute("GET", "user-limits/{user}", self._of_user, admin),
            ApiRoute("PUT", one, self._set, admin),
            ApiRoute("DELETE", one, self._clear, admin),
        ]

    async def _all(self, _call: Call) -> web.Response:
        found = sorted(self._topology().user_limits(), key=lambda each: each.user)
        return answer([{"user": each.user, "value": dict(each.limits)} for each in found])

    async def _of_user(self, call: Call) -> web.Response:
        user = self._administration.found_user(call.part("user")).name
        limits = dict(self._topology().limits_of_user(user))
        return answer([{"user": user, "value": limits}] if limits else [])

    async def _set(self, call: Call) -> web.Response:
        user, name = self._named(call)
        value = number_of(await call.body(), "value")
        await self._administration.change(SetUserLimits(user, {name: value}))
        return done()

    async def _clear(self, call: Call) -> web.Response:
        await self._administration.change(ClearUserLimits(*self._named(call)))
        return done()

    def _named(self, call: Call) -> tuple[str, str]:
        """Return the user and the limit that a request names. Raises ApiError."""
        user, name = self._administration.found_user(call.part("user")).name, call.part("name")
        if name not in USER_LIMIT_NAMES:
            raise bad_request(f"unknown limit {name!r}: {' or '.join(USER_LIMIT_NAMES)}")
        return user, name
