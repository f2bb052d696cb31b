"""Hashes that another broker made, replaced by argon2id once the user has logged in.

A user's password is known for a moment at a login: then a hash of the broker's own kind is made of it,
and keys for SCRAM. The salt of that hash is derived from the imported hash. So everybody who sees one
after the other knows that the password is the same: clients stay connected, and logins that are being
verified stay valid. It is no way to the imported hash, which is salted itself; the salt of the keys,
which is told to every client that asks, is random.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fluxmq.auth.credentials import PasswordVerifier, hash_problem
from fluxmq.auth.imported_hashes import is_imported, upgrade_salt
from fluxmq.auth.scram import StoredKeys, derive_keys
from fluxmq.auth.users import Hash, UserName

ARGON2_FIELDS: Final = 6
"""Parts of argon2's text form between dollar signs; the first is empty, the last ones are salt and
hash."""


@dataclass(frozen=True, slots=True)
class HashUpgrade:
    """A user's new hash and keys. ``verified``: the hash that the password was verified against, which
    the new one replaces, and no other. No keys: the password cannot be used for SCRAM."""

    name: UserName
    verified: Hash
    hash: Hash
    scram: StoredKeys | None

    def problem(self) -> str | None:
        """Return why this cannot be used, or None when it can."""
        if not is_upgrade(self.verified, self.hash):
            return "the hash is not made from the one that was verified"
        return hash_problem(self.hash)


def is_upgrade(before: str, after: str) -> bool:
    """Return whether a hash was made to replace an imported one of the same password."""
    fields = after.split("$")
    if len(fields) != ARGON2_FIELDS or fields[1] != "argon2id" or not is_imported(before):
        return False
    return fields[-2] == base64.b64encode(upgrade_salt(before)).decode().rstrip("=")


def same_password(before: str, after: str) -> bool:
    """Return whether two hashes of a user, one after the other, are known to be of one password."""
    return before == after or is_upgrade(before, after)


def checked(
    verifier: PasswordVerifier, name: str, password: bytes, stored: str | None, salt: bytes
) -> tuple[bool, HashUpgrade | None]:
    """Return whether a password is right, and the upgrade of its hash if that is imported.

    The hash costs nothing more: the verifier makes one anyway. The keys take some 10 ms. ``salt``:
    `scram.SALT_BYTES` random bytes, for the keys.
    """
    right, made = verifier.check(password, stored)
    if not made or stored is None:
        return right, None
    keys = None
    with suppress(ValueError):  # text that SCRAM cannot carry
        keys = derive_keys(password.decode(), salt)
    return right, HashUpgrade(name, stored, made, keys)
