"""Tokens: signatures, algorithms, audience, issuer, times, names and scopes; never without a key."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from fluxmq.auth.users import User
from fluxmq.control.logins.backend import BackendError, BackendSettingsError, LoginGrant, Verdict
from fluxmq.control.logins.oauth2 import OAuth2Backend
from fluxmq.ipc.login_messages import LoginQuestion
from fluxmq.settings.login_backends import OAuth2
from tests.issuer import AUDIENCE, document, signing_key, token, unsigned

KEYS = {kind: signing_key(f"key-{kind}", kind) for kind in ("RSA", "EC", "OKP")}
Check = Callable[..., Verdict]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Check a token with the three keys, under settings and at a time in seconds from now."""
    file = tmp_path / "keys.json"
    file.write_bytes(document(*KEYS.values()))

    def checked(secret: str | bytes, after: float = 0, **settings: Any) -> Verdict:
        values = {"resource_server_id": AUDIENCE, "jwks_file": str(file), "leeway": 10} | settings
        backend = OAuth2Backend(OAuth2.model_validate(values), lambda: time.time() + after)
        password = secret.encode() if isinstance(secret, str) else secret
        return asyncio.run(backend.check(LoginQuestion("x", password, "::1", ("oauth2",)), ["/"]))

    return checked


@pytest.mark.parametrize("kind", KEYS)
def test_each_kind_of_key_lets_its_tokens_in(check: Check, kind: str) -> None:
    found = check(token(KEYS[kind], "read:%2F/a", "tag:management", sub="anna"))
    assert isinstance(found, LoginGrant)
    assert (found.name, found.tags) == ("anna", ("management",))
    assert found.scopes == ("read:%2F/a", "tag:management")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"aud": "another"}, "InvalidAudienceError"),
        ({"aud": None}, "MissingRequiredClaimError"),
        ({"exp": None}, "MissingRequiredClaimError"),
        ({"exp": "soon"}, "its exp is no number"),
        ({"exp": True}, "its exp is no number"),
        ({"iss": "https://stranger"}, "InvalidIssuerError"),
        ({"iss": None}, "MissingRequiredClaimError"),
        ({"nbf": time.time() + 86_400}, "not valid yet"),
        ({"sub": None}, "its user's name is empty"),
        ({"sub": "a" * 300}, "its user's name is longer"),
        ({"sub": 7}, "InvalidSubjectError"),
    ],
)
def test_claims_that_do_not_let_in(check: Check, changed: dict[str, Any], reason: str) -> None:
    claims: dict[str, Any] = {"iss": "https://issuer", "sub": "anna"}
    good = token(KEYS["RSA"], "read:*/*", **claims)
    assert isinstance(check(good, issuer="https://issuer"), LoginGrant)
    found = check(token(KEYS["RSA"], "read:*/*", **claims | changed), issuer="https://issuer")
    assert isinstance(found, str)
    assert reason in found


def test_a_token_ends_with_its_time_and_the_leeway(check: Check) -> None:
    made = token(KEYS["EC"], "read:*/*", lasts=100)
    found = check(made, after=105)
    assert isinstance(found, LoginGrant)
    assert found.expires_at == pytest.approx(time.time() + 110, abs=5)
    assert check(made, after=115) == "token refused: it has expired"


def test_no_signature_and_no_shared_secret(check: Check) -> None:
    """The ways in which verifiers of tokens have been fooled."""
    key = KEYS["RSA"]
    claims = {"sub": "anna", "aud": AUDIENCE, "exp": time.time() + 60}
    pem = key.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = {"alg": "HS256", "kid": key.name, "typ": "JWT"}
    body = unsigned(head, claims).rsplit(".", 1)[0]
    forged = unsigned(head, claims, hmac.new(pem, body.encode(), hashlib.sha256).digest())
    refused = "token refused: its algorithm is not in auth.oauth2.algorithms"
    assert check(forged) == refused
    for name in ("none", "None", "nOnE", None, 5):
        assert str(check(unsigned({"alg": name, "kid": key.name}, claims))).startswith(
            "token refused"
        )
    # Signed by another key than the one it names, and by one whose kind does not fit.
    for other in (signing_key("x"), KEYS["EC"]):
        assert isinstance(check(token(other, header={"kid": key.name})), str)
    # The header may not bring its own key.
    stranger = signing_key("stranger", "EC")
    for header in ({"jwk": stranger.public()}, {"jku": "http://127.0.0.1:1/"}):
        with pytest.raises(BackendError, match="key is not known"):
            check(token(stranger, header=header))
        assert isinstance(check(token(stranger, header=header | {"kid": key.name})), str)


def test_only_the_algorithms_of_the_settings(check: Check) -> None:
    made = token(KEYS["EC"], "read:*/*")
    assert isinstance(check(made, algorithms=("ES256",)), LoginGrant)
    assert isinstance(check(made, algorithms=("RS256", "EdDSA")), str)


@pytest.mark.parametrize(
    "secret", ["", "a.b", "....", "eyJ9.e30.", "eyJhbGciOiJSUzI1NiJ9.e30.AAAA", b"\xff.\xff.\xff"]
)
def test_garbage_is_refused(check: Check, secret: str | bytes) -> None:
    assert isinstance(check(secret), str)


def test_a_token_without_key_id_needs_an_issuer_with_one_key(check: Check, tmp_path: Path) -> None:
    key = KEYS["EC"]
    made = jwt.encode({"sub": "a", "aud": AUDIENCE, "exp": time.time() + 60}, key.private, "ES256")
    assert check(made) == "token refused: the issuer has no key of its key id"
    single = tmp_path / "single.json"
    single.write_bytes(document(key))
    assert isinstance(check(made, jwks_file=str(single)), LoginGrant)


def test_names_and_scopes_come_from_the_claims_of_the_settings(check: Check) -> None:
    claims: dict[str, Any] = {
        "preferred_username": "anna",
        "realm_access": {"roles": ["reader", "fluxmq.tag:monitoring", 7]},
        "odd.name": "fluxmq.write:*/w",
        "scope": ["fluxmq.configure:*/c", "unrelated"],
    }
    found = check(
        token(KEYS["RSA"], **claims),
        preferred_username_claims=("email", "preferred_username"),
        additional_scopes_key=("realm_access.roles", "odd.name", "missing.path"),
        scope_aliases={"reader": ("fluxmq.read:*/*", "other.read:*/*")},
    )
    assert isinstance(found, LoginGrant)
    assert found.name == "anna"
    assert found.scopes == ("configure:*/c", "read:*/*", "tag:monitoring", "write:*/w")
    bare = check(
        token(KEYS["RSA"], scope="read:*/*", aud=None), scope_prefix="", verify_audience=False
    )
    assert isinstance(bare, LoginGrant)
    assert bare.scopes == ("read:*/*",)


def test_too_many_scopes_are_a_refusal(check: Check) -> None:
    found = check(token(KEYS["RSA"], *[f"read:*/{n}" for n in range(300)]))
    assert found == "token refused: the token has more than 256 scopes for this broker"


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    values = {"resource_server_id": "x", "jwks_url": "https://x/", "ca_file": str(file)}
    with pytest.raises(BackendSettingsError, match="ca_file"):
        OAuth2Backend(OAuth2.model_validate(values))


def test_the_record_of_a_user_has_no_password() -> None:
    found = User("a", "", None, (), (), True)
    assert found.hash == ""
