"""The backend that binds to an LDAP directory as the user, with the password that the client gave.

The user's name in the directory follows from a pattern, or is searched for. Groups that contain the
user grant tags and permissions, as the settings say. The library blocks, so that each login is a
task for a few threads.

Source: RFC 4511 (LDAP), RFC 4513 section 5.1 (simple bind), RFC 4514 and 4515 (names and filters).
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

from fluxmq.auth.remote_rights import RightsQuestion
from fluxmq.auth.users import (
    PERMISSIONS_MAX,
    TAGS_MAX,
    VhostPermission,
    name_problem,
    tags_problem,
)
from fluxmq.control.logins.backend import (
    NOT_TEXT,
    BackendError,
    BackendSettingsError,
    LoginGrant,
    Verdict,
    text_of,
)
from fluxmq.ipc.login_messages import LoginQuestion
from fluxmq.settings.login_backends import Ldap, LdapGroup

with warnings.catch_warnings():
    # It asks pyasn1 for names that were renamed there.
    warnings.simplefilter("ignore", DeprecationWarning)
    import ldap3  # type: ignore[import-untyped]
    from ldap3.core.exceptions import LDAPException  # type: ignore[import-untyped]
    from ldap3.utils.conv import escape_filter_chars  # type: ignore[import-untyped]
    from ldap3.utils.dn import escape_rdn, parse_dn  # type: ignore[import-untyped]

GROUPS_MAX: Final = 1000
"""Groups read of one user."""
REFUSED: Final = frozenset({32, 34, 48, 49, 53})
"""Results of a bind that are the user's: no such object, invalid name, inappropriate
authentication, invalid credentials, unwilling (RFC 4511 appendix A)."""
EVERYONE: Final = "*"
_ESCAPED: Final = re.compile(r"(?:\\[0-9A-Fa-f]{2})+|\\.")


class _RefusedBindError(Exception):
    """The directory does not let a user in."""


class _VerifiedTls(ldap3.Tls):  # type: ignore[misc]
    """Encrypts by the standard library, which verifies certificate and host name in the handshake.

    The library itself compares names afterwards, by a function that Python has no longer.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(validate=ssl.CERT_REQUIRED)
        self._context = context

    def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
        """Encrypt a connection."""
        connection.socket = self._context.wrap_socket(
            connection.socket,
            do_handshake_on_connect=do_handshake,
            server_hostname=connection.server.host,
        )


