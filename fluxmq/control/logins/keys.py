"""An issuer's public keys (JWKS, RFC 7517): fetched, kept, and fetched again when they change.

An unknown key id has the keys fetched at once, so that a rotation is noticed with the first token;
never more often than `REFETCH_SECONDS`, so that made-up key ids are no flood to the issuer. While
the issuer is away, keys are used for a bounded time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import orjson
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from fluxmq.control.logins.backend import AskLaterError, BackendError
from fluxmq.logs import RateLimited, get_logger

REFETCH_SECONDS: Final = 1.0
KEYS_MAX: Final = 128
"""Keys of one issuer: usually two or three, of each tenant."""
_SIGNING: Final = frozenset({"RSA", "EC", "OKP"})
"""Types of keys that have a public half. With a shared secret among them, anyone who knows
the public document could sign tokens."""

_log = get_logger("fluxmq.auth")


class KeysError(BackendError):
    """A document is no set of keys; says why."""


def read_keys(document: bytes) -> dict[str, PyJWK]:
    """Return the keys for signatures by key id, "" for the one key of a set whose key has none.
    Unknown kinds are left out. Raises KeysError."""
    try:
        listed = orjson.loads(document)["keys"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as problem:
        raise KeysError("the answer is no set of keys (JWKS)") from problem
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise KeysError(f"the set of keys has no list of at most {KEYS_MAX} keys")
    found: dict[str, PyJWK] = {}
    for each in listed:
        if not isinstance(each, dict) or each.get("kty") not in _SIGNING:
            continue
        name = each.get("kid", "")
        if each.get("use", "sig") != "sig" or not isinstance(name, str):
            continue
        try:
            key = PyJWK(each)
        except (PyJWTError, ValueError, TypeError):
            continue
        if name or len(listed) == 1:
            found[name] = key
    return found


class IssuerKeys:
    """The keys of one issuer. ``read`` returns the document; times are monotonic seconds."""

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        refresh_interval: float,
        valid: float,
        now: Callable[[], float],
    ) -> None:
        self._read = read
        self._refresh_interval = refresh_interval
        self._valid = valid
        self._now = now
        self._keys: dict[str, PyJWK] = {}
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._fetching = asyncio.Lock()
        self._log = RateLimited(_log, per_second=0.1, burst=3)
        self.fetches = 0
        self.failures = 0

    async def key(self, name: str) -> PyJWK | None:
        """Return the key of this id ("" for a token without), None if the issuer has none.

        Raises BackendError when the keys are not known, AskLaterError when they were fetched just
        now and lack this one.
        """
        if self._now() - self._fetched_at >= self._refresh_interval:
            await self._fetch()
        if self._now() - self._fetched_at >= self._valid:
            raise BackendError("the issuer's keys are not known")
        found = self._find(name)
        if found is None and name:
            if self._now() - self._tried_at < REFETCH_SECONDS:
                raise AskLaterError("the token's key is not known, and keys were fetched just now")
            await self._fetch()
            found = self._find(name)
        return found

    def _find(self, name: str) -> PyJWK | None:
        if not name and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name)

    async def _fetch(self) -> None:
        """Fetch the keys, unless that was tried just now; the former ones stay if it fails."""
        async with self._fetching:
            if self._now() - self._tried_at < REFETCH_SECONDS:
                return
            self._tried_at = self._now()
            self.fetches += 1
            try:
                self._keys = read_keys(await self._read())
                self._fetched_at = self._now()
            except BackendError as problem:
                self.failures += 1
                self._log.event(
                    logging.WARNING, "keys", "the issuer's keys cannot be fetched: %s", problem
                )
