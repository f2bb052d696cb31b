"""Hashes of other brokers, and what replaces them once the password is known."""

import base64
import hashlib
from dataclasses import replace

import pytest

from fluxmq.auth import scram
from fluxmq.auth.credentials import HashParameters, PasswordVerifier, hash_password
from fluxmq.auth.hash_upgrades import HashUpgrade, checked, is_upgrade, same_password
from fluxmq.auth.imported_hashes import rabbitmq_hash

PARAMETERS = HashParameters(1, 8, 1)
VERIFIER = PasswordVerifier(PARAMETERS, b"d" * 16)
SALT = b"k" * 16


def imported(password: bytes = b"secret", salt: bytes = b"salt") -> str:
    """A hash that RabbitMQ made."""
    digest = hashlib.sha256(salt + password).digest()
    text = base64.b64encode(salt + digest).decode()
    return rabbitmq_hash("rabbit_password_hashing_sha256", text)


def of_mosquitto(password: bytes = b"secret") -> str:
    """A hash that mosquitto 2 made."""
    salt = b"m" * 12
    digest = hashlib.pbkdf2_hmac("sha512", password, salt, 101)
    return "$".join(
        ("", "7", "101", base64.b64encode(salt).decode(), base64.b64encode(digest).decode())
    )


def upgrade(name: str = "ann", stored: str = "") -> HashUpgrade:
    """What a login leads to."""
    right, found = checked(VERIFIER, name, b"secret", stored or imported(), SALT)
    assert right
    assert found is not None
    return found


@pytest.mark.parametrize("stored", [imported(), of_mosquitto()])
def test_an_imported_hash_is_replaced_by_one_of_the_same_password(stored: str) -> None:
    found = upgrade("ann", stored)
    assert (found.name, found.verified, found.problem()) == ("ann", stored, None)
    assert found.hash.startswith("$argon2id$v=19$m=8,t=1,p=1$")
    assert VERIFIER.verify(b"secret", found.hash)
    assert not VERIFIER.verify(b"other", found.hash)
    assert found.scram == scram.derive_keys("secret", SALT)


def test_nothing_replaces_other_hashes_nor_after_a_wrong_password() -> None:
    own = hash_password("secret", b"s" * 16, PARAMETERS)
    assert checked(VERIFIER, "ann", b"secret", own, SALT) == (True, None)
    assert checked(VERIFIER, "ann", b"wrong", imported(), SALT) == (False, None)
    assert checked(VERIFIER, "ann", b"secret", None, SALT) == (False, None)
    assert checked(VERIFIER, "ann", b"", imported(b""), SALT) == (False, None)


@pytest.mark.parametrize("password", [b"\xff\xfe", "\u0007".encode()])
def test_a_password_that_scram_cannot_carry_has_no_keys(password: bytes) -> None:
    right, found = checked(VERIFIER, "ann", password, imported(password), SALT)
    assert right
    assert found is not None
    assert found.scram is None
    assert VERIFIER.verify(password, found.hash)


def test_an_upgrade_is_recognised_by_the_hash_that_it_replaces() -> None:
    found = upgrade()
    assert is_upgrade(imported(), found.hash)
    assert same_password(imported(), found.hash)
    assert same_password(found.hash, found.hash)
    assert not same_password(imported(salt=b"tlas"), found.hash)
    assert not same_password(found.hash, imported())
    own = hash_password("secret", b"s" * 16, PARAMETERS)
    assert not same_password(own, hash_password("secret", b"t" * 16, PARAMETERS))
    for nonsense in ("", "plain", found.hash + "$", imported(), "$rabbit$", found.hash[:20]):
        assert not is_upgrade(imported(), nonsense)
        assert not is_upgrade(nonsense, own)


def test_an_upgrade_that_is_none_has_a_problem() -> None:
    found = upgrade()
    own = hash_password("secret", b"s" * 16, PARAMETERS)
    assert replace(found, hash=own).problem() is not None
    assert replace(found, verified=own).problem() is not None
    costly = found.hash.replace("t=1", "t=1000")
    assert replace(found, hash=costly).problem() is not None