class LdapBackend:
    """One directory. Its methods ending in ``_blocking`` run on threads."""

    def __init__(self, settings: Ldap) -> None:
        """Raise BackendSettingsError for unusable certificates or names of groups."""
        self._settings = settings
        self._groups: list[tuple[str, LdapGroup]] = []
        for at, group in enumerate(settings.groups):
            try:
                name = EVERYONE if group.dn == EVERYONE else normal_dn(group.dn)
            except LDAPException as problem:
                raise BackendSettingsError(f"groups[{at}].dn: {problem}") from problem
            self._groups.append((name, group))
        try:
            tls = _VerifiedTls(ssl.create_default_context(cafile=settings.ca_file))
            self._server = ldap3.Server(
                settings.url,
                get_info=ldap3.NONE,
                tls=tls,
                connect_timeout=settings.timeout,
            )
        except (LDAPException, OSError, ssl.SSLError) as problem:
            raise BackendSettingsError(f"url: {problem}") from problem
        self._threads = ThreadPoolExecutor(settings.threads, "ldap")

    async def check(self, question: LoginQuestion, _vhosts: Sequence[str]) -> Verdict:
        """Bind as the user and read the user's groups."""
        name = question.username
        problem = name_problem(name)
        if problem is not None:
            return problem
        password = text_of(question.password)
        if password is None:
            return NOT_TEXT
        if not password or "\0" in password:
            # A bind without a password succeeds as anonymous (RFC 4513 section 5.1.2).
            return "the password is empty"
        loop = asyncio.get_running_loop()
        try:
            dns = await loop.run_in_executor(self._threads, self._groups_blocking, name, password)
        except _RefusedBindError as refusal:
            return str(refusal)
        except (LDAPException, OSError, ValueError) as failure:
            raise BackendError(f"no answer: {type(failure).__name__}") from failure
        if dns is None:
            return "the directory has no such user, or several"
        return self._grant(name, dns)

    def _groups_blocking(self, name: str, password: str) -> set[str] | None:
        """Return the names of the groups of a user whose password is right; None for no single
        user. Raises _RefusedBindError, LDAPException, OSError or BackendError."""
        settings = self._settings
        if settings.user_dn_pattern is not None:
            dn: str | None = settings.user_dn_pattern.replace("{username}", escape_rdn(name))
        else:
            dn = self._found_blocking(name)
        if dn is None:
            return None
        with self._bound(dn, password) as own:
            if settings.group_base is None or not any(n != EVERYONE for n, _ in self._groups):
                return set()
            if settings.bind_dn is None:
                return self._member_blocking(own, dn, name)
        with self._service() as service:
            return self._member_blocking(service, dn, name)

    def _found_blocking(self, name: str) -> str | None:
        """Return the name in the directory of the only user that the filter finds."""
        settings = self._settings
        query = settings.user_filter.replace("{username}", escape_filter_chars(name))
        with self._service() as service:
            service.search(settings.user_base, query, size_limit=2, attributes=["1.1"])
            found = [each["dn"] for each in _entries(service)]
        return found[0] if len(found) == 1 else None

    def _member_blocking(self, connection: Any, dn: str, name: str) -> set[str]:
        settings = self._settings
        query = settings.group_filter.replace("{dn}", escape_filter_chars(dn)).replace(
            "{username}", escape_filter_chars(name)
        )
        connection.search(settings.group_base, query, size_limit=GROUPS_MAX, attributes=["1.1"])
        return {normal_dn(each["dn"]) for each in _entries(connection)}

    @contextmanager
    def _service(self) -> Iterator[Any]:
        """Bind with the name for searches."""
        settings = self._settings
        secret = settings.bind_password
        try:
            with self._bound(
                settings.bind_dn or "", "" if secret is None else secret.reveal()
            ) as connection:
                yield connection
        except _RefusedBindError as refusal:
            raise BackendError(f"bind_dn: {refusal}") from refusal

    @contextmanager
    def _bound(self, dn: str, password: str) -> Iterator[Any]:
        """Bind. Raises _RefusedBindError, or BackendError when the directory cannot decide."""
        connection = ldap3.Connection(
            self._server,
            dn,
            password,
            receive_timeout=math.ceil(self._settings.timeout),  # a socket option of seconds
            auto_referrals=False,
        )
        try:
            connection.open()
            if self._settings.start_tls and not connection.start_tls():
                raise BackendError("the directory does not offer StartTLS")
            if not connection.bind():
                result = connection.result["result"]
                described = f"{connection.result['description']} ({result})"
                if result in REFUSED:
                    raise _RefusedBindError(f"the directory answered {described}")
                raise BackendError(f"the directory answered {described}")
            yield connection
        finally:
            with suppress(LDAPException, OSError):
                connection.unbind()
            if connection.socket is not None:
                connection.socket.close()

    def _grant(self, name: str, dns: set[str]) -> LoginGrant:
        groups = [group for dn, group in self._groups if dn == EVERYONE or dn in dns]
        tags = dict.fromkeys(
            tag for group in groups for tag in group.tags if tags_problem((tag,)) is None
        )
        return LoginGrant(name, tuple(tags)[:TAGS_MAX], permissions_of_groups(groups))

    async def allows(self, _question: RightsQuestion) -> bool:
        """Decide nothing by the operation."""
        return False

    async def stop(self) -> None:
        """Stop the threads; a login under way ends in its own time."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _entries(connection: Any) -> list[dict[str, Any]]:
    """Return the entries of a search, without references. Raises BackendError if it failed."""
    result = connection.result["result"]
    if result not in (0, 4, 32):  # also: size limit exceeded, no such object
        raise BackendError(f"a search ended with {connection.result['description']} ({result})")
    return [each for each in connection.response or () if each["type"] == "searchResEntry"]


def normal_dn(dn: str) -> str:
    """Return a form of a name in the directory by which names compare equal. Raises
    LDAPException."""
    parts = (
        f"{kind.strip()}={_ESCAPED.sub(_plain, value.strip())}{separator}"
        for kind, value, separator in parse_dn(dn, strip=True)
    )
    return "\0".join(parts).casefold()


def _plain(escaped: re.Match[str]) -> str:
    """Return the text of an escaped part of a name (RFC 4514 section 2.4)."""
    text = escaped[0]
    if len(text) == 2:
        return text[1]
    return bytes.fromhex(text.replace("\\", "")).decode("utf-8", "replace")


def permissions_of_groups(groups: Iterable[LdapGroup]) -> tuple[VhostPermission, ...]:
    """Return the permissions of a member of all these groups: by virtual host, each pattern is one
    of the groups'."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for group in groups:
        for each in group.permissions:
            found.setdefault(each.vhost, []).append((each.configure, each.write, each.read))
    return tuple(
        VhostPermission(vhost, *map(_either, zip(*patterns, strict=True)))
        for vhost, patterns in list(found.items())[:PERMISSIONS_MAX]
    )


def _either(patterns: Sequence[str]) -> str:
    different = list(dict.fromkeys(patterns))
    if len(different) == 1:
        return different[0]
    return "|".join(f"(?:{each or '^$'})" for each in different)
