"""Access to the management interface: users and passwords, by HTTP's Basic authentication (RFC 7617)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final

from aiohttp import web

from fluxmq.auth.addresses import address_key, is_loopback_key
from fluxmq.auth.credentials import SALT_BYTES, HashParameters, PasswordVerifier
from fluxmq.auth.login_throttle import LoginThrottle, ThrottleLimits
from fluxmq.auth.users import User
from fluxmq.control.management.requests import Caller, Right, not_authorised

REALM: Final = 'Basic realm="FluxMQ Management", charset="UTF-8"'
VERIFIED_SECONDS: Final = 60.0
"""Time for which a password that was right is not hashed again: a page asks every few seconds, and a
hash takes tens of milliseconds and megabytes."""
VERIFIED_MAX: Final = 1024
VERIFYING_MAX: Final = 2
"""Passwords that are hashed at once: each takes `auth.argon2.memory_cost`."""
WAITING_MAX: Final = 64
"""Requests that wait for their turn; others are refused."""


class ManagementAccess:
    """Identifies users. ``users`` returns the node's; ``limits`` of failed logins; ``loopback_users``
    those that are let in from this machine only."""

    def __init__(
        self,
        users: Callable[[], tuple[User, ...]],
        parameters: Callable[[], HashParameters],
        limits: ThrottleLimits,
        loopback_users: Callable[[], Sequence[str]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._users = users
        self._parameters = parameters
        self._throttle = LoginThrottle(limits)
        self._loopback_users = loopback_users
        self._now = now
        self._verified: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """Digests of names and passwords that were right: the hash, and until when."""
        self._key = secrets.token_bytes(32)
        self._turn = asyncio.Semaphore(VERIFYING_MAX)
        self._waiting = 0
        self.failures = 0
        """Number of logins that failed."""

    async def caller(self, request: web.Request) -> Caller:
        """Return the user of a request. Raises ApiError 401, or HTTPTooManyRequests."""
        name, password = _credentials(request)
        address = address_key(request.remote or "")
        wait = self._throttle.wait(name, address, self._now())
        if wait > 0:
            raise web.HTTPTooManyRequests(headers={"Retry-After": str(int(wait) + 1)})
        user = next((each for each in self._users() if each.name == name), None)
        if name in self._loopback_users() and not is_loopback_key(address):
            user = None
        if not await self._is_right(user, name, password):
            self.failures += 1
            self._throttle.failed(name, address, self._now())
            raise not_authorised("Login failed")
        assert user is not None
        self._throttle.succeeded(name, address, self._now())
        caller = Caller(user)
        if not caller.has(Right.MANAGEMENT):
            raise not_authorised("Not management user")
        return caller

    async def _is_right(self, user: User | None, name: str, password: bytes) -> bool:
        known = user if user is not None and user.enabled else None
        digest = blake2b(name.encode() + b"\0" + password, key=self._key).digest()
        found = self._verified.get(digest)
        if known is not None and found is not None:
            if found[0] == known.hash and found[1] > self._now():
                return True
            del self._verified[digest]
        if self._waiting >= WAITING_MAX:
            raise web.HTTPServiceUnavailable
        self._waiting += 1
        try:
            async with self._turn:
                verifier = PasswordVerifier(self._parameters(), secrets.token_bytes(SALT_BYTES))
                stored = None if known is None else known.hash
                right = await asyncio.to_thread(verifier.verify, password, stored)
        finally:
            self._waiting -= 1
        if right and known is not None:
            self._verified[digest] = known.hash, self._now() + VERIFIED_SECONDS
            while len(self._verified) > VERIFIED_MAX:
                self._verified.popitem(last=False)
        return right and known is not None


def _credentials(request: web.Request) -> tuple[str, bytes]:
    """Return name and password. Raises ApiError 401."""
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
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
