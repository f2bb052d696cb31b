"""Checks of the login backends across settings. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fluxmq.model.patterns import pattern_problem
from fluxmq.settings.login_backends import GroupPermission, HttpBackend, Ldap, OAuth2
from fluxmq.settings.problems import SettingsProblem
from fluxmq.settings.schema import AuthSettings, Settings

_PATTERNS = ("configure", "write", "read")


def login_problems(settings: Settings) -> Iterator[SettingsProblem]:
    """Yield the problems of ``auth.backends`` and of the sections it names."""
    auth = settings.auth
    yield from _chain(auth)
    if auth.oauth2 is not None:
        yield from _oauth2(auth.oauth2)
    if auth.http is not None:
        yield from _patterns("auth.http", auth.http)
        if auth.http.resource_path is not None:
            for name in sorted(auth.http.model_fields_set & set(_PATTERNS)):
                yield SettingsProblem(
                    f"auth.http.{name}", "has no effect, since resource_path is given"
                )
    if auth.ldap is not None:
        yield from _ldap(auth.ldap)


def _chain(auth: AuthSettings) -> Iterator[SettingsProblem]:
    named = auth.backends
    sections = {"oauth2": auth.oauth2, "http": auth.http, "ldap": auth.ldap}
    for at, name in enumerate(named):
        if name in named[:at]:
            yield SettingsProblem(f"auth.backends[{at}]", f"names {name} a second time")
        elif sections.get(name, auth) is None:
            yield SettingsProblem(
                f"auth.backends[{at}]", f"is {name}, which needs a valid section auth.{name}"
            )
    for unused, section in sections.items():
        if section is not None and unused not in named:
            yield SettingsProblem(
                f"auth.{unused}", f"has no effect; add {unused} to auth.backends, or remove it"
            )


def _oauth2(oauth2: OAuth2) -> Iterator[SettingsProblem]:
    if (oauth2.jwks_url is None) == (oauth2.jwks_file is None):
        yield SettingsProblem(
            "auth.oauth2.jwks_url", "is required, or else jwks_file, and not both"
        )
    if oauth2.keys_valid < oauth2.refresh_interval:
        yield SettingsProblem("auth.oauth2.keys_valid", "may not be below refresh_interval")


def _ldap(ldap: Ldap) -> Iterator[SettingsProblem]:
    if (ldap.user_dn_pattern is None) == (ldap.user_base is None):
        yield SettingsProblem(
            "auth.ldap.user_dn_pattern", "is required, or else user_base, and not both"
        )
    for name in ("user_dn_pattern", "user_filter"):
        text = getattr(ldap, name)
        if text is not None and "{username}" not in text:
            yield SettingsProblem(f"auth.ldap.{name}", "must contain {username}")
    if "{dn}" not in ldap.group_filter and "{username}" not in ldap.group_filter:
        yield SettingsProblem("auth.ldap.group_filter", "must contain {dn} or {username}")
    if ldap.user_base is not None and ldap.bind_dn is None:
        yield SettingsProblem("auth.ldap.bind_dn", "is required to search for users")
    if (ldap.bind_dn is None) != (ldap.bind_password is None):
        yield SettingsProblem("auth.ldap.bind_password", "and bind_dn are of use only together")
    if ldap.start_tls and ldap.url.startswith("ldaps:"):
        yield SettingsProblem("auth.ldap.start_tls", "is of no use with ldaps://")
    needs_groups = any(group.dn != "*" for group in ldap.groups)
    if needs_groups and ldap.group_base is None:
        yield SettingsProblem("auth.ldap.group_base", "is required, since groups are named")
    for at, group in enumerate(ldap.groups):
        for number, permission in enumerate(group.permissions):
            yield from _patterns(f"auth.ldap.groups[{at}].permissions[{number}]", permission)


def _patterns(path: str, section: HttpBackend | GroupPermission) -> Iterator[SettingsProblem]:
    for name in _PATTERNS:
        problem = pattern_problem(getattr(section, name))
        if problem is not None:
            yield SettingsProblem(f"{path}.{name}", f"is not a usable pattern: {problem}")


def login_notes(settings: Settings) -> Iterator[str]:
    """Yield sentences about logins that the operator should read."""
    auth = settings.auth
    asked = [
        ("auth.oauth2.jwks_url", None if auth.oauth2 is None else auth.oauth2.jwks_url),
        ("auth.http.user_path", None if auth.http is None else auth.http.user_path),
    ]
    for path, url in asked:
        if url is not None and url.startswith("http://") and not _is_local(url):
            yield f"{path}: keys or passwords cross the network unencrypted; use https://."
    ldap = auth.ldap
    plain = ldap is not None and ldap.url.startswith("ldap:") and not ldap.start_tls
    if plain and ldap is not None and not _is_local(ldap.url):
        yield "auth.ldap.url: passwords cross the network unencrypted; set start_tls."


def _is_local(url: str) -> bool:
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    return host.startswith(("127.", "localhost", "[::1]"))
