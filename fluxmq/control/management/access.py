"""Access to the management interface: users and passwords, by HTTP's Basic authentication (RFC
7617), and tokens, as bearer (RFC 6750) or in the place of a password.

Login backends are asked in the order of the settings, as for clients: the internal one here, others
by the message that shards send.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from hashlib import blake2b
from itertools import groupby
from typing import Final

from aiohttp import web

from fluxmq.auth.addresses import address_key, is_loopback_key
from fluxmq.auth.credentials import SALT_BYTES, HashParameters, PasswordVerifier
from fluxmq.auth.hash_upgrades import HashUpgrade, checked, same_password
from fluxmq.auth.login_steps import steps
from fluxmq.auth.login_throttle import LoginThrottle, ThrottleLimits
from fluxmq.auth.logins import INTERNAL, OAUTH2
from fluxmq.auth.scram import SALT_BYTES as SCRAM_SALT_BYTES
from fluxmq.auth.users import NAME_BYTES_MAX, User
from fluxmq.control.management.requests import ApiError, Ask, Caller, Right, not_authorised
from fluxmq.control.peers import RequestError
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.hash_upgrades import HashUpgrades
from fluxmq.ipc.login_messages import LOGIN, SECRET_BYTES_MAX, LoginAnswer, LoginQuestion
from fluxmq.ipc.messages import ERROR_FAILED, Body, Failure, MessageError
from fluxmq.logs import get_logger
from fluxmq.settings.schema import AuthSettings

REALM: Final = 'Basic realm="FluxMQ Management", charset="UTF-8"'
VERIFIED_SECONDS: Final = 60.0
"""Time for which a password that was right is not hashed again: a page asks every few seconds, and a
hash takes tens of milliseconds and megabytes."""
VERIFIED_MAX: Final = 1024
VERIFYING_MAX: Final = 2
"""Passwords that are hashed at once: each takes `auth.argon2.memory_cost`."""
WAITING_MAX: Final = 64
"""Requests that wait for their turn; others are refused."""

LOGIN_OF_REQUEST: ContextVar[LoginAnswer | None] = ContextVar("login", default=None)
"""Grant of another backend to the user of the request that the current task serves; None for a user
of the internal backend."""

_log = get_logger(__name__)


class BackgroundRequests:
    """Sends requests to the control process that no HTTP request waits for, in tasks of their own."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._tasks: set[asyncio.Task[None]] = set()

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        """Send a request, see `Conversation.request`."""
        task = asyncio.get_running_loop().create_task(self._send(kind, body, answered))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _send(self, kind: str, body: Body, answered: Answered) -> None:
        """Send one request; outermost frame of its task."""
        try:
            answer: Body | Failure = await self._ask(kind, body)
        except (RequestError, MessageError) as problem:
            answer = Failure(problem.code, str(problem))
        except Exception:  # noqa: BLE001 - a task's outermost frame
            _log.exception("request failed", extra={"kind": kind})
            answer = Failure(ERROR_FAILED, "the control process failed; see its log")
        answered(answer)


