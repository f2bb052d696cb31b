"""Which backends a login is checked by, and in what order."""

from __future__ import annotations

import pytest

from fluxmq.auth.login_steps import looks_like_token, steps

TOKEN = b"eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln"


@pytest.mark.parametrize("password", [TOKEN, b"eyJ9.e30.", b"ewogICJhbGciOiAibm9uZSJ9.e30.x"])
def test_tokens(password: bytes) -> None:
    assert looks_like_token(password)


@pytest.mark.parametrize(
    "password", [b"", b"secret", b"a.b.c", b"eyJ9.e30", b"eyJ9.e30.x.y", TOKEN + b" ", b"eyJ9.!.x"]
)
def test_passwords(password: bytes) -> None:
    assert not looks_like_token(password)


@pytest.mark.parametrize(
    ("backends", "known", "password", "asked"),
    [
        # An unknown user is looked up all the same where nobody else is asked.
        (("internal",), True, b"x", ("internal",)),
        (("internal",), False, b"x", ("internal",)),
        (("internal", "oauth2"), False, b"x", ("internal",)),
        (("internal", "ldap"), False, b"x", ("ldap",)),
        (("ldap", "internal", "http"), True, b"x", ("ldap", "internal", "http")),
        (("ldap", "internal", "http"), False, b"x", ("ldap", "http")),
        # A token is for one backend, which gets nothing else.
        (("internal", "ldap", "oauth2"), True, TOKEN, ("oauth2",)),
        (("internal", "ldap", "oauth2"), True, b"x", ("internal", "ldap")),
        (("oauth2",), True, b"x", ()),
        # Without it, a token is a password like others.
        (("internal", "http"), True, TOKEN, ("internal", "http")),
    ],
)
def test_steps(
    backends: tuple[str, ...], known: bool, password: bytes, asked: tuple[str, ...]
) -> None:
    assert steps(backends, known, password) == asked
