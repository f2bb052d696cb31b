"""Derives the stored form of a password: an argon2id hash and SCRAM-SHA-256 keys, with fresh salts.

Runs in fluxmqctl, so that passwords never leave the process they were typed into.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluxmq.auth import credentials, scram
from fluxmq.auth.credentials import HashParameters
from fluxmq.auth.scram import StoredKeys

if TYPE_CHECKING:
    from fluxmq.settings import Settings


@dataclass(frozen=True, slots=True)
class StoredPassword:
    """Stored form of one password."""

    hash: str
    scram: StoredKeys


def parameters_of(settings: Settings) -> HashParameters:
    """Return the argon2 parameters that the settings ask for."""
    argon2 = settings.auth.argon2
    return HashParameters(argon2.time_cost, argon2.memory_cost // 1024, argon2.parallelism)


def store_password(password: str, parameters: HashParameters) -> StoredPassword:
    """Hash a password; takes tens of milliseconds and the configured memory.

    Raises ValueError when the password is empty, too long or has characters SCRAM cannot carry.
    """
    if not password:
        raise ValueError("password is empty")
    keys = scram.derive_keys(password, secrets.token_bytes(scram.SALT_BYTES))
    salt = secrets.token_bytes(credentials.SALT_BYTES)
    return StoredPassword(credentials.hash_password(password, salt, parameters), keys)
