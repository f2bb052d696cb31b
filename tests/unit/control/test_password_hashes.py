"""What is stored of a password lets exactly that password in, both ways."""

import pytest

from fluxmq.auth.credentials import HashParameters, PasswordVerifier
from fluxmq.auth.scram import ITERATIONS, derive_keys
from fluxmq.control.password_hashes import parameters_of, store_password
from fluxmq.settings import Settings

CHEAP = HashParameters(1, 64, 1)


def test_hash_and_keys_belong_to_the_password_and_are_salted_afresh():
    first, second = store_password("geheim", CHEAP), store_password("geheim", CHEAP)
    verifier = PasswordVerifier(CHEAP, b"d" * 16)
    assert verifier.verify(b"geheim", first.hash)
    assert first.hash != second.hash
    assert first.scram.salt != second.scram.salt
    assert first.scram == derive_keys("geheim", first.scram.salt, ITERATIONS)


def test_passwords_scram_cannot_carry_are_refused():
    with pytest.raises(ValueError, match="not allowed"):
        store_password("a\x07", CHEAP)
    with pytest.raises(ValueError, match="empty"):
        store_password("", CHEAP)


def test_parameters_come_from_the_settings():
    assert parameters_of(Settings()) == HashParameters(3, 64 * 1024, 1)
