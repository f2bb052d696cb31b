"""Argon2id hashes: made, verified, bounded, and equally slow for those who do not exist."""

import time

import pytest

from fluxmq.auth.credentials import (
    PASSWORD_BYTES_MAX,
    HashParameters,
    PasswordVerifier,
    hash_password,
    hash_problem,
)

CHEAP = HashParameters(time_cost=1, memory_cost_kib=64, parallelism=1)
SALT = bytes(range(16))
HASH = hash_password("correct horse", SALT, CHEAP)
VERIFIER = PasswordVerifier(CHEAP, b"d" * 16)


def test_a_hash_is_in_the_usual_text_form_and_depends_on_the_salt():
    assert HASH.startswith("$argon2id$v=19$m=64,t=1,p=1$")
    assert hash_password(b"correct horse", SALT, CHEAP) == HASH
    assert hash_password("correct horse", b"x" * 16, CHEAP) != HASH


def test_the_right_password_verifies_and_others_do_not():
    assert VERIFIER.verify(b"correct horse", HASH)
    assert not VERIFIER.verify(b"correct horsf", HASH)
    assert not VERIFIER.verify(b"", HASH)
    assert not VERIFIER.verify(b"correct horse", None)


def test_old_parameters_still_verify():
    old = hash_password("p", SALT, HashParameters(2, 128, 2))
    assert VERIFIER.verify(b"p", old)


def test_verify_reads_nonsense_as_a_wrong_password():
    for stored in ("", "plain", "$argon2id$v=19$m=64,t=1,p=1$AAAA", HASH[:-5] + "!!!!!", "ü" * 10):
        assert not VERIFIER.verify(b"correct horse", stored)


def test_too_long_passwords_are_refused_both_ways():
    longest = "x" * PASSWORD_BYTES_MAX
    stored = hash_password(longest, SALT, CHEAP)
    assert VERIFIER.verify(longest.encode(), stored)
    assert not VERIFIER.verify(longest.encode() + b"x", stored)
    with pytest.raises(ValueError, match="longer"):
        hash_password(longest + "x", SALT, CHEAP)


@pytest.mark.parametrize("salt", [b"", b"short", b"x" * 17])
def test_salts_have_one_length(salt):
    with pytest.raises(ValueError, match="salt"):
        hash_password("p", salt, CHEAP)
    with pytest.raises(ValueError, match="salt"):
        PasswordVerifier(CHEAP, salt)


def test_empty_passwords_are_refused():
    with pytest.raises(ValueError, match="empty"):
        hash_password("", SALT, CHEAP)


@pytest.mark.parametrize(
    "values", [(0, 64, 1), (1, 7, 1), (1, 15, 2), (1, 64, 0), (65, 64, 1), (1, 2**40, 1)]
)
def test_parameters_out_of_range_are_refused(values):
    with pytest.raises(ValueError, match="must be"):
        HashParameters(*values)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 300,
        "$argon2i$v=19$m=64,t=1,p=1$MDEyMzQ1Njc$MDEyMzQ1Njc4OTAxMjM0NQ",
        "$argon2id$v=19$m=99999999,t=1,p=1$MDEyMzQ1Njc$MDEyMzQ1Njc4OTAxMjM0NQ",
        "$argon2id$v=19$m=64,t=1000,p=1$MDEyMzQ1Njc$MDEyMzQ1Njc4OTAxMjM0NQ",
        "nothing",
        "",
    ],
)
def test_hashes_of_other_kinds_or_of_absurd_cost_are_problems(text):
    assert hash_problem(text) is not None
    assert hash_problem(HASH) is None


def test_an_unknown_user_costs_as_much_as_a_known_one():
    costly = HashParameters(time_cost=3, memory_cost_kib=16 * 1024)
    stored = hash_password("p", SALT, costly)
    verifier = PasswordVerifier(costly, b"d" * 16)

    cases = [(b"wrong", stored), (b"wrong", None), (b"wrong", "no hash"), (b"", stored)]
    times: dict[object, list[float]] = {case: [] for case in cases}
    for _ in range(7):  # in turn: the machine may be busy for a while
        for password, hashed in cases:
            began = time.perf_counter()
            verifier.verify(password, hashed)
            times[password, hashed].append(time.perf_counter() - began)
    known, *others = (min(each) for each in times.values())
    # Generous: what must not happen is an answer in no time.
    for unknown in others:
        assert 0.4 * known < unknown < 2.5 * known
