"""Passwords that are recognised without being hashed again."""

from __future__ import annotations

from fluxmq.shards.remembered_passwords import REMEMBERED_MAX, RememberedPasswords


def test_a_password_is_recognised_for_the_hash_it_was_verified_against() -> None:
    passwords = RememberedPasswords()
    assert passwords.matches("ann", "hash", b"secret") is None
    passwords.remember("ann", "hash", b"secret")
    assert passwords.matches("ann", "hash", b"secret") is True
    assert passwords.matches("ann", "hash", b"other") is False
    assert passwords.matches("ann", "another", b"secret") is None
    assert passwords.matches("bob", "hash", b"secret") is None


def test_another_hash_of_the_same_password_takes_its_place() -> None:
    passwords = RememberedPasswords()
    passwords.remember("ann", "hash", b"secret")
    passwords.replaced("ann", "former", "newer")
    assert passwords.matches("ann", "hash", b"secret") is True
    passwords.replaced("ann", "hash", "newer")
    assert passwords.matches("ann", "newer", b"secret") is True
    assert passwords.matches("ann", "hash", b"secret") is None
    passwords.replaced("bob", "hash", "newer")
    assert passwords.matches("bob", "newer", b"secret") is None


def test_what_is_to_be_verified_anew_is_forgotten() -> None:
    passwords = RememberedPasswords()
    passwords.remember("ann", "hash", b"secret")
    passwords.forget("ann", "former")
    assert passwords.matches("ann", "hash", b"secret") is True
    passwords.forget("ann", "hash")
    assert passwords.matches("ann", "hash", b"secret") is None


def test_as_many_are_remembered_as_may_be() -> None:
    passwords = RememberedPasswords()
    for number in range(REMEMBERED_MAX):
        passwords.remember(f"u{number}", "hash", b"secret")
    assert passwords.matches("u0", "hash", b"secret") is True
    passwords.remember("one more", "hash", b"secret")
    assert passwords.matches("u0", "hash", b"secret") is None
    assert passwords.matches("one more", "hash", b"secret") is True
