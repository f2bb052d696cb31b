"""Logins by a real LDAP directory: binding, searching, groups, names with odd characters, TLS."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from fluxmq.auth.permissions import Permissions
from fluxmq.auth.users import VhostPermission
from fluxmq.control.logins.backend import BackendError, BackendSettingsError, LoginGrant, Verdict
from fluxmq.control.logins.directory import LdapBackend, normal_dn, permissions_of_groups
from fluxmq.ipc.login_messages import LoginQuestion
from fluxmq.settings.login_backends import Ldap, LdapGroup
from tests.broker import CERTIFICATES, free_ports
from tests.directory_server import ADMIN, ADMIN_PASSWORD, BASE, directory_server

GROUPS = [
    {
        "dn": f"CN=operators, ou=groups,{BASE}",
        "tags": ["administrator"],
        "permissions": [{"configure": "^o", "write": "^o"}],
    },
    {
        "dn": f"cn=writers,ou=groups,{BASE}",
        "tags": ["management"],
        "permissions": [{"write": "^w"}, {"vhost": "prod", "read": ".*"}],
    },
]
BY_PATTERN = {"user_dn_pattern": "uid={username},ou=people," + BASE}
BY_SEARCH = {"user_base": BASE, "bind_dn": ADMIN, "bind_password": ADMIN_PASSWORD}
IN_GROUPS = {"group_base": f"ou=groups,{BASE}", "groups": GROUPS}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A directory."""
    with directory_server(tmp_path_factory.mktemp("ldap")) as found:
        yield found


def check(settings: Mapping[str, Any], name: str, password: str | bytes) -> Verdict:
    """What the backend decides."""
    secret = password.encode() if isinstance(password, str) else password

    async def checked() -> Verdict:
        backend = LdapBackend(Ldap.model_validate_json(_json(settings)))
        try:
            return await backend.check(LoginQuestion(name, secret, "::1", ("ldap",)), ["/"])
        finally:
            await backend.stop()

    return asyncio.run(checked())


def _json(settings: Mapping[str, Any]) -> str:
    import json

    return json.dumps(dict(settings))


@pytest.mark.parametrize("way", [BY_PATTERN, BY_SEARCH, BY_PATTERN | BY_SEARCH])
def test_the_directorys_password_lets_in(urls: tuple[str, str], way: dict[str, Any]) -> None:
    if "user_dn_pattern" in way:
        way = {name: value for name, value in way.items() if name != "user_base"}
    settings = {"url": urls[0], **way, **IN_GROUPS}
    found = check(settings, "anna", "anna's")
    assert isinstance(found, LoginGrant)
    assert (found.name, found.tags) == ("anna", ("administrator", "management"))
    assert [each.vhost for each in found.permissions] == ["/", "prod"]
    bert = check(settings, "bert", "bert's")
    assert isinstance(bert, LoginGrant)
    assert bert.tags == ("management",)
    for name, password in (("anna", "bert's"), ("nobody", "anna's"), ("anna", "anna's ")):
        assert isinstance(check(settings, name, password), str)


def test_no_password_is_a_wrong_password(urls: tuple[str, str]) -> None:
    """A simple bind without one would succeed, as nobody."""
    settings = {"url": urls[0], **BY_PATTERN}
    assert check(settings, "anna", "") == "the password is empty"
    assert isinstance(check(settings, "anna", "\0"), str)
    assert isinstance(check(settings, "anna", b"\xff"), str)
    assert isinstance(check(settings, "", "anna's"), str)


@pytest.mark.parametrize("way", [BY_PATTERN, BY_SEARCH])
def test_a_name_is_a_name_whatever_its_characters(
    urls: tuple[str, str], way: dict[str, Any]
) -> None:
    settings = {"url": urls[0], **way, **IN_GROUPS}
    found = check(settings, "a,b*(c)", "odd's")
    assert isinstance(found, LoginGrant)
    assert found.tags == ("management",), "its groups are found as well"
    for name in ("*", "anna)(uid=*", "a*", "anna,ou=people", "uid=anna"):
        assert isinstance(check(settings, name, "anna's"), str)


