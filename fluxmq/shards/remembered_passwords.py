"""Passwords that were verified lately, recognised without argon2id.

A hash costs 100 ms of a core: clients that connect for every message would do nothing else.
"""

from __future__ import annotations

import hmac
import os
from typing import Final

REMEMBERED_MAX: Final = 10_000
"""Maximum number of users whose last verified password is remembered."""
KEY_BYTES: Final = 32


class RememberedPasswords:
    """For each user, the hash that a password was verified against, and the password's digest: useless
    without this process's key."""

    def __init__(self) -> None:
        self._key = os.urandom(KEY_BYTES)
        self._found: dict[str, tuple[str, bytes]] = {}

    def remember(self, name: str, stored: str, password: bytes) -> None:
        """Note that a password was verified against a hash."""
        if len(self._found) >= REMEMBERED_MAX:
            self._found.clear()
        self._found[name] = stored, self._digest(password)

    def matches(self, name: str, stored: str, password: bytes) -> bool | None:
        """Return whether this password was verified against the user's hash; None if none was."""
        found = self._found.get(name)
        if found is None or found[0] != stored:
            return None
        return hmac.compare_digest(found[1], self._digest(password))

    def replaced(self, name: str, before: str, after: str) -> None:
        """Note that another hash of the same password has replaced one."""
        found = self._found.get(name)
        if found is not None and found[0] == before:
            self._found[name] = after, found[1]

    def forget(self, name: str, stored: str) -> None:
        """Have a password that was verified against a hash verified anew."""
        found = self._found.get(name)
        if found is not None and found[0] == stored:
            del self._found[name]

    def _digest(self, password: bytes) -> bytes:
        return hmac.digest(self._key, password, "sha256")