class ManagementAccess:
    """Identifies users. ``users`` returns those of the internal backend; ``limits`` of failed
    logins; ``settings`` returns those in force; ``ask`` sends requests to the control process."""

    def __init__(
        self,
        users: Callable[[], tuple[User, ...]],
        parameters: Callable[[], HashParameters],
        limits: ThrottleLimits,
        settings: Callable[[], AuthSettings],
        ask: Ask,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._users = users
        self._parameters = parameters
        self._throttle = LoginThrottle(limits)
        self._settings = settings
        self._ask = ask
        self._now = now
        self._verified: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """Digests of names and passwords that were right: the hash, and until when."""
        self._key = secrets.token_bytes(32)
        self._turn = asyncio.Semaphore(VERIFYING_MAX)
        self._waiting = 0
        self._upgrades = HashUpgrades(_call_later, self._give_up)
        self._upgrades.connect(BackgroundRequests(ask))
        self.failures = 0
        """Number of logins that failed."""

    async def caller(self, request: web.Request) -> Caller:
        """Return the user of a request. Raises ApiError 401, or 503 when no backend can say, or
        HTTPTooManyRequests."""
        name, password = _credentials(request, bearer=OAUTH2 in self._settings().backends)
        LOGIN_OF_REQUEST.set(None)
        address = address_key(request.remote or "")
        wait = self._throttle.wait(name, address, self._now())
        if wait > 0:
            raise web.HTTPTooManyRequests(headers={"Retry-After": str(int(wait) + 1)})
        user = await self._user(name, password, request.remote or "")
        if user is None:
            self.failures += 1
            self._throttle.failed(name, address, self._now())
            raise not_authorised("Login failed")
        self._throttle.succeeded(name, address, self._now())
        caller = Caller(user)
        if not caller.has(Right.MANAGEMENT):
            raise not_authorised("Not management user")
        return caller

    async def _user(self, name: str, password: bytes, remote: str) -> User | None:
        """Return the user whom the first backend lets in, None if none does. Raises ApiError 503
        when one that might could not be asked."""
        record = next((each for each in self._users() if each.name == name), None)
        asked = steps(self._settings().backends, record is not None, password)
        later = False
        for internal, names in groupby(asked, lambda each: each == INTERNAL):
            if internal:
                known = record if self._reachable(name, remote) else None
                if await self._is_right(known, name, password):
                    return known
                continue
            answer = await self._elsewhere(name, password, remote, tuple(names))
            if answer.outcome == "accepted" and self._reachable(answer.name, remote):
                LOGIN_OF_REQUEST.set(answer)
                return answer.user()
            later = later or answer.outcome in ("busy", "unavailable")
        if later:
            raise ApiError(503, "service_unavailable", "the login cannot be checked now")
        return None

    def _reachable(self, name: str, remote: str) -> bool:
        """Return whether a user may log in from this address."""
        return name not in self._settings().loopback_users or is_loopback_key(address_key(remote))

    async def _elsewhere(
        self, name: str, password: bytes, remote: str, backends: tuple[str, ...]
    ) -> LoginAnswer:
        """Return what other backends decide."""
        if len(name.encode()) > NAME_BYTES_MAX or len(password) > SECRET_BYTES_MAX:
            return LoginAnswer("wrong")
        question = LoginQuestion(name, password, remote[:64], backends)
        return LoginAnswer.from_body(await self._ask(LOGIN, question.to_body()))

    async def _is_right(self, user: User | None, name: str, password: bytes) -> bool:
        known = user if user is not None and user.enabled else None
        digest = blake2b(name.encode() + b"\0" + password, key=self._key).digest()
        found = self._verified.get(digest)
        if known is not None and found is not None:
            if same_password(found[0], known.hash) and found[1] > self._now():
                return True
            del self._verified[digest]
        if self._waiting >= WAITING_MAX:
            raise web.HTTPServiceUnavailable
        self._waiting += 1
        try:
            async with self._turn:
                verifier = PasswordVerifier(self._parameters(), secrets.token_bytes(SALT_BYTES))
                stored = None if known is None else known.hash
                salt = secrets.token_bytes(SCRAM_SALT_BYTES)
                right, upgrade = await asyncio.to_thread(
                    checked, verifier, name, password, stored, salt
                )
        finally:
            self._waiting -= 1
        if upgrade is not None:
            self._upgrades.add(upgrade)
        if right and known is not None:
            self._verified[digest] = known.hash, self._now() + VERIFIED_SECONDS
            while len(self._verified) > VERIFIED_MAX:
                self._verified.popitem(last=False)
        return right and known is not None

    def _give_up(self, upgrade: HashUpgrade) -> None:
        """Have the user's next password verified anew, which makes another upgrade."""
        stale = [key for key, (stored, _) in self._verified.items() if stored == upgrade.verified]
        for key in stale:
            del self._verified[key]


def _call_later(seconds: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, call)


def _credentials(request: web.Request, *, bearer: bool) -> tuple[str, bytes]:
    """Return name and password; of a bearer, if it may be one, no name and the token. Raises
    ApiError 401."""
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    if bearer and scheme.lower() == "bearer":
        return "", encoded.strip().encode()
    if scheme.lower() != "basic":
        raise not_authorised("Login required")
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        text = name.decode()
    except (binascii.Error, UnicodeDecodeError):
        raise not_authorised("Login failed") from None
    if not colon:
        raise not_authorised("Login failed")
    return text, password