def test_a_search_has_to_find_one_user(urls: tuple[str, str]) -> None:
    settings = {"url": urls[0], **BY_SEARCH}
    assert check(settings, "twin", "twin's") == "the directory has no such user, or several"
    narrow = settings | {"user_base": f"ou=people,{BASE}"}
    assert isinstance(check(narrow, "twin", "twin's"), LoginGrant)


def test_rights_without_groups_are_those_of_everybody(urls: tuple[str, str]) -> None:
    everybody = {"dn": "*", "tags": ["monitoring"], "permissions": [{"read": ".*"}]}
    settings = {"url": urls[0], **BY_PATTERN}
    found = check(settings | {"groups": [everybody]}, "bert", "bert's")
    assert isinstance(found, LoginGrant)
    assert (found.tags, found.permissions[0].read) == (("monitoring",), ".*")
    bare = check(settings, "bert", "bert's")
    assert bare == LoginGrant("bert"), "no virtual host at all"


@pytest.mark.parametrize("at", [0, 1])
def test_the_connection_is_encrypted_and_the_server_verified(
    urls: tuple[str, str], at: int
) -> None:
    settings = {"url": urls[at], "start_tls": at == 0, **BY_PATTERN}
    trusted = settings | {"ca_file": str(CERTIFICATES / "ca.pem")}
    assert isinstance(check(trusted, "anna", "anna's"), LoginGrant)
    with pytest.raises(BackendError):
        check(settings, "anna", "anna's")  # an authority that the system does not know
    named = trusted | {"url": urls[at].replace("127.0.0.1", "127.0.0.2")}
    with pytest.raises(BackendError):
        check(named, "anna", "anna's")  # another host's certificate


def test_a_directory_that_cannot_decide_is_away(urls: tuple[str, str]) -> None:
    gone = {"url": f"ldap://127.0.0.1:{free_ports(1)[0]}", **BY_PATTERN}
    with pytest.raises(BackendError, match="no answer"):
        check(gone, "anna", "anna's")
    search = {"url": urls[0], **BY_SEARCH, "bind_password": "changed meanwhile"}
    with pytest.raises(BackendError, match="bind_dn"):
        check(search, "anna", "anna's")


def test_settings_that_cannot_be_used_are_named() -> None:
    base = {"url": "ldap://127.0.0.1", **BY_PATTERN}
    with pytest.raises(BackendSettingsError, match=re.escape("groups[0].dn")):
        check(base | {"groups": [{"dn": "no name"}]}, "a", "b")
    with pytest.raises(BackendSettingsError, match="url"):
        check(base | {"ca_file": "/nowhere.pem"}, "a", "b")


def test_names_in_the_directory_compare_without_case_and_spaces() -> None:
    assert normal_dn("CN=Ops, OU=Groups,dc=x") == normal_dn("cn=ops,ou=groups,dc=x")
    assert normal_dn("cn=ops,dc=x") != normal_dn("cn=ops2,dc=x")
    assert normal_dn(r"cn=a\, b,dc=x") == normal_dn(r"cn=a\2C b,dc=x")
    assert normal_dn(r"cn=\C3\BC,dc=x") == normal_dn("cn=ü,dc=x")
    assert normal_dn(r"cn=a\, b,dc=x") != normal_dn("cn=a,cn=b,dc=x")


def test_permissions_of_several_groups_add_up() -> None:
    groups = [LdapGroup.model_validate_json(_json(each)) for each in GROUPS]
    first, second = permissions_of_groups(groups)
    assert isinstance(first, VhostPermission)
    found = Permissions("anna", first)
    assert found.write("orders")
    assert found.write("work")
    assert found.configure("orders")
    assert not found.configure("work")
    assert not found.read("orders")
    assert (second.vhost, second.write, second.read) == ("prod", "^$", ".*")
