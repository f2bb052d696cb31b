"""Rights in the scopes of an OAuth 2.0 token, in RabbitMQ's grammar.

    configure|write|read:<vhost>/<name>[/<routing key>]
    tag:<tag>

Vhost, name and routing key are percent-encoded, and ``*`` in them stands for any characters, none
included; a scope without a routing key grants all of them. A scope that does not conform grants
nothing. All scopes of a token together become patterns for `fluxmq.auth.permissions`.

Pure. Source: RabbitMQ's OAuth 2.0 backend (scope-to-permission translation, topic exchange scopes,
scope and tags).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from fluxmq.auth.users import (
    PERMISSIONS_MAX,
    TAGS_MAX,
    KeyPermission,
    VhostPermission,
    tags_problem,
)
from fluxmq.model.patterns import PATTERN_BYTES_MAX, compile_pattern, quote

SCOPES_MAX: Final = 256
"""Scopes read from one token, aliases included: each is looked at for every virtual host."""
SCOPE_CHARACTERS_MAX: Final = 2048
"""Longest scope: three names of 255 bytes, percent-encoded."""
KINDS: Final = ("configure", "write", "read")
_TAG: Final = "tag:"


class ScopesError(ValueError):
    """The scopes of a token are more than can be checked for every message; says which bound."""


@dataclass(frozen=True, slots=True)
class TokenScope:
    """One scope: patterns (regular expressions, without anchors) for vhost, name and routing
    key."""

    kind: str
    vhost: str
    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights by virtual host, as users have them: `permissions`, and `keys` for the routing keys of
    topic exchanges."""

    permissions: tuple[VhostPermission, ...]
    keys: tuple[KeyPermission, ...] = ()


def parse_scope(text: str) -> TokenScope | None:
    """Return a scope for resources, or None if `text` is none."""
    kind, colon, path = text.partition(":")
    parts = path.split("/")
    if kind not in KINDS or not colon or not 2 <= len(parts) <= 3:
        return None
    if len(text) > SCOPE_CHARACTERS_MAX or not all(parts):
        return None
    try:
        vhost, name, key = map(_wildcard, (*parts, "*")[:3])
    except UnicodeDecodeError:
        return None
    return TokenScope(kind, vhost, name, key)


def _wildcard(text: str) -> str:
    """Return the regular expression of a part; a ``*`` that is meant literally is written %2A.
    Raises UnicodeDecodeError."""
    return ".*".join(quote(unquote(piece, errors="strict")) for piece in text.split("*"))


def own_scopes(
    scopes: Iterable[str], prefix: str, aliases: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the scopes meant for this broker, without their prefix, aliases replaced.

    Raises ScopesError.
    """
    meant = (each for scope in scopes for each in aliases.get(scope, (scope,)))
    found = [each[len(prefix) :] for each in meant if each.startswith(prefix)]
    if len(found) > SCOPES_MAX:
        raise ScopesError(f"the token has more than {SCOPES_MAX} scopes for this broker")
    return found


def tags_of(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the tags; those that cannot be a user's are left out."""
    found = (each[len(_TAG) :] for each in scopes if each.startswith(_TAG))
    return tuple(dict.fromkeys(tag for tag in found if tags_problem((tag,)) is None))[:TAGS_MAX]


def rights_of(scopes: Iterable[str], vhosts: Iterable[str]) -> Rights:
    """Return the rights that scopes grant in these virtual hosts.

    Raises ScopesError when a pattern would be longer than `PATTERN_BYTES_MAX`.
    """
    parsed = [scope for each in scopes if (scope := parse_scope(each)) is not None]
    names = {text: compile_pattern(_anchored([text])) for text in {each.vhost for each in parsed}}
    permissions: list[VhostPermission] = []
    keys: list[KeyPermission] = []
    for vhost in vhosts:
        here = [scope for scope in parsed if names[scope.vhost].search(vhost)]
        if not here or len(permissions) >= PERMISSIONS_MAX:
            continue
        configure, write, read = (
            _anchored(scope.name for scope in here if scope.kind == kind) for kind in KINDS
        )
        permissions.append(VhostPermission(vhost, configure, write, read))
        write, read = (
            _anchored(f"{scope.name}\\x00{scope.key}" for scope in here if scope.kind == kind)
            for kind in KINDS[1:]
        )
        keys.append(KeyPermission(vhost, write, read))
    return Rights(tuple(permissions), tuple(keys))


def _anchored(alternatives: Iterable[str]) -> str:
    """Return a pattern for the whole of a name; an empty one, which no name matches, for none."""
    found = sorted(set(alternatives))
    if not found:
        return ""
    text = f"^(?s:{'|'.join(found)})$"
    if len(text.encode()) > PATTERN_BYTES_MAX:
        raise ScopesError(
            f"the token's scopes take more than {PATTERN_BYTES_MAX} bytes as a pattern"
        )
    return text
