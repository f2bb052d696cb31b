"""Hashes of passwords that RabbitMQ and mosquitto made, for users that come from there.

They are weaker than argon2id (a stolen digest can be tried a billion times a second), and stay until
the user has logged in (`hash_upgrades`), or the password is set again. Sources: RabbitMQ's documentation of password hashes; mosquitto_passwd(1).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

RABBITMQ: Final = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
}
"""RabbitMQ's algorithms: a digest of salt and password."""
RABBITMQ_SALT_BYTES: Final = 4
MOSQUITTO_SHA512: Final = "6"
"""Marks the digest of password and salt that mosquitto 1.x made."""
MOSQUITTO_PBKDF2: Final = "7"
"""Marks mosquitto 2's PBKDF2 (RFC 8018) with HMAC-SHA-512."""
ITERATIONS_MAX: Final = 1_000_000
"""Bounds the work that a stored hash may demand; mosquitto's default is 101 iterations."""

UPGRADE: Final = b"fluxmq upgrade of "
UPGRADE_SALT_BYTES: Final = 16
"""Bytes of the derived salt: as many as others have (RFC 9106 section 3.1)."""


@dataclass(frozen=True, slots=True)
class ImportedHash:
    """A hash of another broker: PBKDF2 with ``iterations``, or without them a digest of the password
    between ``before`` and ``salt``."""

    digest: str
    before: bytes
    salt: bytes
    iterations: int
    expected: bytes

    def matches(self, password: bytes) -> bool:
        """Return whether it is the password's."""
        if self.iterations:
            found = hashlib.pbkdf2_hmac(self.digest, password, self.salt, self.iterations)
        else:
            found = hashlib.new(self.digest, self.before + password + self.salt).digest()
        return hmac.compare_digest(found, self.expected)


def rabbitmq_hash(algorithm: str, text: str) -> str:
    """Return the stored form of a hash that RabbitMQ made: its algorithm, and base64 of the salt and
    the digest. Raises ValueError for an algorithm that is not known, or another size."""
    if algorithm not in RABBITMQ:
        raise ValueError(f"unknown hashing algorithm {algorithm!r}: {', '.join(RABBITMQ)}")
    stored = f"${algorithm}${text}"
    if imported(stored) is None:
        raise ValueError("hash is not base64")
    return stored


def rabbitmq_algorithm(stored: str) -> str:
    """Return the algorithm of a hash that RabbitMQ made; nothing for another."""
    _, _, rest = stored.partition("$")
    algorithm = rest.partition("$")[0]
    return algorithm if algorithm in RABBITMQ else ""


def imported(stored: str) -> ImportedHash | None:
    """Return a stored hash; None if neither RabbitMQ nor mosquitto made it. Raises ValueError for a
    damaged one."""
    _, _, rest = stored.partition("$")
    kind, *fields = rest.split("$")
    if kind in RABBITMQ and len(fields) == 1:
        both = _bytes(fields[0])
        salt, expected = both[:RABBITMQ_SALT_BYTES], both[RABBITMQ_SALT_BYTES:]
        return _checked(ImportedHash(RABBITMQ[kind], salt, b"", 0, expected))
    if kind == MOSQUITTO_SHA512 and len(fields) == 2:
        return _checked(ImportedHash("sha512", b"", _bytes(fields[0]), 0, _bytes(fields[1])))
    if kind == MOSQUITTO_PBKDF2 and len(fields) == 3:
        iterations = int(fields[0]) if fields[0].isascii() and fields[0].isdigit() else 0
        if not 1 <= iterations <= ITERATIONS_MAX:
            raise ValueError(f"hash has not 1 to {ITERATIONS_MAX} iterations")
        return _checked(
            ImportedHash("sha512", b"", _bytes(fields[1]), iterations, _bytes(fields[2]))
        )
    return None


def is_imported(stored: str) -> bool:
    """Return whether RabbitMQ or mosquitto made a stored hash, and it is whole."""
    try:
        return imported(stored) is not None
    except ValueError:
        return False


def upgrade_salt(stored: str) -> bytes:
    """Return the salt of the hash that replaces an imported one, for the same password."""
    return hashlib.sha256(UPGRADE + stored.encode()).digest()[:UPGRADE_SALT_BYTES]


def _checked(found: ImportedHash) -> ImportedHash:
    if len(found.expected) != hashlib.new(found.digest).digest_size:
        raise ValueError(f"hash has not the size of {found.digest}")
    return found


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("hash is not base64") from None
