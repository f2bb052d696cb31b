"""Passwords: argon2id (RFC 9106), with equal work whether or not the user exists.

Hashes are strings in the usual ``$argon2id$v=19$m=..,t=..,p=..$salt$hash`` form, so parameters may
change and old hashes still verify. One verification takes tens of milliseconds and the configured
memory on purpose: callers run it on a thread (the library releases the interpreter lock), never on
an event loop. Comparison inside the library takes constant time. Salts come from the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import argon2
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import Type, hash_secret, verify_secret

from fluxmq.auth.imported_hashes import imported, upgrade_salt

SALT_BYTES: Final = 16  # RFC 9106 section 3.1 recommends 16
HASH_BYTES: Final = 32
# Longer passwords are refused, with the same work: nobody types them, and strangers must not choose
# how much is hashed.
PASSWORD_BYTES_MAX: Final = 1024
# The argon2 text form with our salt and hash is below 120 characters.
HASH_CHARACTERS_MAX: Final = 256
# Bounds the work that a stored hash may demand, whatever its origin.
MEMORY_COST_MAX_KIB: Final = 4 * 1024 * 1024
TIME_COST_MAX: Final = 64
PARALLELISM_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class HashParameters:
    """Cost of one hash: passes, memory in KiB, lanes (RFC 9106 section 3.1: t, m, p)."""

    time_cost: int = 3
    memory_cost_kib: int = 64 * 1024
    parallelism: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError for parameters argon2 would refuse or that are unreasonably
        expensive."""
        if not 1 <= self.parallelism <= PARALLELISM_MAX:
            raise ValueError(f"parallelism must be 1 to {PARALLELISM_MAX}")
        if not 1 <= self.time_cost <= TIME_COST_MAX:
            raise ValueError(f"time_cost must be 1 to {TIME_COST_MAX}")
        if not 8 * self.parallelism <= self.memory_cost_kib <= MEMORY_COST_MAX_KIB:
            raise ValueError(f"memory_cost must be 8 KiB per lane to {MEMORY_COST_MAX_KIB} KiB")


def hash_password(password: str | bytes, salt: bytes, parameters: HashParameters) -> str:
    """Return the argon2id text for a password. `salt` is `SALT_BYTES` fresh random bytes.

    Raises ValueError for an empty or too long password and for a salt of another length.
    """
    secret = password.encode() if isinstance(password, str) else password
    if not secret:
        raise ValueError("password is empty")
    if len(secret) > PASSWORD_BYTES_MAX:
        raise ValueError(f"password is longer than {PASSWORD_BYTES_MAX} bytes")
    if len(salt) != SALT_BYTES:
        raise ValueError(f"salt must be {SALT_BYTES} bytes")
    return _hash(secret, salt, parameters)


def hash_problem(text: str) -> str | None:
    """Return why `text` is not a hash this module will verify, or None when it is."""
    if len(text) > HASH_CHARACTERS_MAX:
        return f"hash is longer than {HASH_CHARACTERS_MAX} characters"
    try:
        if imported(text) is not None:
            return None
        found = argon2.extract_parameters(text)
        if found.type is not Type.ID:
            return "hash is not argon2id"
        HashParameters(found.time_cost, found.memory_cost, found.parallelism)
    except (InvalidHashError, ValueError) as error:
        return f"hash is not usable: {error}"
    return None


class PasswordVerifier:
    """Verifies passwords, spending the same work on unknown users, disabled users and unusable
    hashes.

    `parameters` are those for new hashes; `dummy_salt` is any `SALT_BYTES` random bytes. Stateless:
    may be used from several threads at once.
    """

    __slots__ = ("_dummy_salt", "_parameters")

    def __init__(self, parameters: HashParameters, dummy_salt: bytes) -> None:
        if len(dummy_salt) != SALT_BYTES:
            raise ValueError(f"salt must be {SALT_BYTES} bytes")
        self._parameters = parameters
        self._dummy_salt = dummy_salt

    def verify(self, password: bytes, stored: str | None) -> bool:
        """Return whether `password` matches `stored`; None (no such user) costs the same and never
        matches.

        Equal work holds as long as stored hashes were made with this verifier's parameters.
        """
        return self.check(password, stored)[0]

    def check(self, password: bytes, stored: str | None) -> tuple[bool, str]:
        """Do as `verify`, and return beside it the argon2id text that may replace an imported hash:
        empty for others, and for a password that does not match."""
        if (
            stored is None
            or not password
            or len(password) > PASSWORD_BYTES_MAX
            or hash_problem(stored) is not None
        ):
            _hash(password[:PASSWORD_BYTES_MAX], self._dummy_salt, self._parameters)
            return False, ""
        foreign = imported(stored)
        if foreign is not None:
            # As much work as for other users, so that nobody sees whose hash was imported.
            made = _hash(password, upgrade_salt(stored), self._parameters)
            return (True, made) if foreign.matches(password) else (False, "")
        try:
            return verify_secret(stored.encode("ascii"), password, Type.ID), ""
        except VerificationError:  # a mismatch is a kind of VerificationError
            return False, ""


def _hash(secret: bytes, salt: bytes, parameters: HashParameters) -> str:
    return hash_secret(
        secret=secret,
        salt=salt,
        time_cost=parameters.time_cost,
        memory_cost=parameters.memory_cost_kib,
        parallelism=parameters.parallelism,
        hash_len=HASH_BYTES,
        type=Type.ID,
    ).decode("ascii")
