"""The backend for OAuth 2.0: a signed token (JWT, RFC 7519) as the password.

The signature is verified by the issuer's public keys and by the algorithms of the settings only;
never by a secret, and never not at all. Audience, issuer and times are checked, then the scopes are
taken. The name that a client gives beside the token does not count, as in RabbitMQ.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jwt
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from fluxmq.auth.remote_rights import RightsQuestion
from fluxmq.auth.scopes import ScopesError, own_scopes, tags_of
from fluxmq.auth.users import name_problem
from fluxmq.control.logins.backend import BackendError, LoginGrant, Verdict
from fluxmq.control.logins.keys import IssuerKeys
from fluxmq.control.logins.web_client import ANSWER_BYTES_MAX, WebClient
from fluxmq.ipc.login_messages import LoginQuestion
from fluxmq.settings.login_backends import OAuth2

USERNAME_CLAIMS = ("sub", "client_id")
"""Claims with the user's name, after those of the settings."""


class TokenError(ValueError):
    """A token does not let anybody in; says why."""


class OAuth2Backend:
    """Verifies tokens. ``wall`` returns seconds since the epoch, ``now`` monotonic ones."""

    def __init__(
        self,
        settings: OAuth2,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raise BackendSettingsError for unusable certificates."""
        self._settings = settings
        self._wall = wall
        self._client = WebClient(settings.ca_file, settings.timeout)
        self.keys = IssuerKeys(self._read, settings.refresh_interval, settings.keys_valid, now)

    async def check(self, question: LoginQuestion, _vhosts: Sequence[str]) -> Verdict:
        """Verify the token in the place of the password."""
        try:
            token = question.password.decode("ascii")
            header = jwt.get_unverified_header(token)
            algorithm, name = header.get("alg"), header.get("kid", "")
            if algorithm not in self._settings.algorithms:
                return "token refused: its algorithm is not in auth.oauth2.algorithms"
            key = await self.keys.key(name if isinstance(name, str) else "")
            if key is None:
                return "token refused: the issuer has no key of its key id"
            return self._grant(self._claims(token, key, algorithm))
        except (TokenError, ScopesError) as problem:
            return f"token refused: {problem}"
        except (PyJWTError, UnicodeDecodeError, ValueError, TypeError) as problem:
            return f"token refused: {type(problem).__name__}"

    def _claims(self, token: str, key: PyJWK, algorithm: str) -> dict[str, Any]:
        """Return the claims of a token that is valid now. Raises TokenError or PyJWTError."""
        settings = self._settings
        if key.algorithm_name != algorithm and key.key_type != "RSA":
            raise TokenError(f"its algorithm {algorithm} is not that of the key")
        if key.key_type == "RSA" and not algorithm.startswith(("RS", "PS")):
            raise TokenError(f"its algorithm {algorithm} is not one for the key")
        claims = jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            audience=settings.resource_server_id if settings.verify_audience else None,
            issuer=settings.issuer,
            options={
                "require": ["exp"],
                "verify_aud": settings.verify_audience,
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
        now, leeway = self._wall(), settings.leeway
        if _seconds(claims, "exp") + leeway <= now:
            raise TokenError("it has expired")
        if "nbf" in claims and _seconds(claims, "nbf") - leeway > now:
            raise TokenError("it is not valid yet")
        return claims

    def _grant(self, claims: Mapping[str, Any]) -> LoginGrant:
        settings = self._settings
        named = (
            claims.get(each) for each in (*settings.preferred_username_claims, *USERNAME_CLAIMS)
        )
        name = next((each for each in named if isinstance(each, str) and each), "")
        problem = name_problem(name)
        if problem is not None:
            raise TokenError(f"its user's {problem}")
        prefix = settings.scope_prefix
        if prefix is None:
            prefix = settings.resource_server_id + "."
        found = [
            scope
            for path in ("scope", *settings.additional_scopes_key)
            for scope in _words(claims, path)
        ]
        scopes = own_scopes(found, prefix, settings.scope_aliases)
        # The leeway counts at the end as well: it is the difference of the clocks.
        end = _seconds(claims, "exp") + settings.leeway
        return LoginGrant(name, tags_of(scopes), (), tuple(scopes), end)

    async def _read(self) -> bytes:
        """Return the set of keys. Raises BackendError."""
        settings = self._settings
        if settings.jwks_url is not None:
            return await self._client.request("GET", settings.jwks_url)
        assert settings.jwks_file is not None, "settings have one of them"
        path = Path(settings.jwks_file)
        try:
            document = await asyncio.to_thread(path.read_bytes)
        except OSError as problem:
            raise BackendError(f"auth.oauth2.jwks_file: {problem}") from problem
        if len(document) > ANSWER_BYTES_MAX:
            raise BackendError(f"{path} is longer than {ANSWER_BYTES_MAX} bytes")
        return document

    async def allows(self, _question: RightsQuestion) -> bool:
        """Decide nothing by the operation."""
        return False

    async def stop(self) -> None:
        """Close the connections."""
        await self._client.stop()


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenError(f"its {name} is no number")
    return float(value)


def _words(claims: Mapping[str, Any], path: str) -> list[str]:
    """Return the scopes in a claim: words of a text, or a list; a dot leads into an object."""
    value: Any = claims
    if path in claims:
        value = claims[path]
    else:
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
