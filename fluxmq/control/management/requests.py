"""Requests to the management interface: users, rights, bodies, and errors as RabbitMQ words them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import orjson
from aiohttp import web

from fluxmq.auth.users import User
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import (
    ERROR_AWAY,
    ERROR_FAILED,
    ERROR_NOT_FOUND,
    ERROR_REFUSED,
    Body,
    MessageError,
)

BODY_BYTES_MAX: Final = 16 << 20
"""Bytes of a request's body: definitions of some 50,000 queues."""
HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

PREFIX: Final = "/api/"

Ask = Callable[[str, Body], Awaitable[Body]]
"""Sends a request to the control process as fluxmqctl does. Raises RequestError or MessageError."""


class ApiError(Exception):
    """An answer that is an error: its status, a word, and a reason for people."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error
        self.reason = reason


def bad_request(reason: str) -> ApiError:
    """Return the error for a request that cannot be carried out."""
    return ApiError(400, "bad_request", reason)


def not_found(reason: str = "Not Found") -> ApiError:
    """Return the error for an object that does not exist."""
    return ApiError(404, "Object Not Found", reason)


def not_authorised(reason: str) -> ApiError:
    """Return the error for a user without the right."""
    return ApiError(401, "not_authorised", reason)


_STATUS: Final = {ERROR_NOT_FOUND: 404, ERROR_REFUSED: 401, ERROR_AWAY: 503, ERROR_FAILED: 400}


def error_of(problem: RequestError | MessageError) -> ApiError:
    """Return the error for a refusal of the control process."""
    status = _STATUS.get(problem.code, 400)
    words = {404: "Object Not Found", 401: "not_authorised", 503: "service_unavailable"}
    return ApiError(status, words.get(status, "bad_request"), str(problem))


class Right(IntEnum):
    """Rights that tags give, each with those below it, as in RabbitMQ."""

    NONE = 0
    MANAGEMENT = 1
    POLICYMAKER = 2
    MONITORING = 3
    ADMINISTRATOR = 4


_RIGHTS: Final = {
    "management": Right.MANAGEMENT,
    "policymaker": Right.POLICYMAKER,
    "monitoring": Right.MONITORING,
    "administrator": Right.ADMINISTRATOR,
}


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a request. ``password_hash`` and others of the record are not looked at."""

    user: User

    def has(self, right: Right) -> bool:
        """Return whether a tag gives the right. Monitoring does not include policies."""
        held = {_RIGHTS.get(tag, Right.NONE) for tag in self.user.tags}
        if right is Right.POLICYMAKER:
            return bool(held & {Right.POLICYMAKER, Right.ADMINISTRATOR})
        return max(held, default=Right.NONE) >= right

    def enters(self, vhost: str) -> bool:
        """Return whether the user has permissions in a virtual host."""
        return any(each.vhost == vhost for each in self.user.permissions)

    def sees(self, vhost: str) -> bool:
        """Return whether the user may look at a virtual host."""
        return self.has(Right.MONITORING) or self.enters(vhost)


class CallPlace(NamedTuple):
    """A path of the interface, its parts, and the query."""

    path: str
    parts: Mapping[str, str]
    query: Mapping[str, str]


class Call(NamedTuple):
    """A request with its user; ``place``: where it goes, if not to the request's own path."""

    request: web.Request
    caller: Caller
    place: CallPlace | None = None

    @property
    def path(self) -> str:
        """The path, below ``/api/``."""
        path = self.request.path.removeprefix(PREFIX)
        return path if self.place is None else self.place.path

    @property
    def parts(self) -> Mapping[str, str]:
        """The parts of the path by name."""
        return self.request.match_info if self.place is None else self.place.parts

    def part(self, name: str) -> str:
        """Return a part of the path."""
        return self.parts[name]

    @property
    def vhost(self) -> str:
        """The virtual host in the path."""
        return self.part("vhost")

    def text(self, name: str, default: str = "") -> str:
        """Return a value of the query."""
        query = self.request.query if self.place is None else self.place.query
        return query.get(name, default)

    def flag(self, name: str) -> bool:
        """Return whether the query says true."""
        return self.text(name).lower() == "true"

    async def body(self) -> dict[str, Any]:
        """Return the body, a JSON object; empty for none. Raises ApiError."""
        raw = await self.request.read()
        if not raw.strip():
            return {}
        try:
            found = orjson.loads(raw)
        except orjson.JSONDecodeError as problem:
            raise ApiError(400, "json_error", f"the body is not JSON: {problem}") from None
        if not isinstance(found, dict):
            raise bad_request("the body is not a JSON object")
        return found


Handler = Callable[[Call], Awaitable[web.StreamResponse]]


class ApiRoute(NamedTuple):
    """A path of the interface. ``right``: that it needs; ``vhost``: it is about the virtual host in the
    path, which the user has to see, or to enter if ``enters``."""

    method: str
    path: str
    handler: Handler
    right: Right = Right.MANAGEMENT
    enters: bool = False


def answer(content: object, status: int = 200) -> web.Response:
    """Return an answer with a JSON body."""
    body = orjson.dumps(content, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    return web.Response(
        body=body, status=status, content_type="application/json", charset="utf-8", headers=HEADERS
    )


def done(created: bool = False, location: str = "") -> web.Response:
    """Return an answer without a body."""
    headers = {**HEADERS, **({"Location": location} if location else {})}
    return web.Response(status=201 if created else 204, headers=headers)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    raise TypeError(type(value).__name__)


def text_of(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a text of a body. Raises ApiError when it is missing or something else."""
    found = body.get(name, default)
    if found is None:
        raise ApiError(400, "bad_request", f"[{{key_missing,{name}}}]: {name} is required")
    if not isinstance(found, str):
        raise bad_request(f"{name} is not a text")
    return found


def flag_of(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Return a truth value of a body, which may be given as text. Raises ApiError."""
    found = body.get(name, default)
    if isinstance(found, str) and found.lower() in ("true", "false"):
        return found.lower() == "true"
    if not isinstance(found, bool):
        raise bad_request(f"{name} is neither true nor false")
    return found


def number_of(body: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a whole number of a body, which may be given as text. Raises ApiError."""
    found = body.get(name, default)
    if isinstance(found, str) and found.lstrip("-").isdigit():
        return int(found)
    if not isinstance(found, int) or isinstance(found, bool):
        raise bad_request(f"{name} is not a number")
    return found


def table_of(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object in a body; empty if it is missing. Raises ApiError."""
    found = body.get(name) or {}
    if not isinstance(found, dict):
        raise bad_request(f"{name} is not an object")
    return found
