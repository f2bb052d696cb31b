"""Login backends in the settings: sections and the list belong together, and mistakes are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fluxmq.settings import Settings, SettingsError, load, notes, refusals

OAUTH2 = {"resource_server_id": "mq", "jwks_url": "https://issuer.example/keys"}
HTTP = {"user_path": "https://x.example/user", "vhost_path": "https://x.example/vhost"}
LDAP = {"url": "ldaps://x.example", "user_dn_pattern": "uid={username},dc=x"}
PLACES = {"oauth2": OAUTH2, "http": HTTP, "ldap": LDAP}


def written(folder: Path, auth: dict[str, Any]) -> Settings:
    """The settings in a file with this section."""
    file = folder / "fluxmq.yaml"
    file.write_text(yaml.safe_dump({"auth": auth}))
    return load(file, {})


def problems(folder: Path, auth: dict[str, Any]) -> dict[str, str]:
    """What is wrong with them."""
    with pytest.raises(SettingsError) as refused:
        written(folder, auth)
    return {each.path: each.message for each in refused.value.problems}


def test_all_backends(tmp_path: Path) -> None:
    settings = written(tmp_path, {"backends": ["internal", *PLACES], **PLACES})
    assert settings.auth.backends == ("internal", "oauth2", "http", "ldap")
    assert refusals(settings) == []
    assert notes(settings) == []
    assert Settings().auth.backends == ("internal",)


@pytest.mark.parametrize("name", PLACES)
def test_a_backend_needs_its_section_and_a_section_its_place(tmp_path: Path, name: str) -> None:
    found = problems(tmp_path, {"backends": ["internal", name]})
    assert found == {"auth.backends[1]": f"is {name}, which needs a valid section auth.{name}"}
    found = problems(tmp_path, {name: PLACES[name]})
    assert found == {f"auth.{name}": f"has no effect; add {name} to auth.backends, or remove it"}


@pytest.mark.parametrize(
    ("backend", "change", "path"),
    [
        ("oauth2", {"jwks_url": None}, "auth.oauth2.jwks_url"),
        ("oauth2", {"jwks_url": "issuer/keys"}, "auth.oauth2.jwks_url"),
        ("oauth2", {"algorithms": ["HS256"]}, "auth.oauth2.algorithms[0]"),
        ("oauth2", {"algorithms": ["none"]}, "auth.oauth2.algorithms[0]"),
        ("oauth2", {"algorithms": []}, "auth.oauth2.algorithms"),
        ("oauth2", {"resource_server_id": ""}, "auth.oauth2.resource_server_id"),
        ("oauth2", {"keys_valid": "1m"}, "auth.oauth2.keys_valid"),
        ("oauth2", {"jwks_file": "/nowhere.json", "jwks_url": None}, "auth.oauth2.jwks_file"),
        ("http", {"user_path": None}, "auth.http.user_path"),
        ("http", {"vhost_path": "ftp://x/"}, "auth.http.vhost_path"),
        ("http", {"method": "put"}, "auth.http.method"),
        ("http", {"write": "("}, "auth.http.write"),
        ("http", {"resource_path": "https://x/r", "read": "a"}, "auth.http.read"),
        ("ldap", {"url": "https://x"}, "auth.ldap.url"),
        ("ldap", {"user_dn_pattern": "uid=x"}, "auth.ldap.user_dn_pattern"),
        ("ldap", {"user_base": "dc=x"}, "auth.ldap.user_dn_pattern"),
        ("ldap", {"user_dn_pattern": None, "user_base": "dc=x"}, "auth.ldap.bind_dn"),
        ("ldap", {"user_filter": "(uid=x)"}, "auth.ldap.user_filter"),
        ("ldap", {"group_filter": "(cn=x)"}, "auth.ldap.group_filter"),
        ("ldap", {"bind_dn": "cn=x"}, "auth.ldap.bind_password"),
        ("ldap", {"start_tls": True}, "auth.ldap.start_tls"),
        ("ldap", {"groups": [{"dn": "cn=x"}]}, "auth.ldap.group_base"),
        (
            "ldap",
            {"groups": [{"dn": "*", "permissions": [{"read": "["}]}]},
            "auth.ldap.groups[0].permissions[0].read",
        ),
    ],
)
def test_mistakes_are_named_by_their_path(
    tmp_path: Path, backend: str, change: dict[str, Any], path: str
) -> None:
    section = {**PLACES[backend], **change}
    section = {name: value for name, value in section.items() if value is not None}
    found = problems(tmp_path, {"backends": [backend], backend: section})
    assert next(iter(found)) == path


def test_a_list_of_backends_has_each_once_and_knows_them(tmp_path: Path) -> None:
    assert list(problems(tmp_path, {"backends": []})) == ["auth.backends"]
    assert list(problems(tmp_path, {"backends": ["internal", "pam"]})) == ["auth.backends[1]"]
    found = problems(tmp_path, {"backends": ["internal", "internal"]})
    assert found == {"auth.backends[1]": "names internal a second time"}


def test_a_password_for_searches_comes_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    ldap = {
        "url": "ldaps://x.example",
        "user_base": "dc=x",
        "bind_dn": "cn=x",
        "bind_password_file": str(secret),
    }
    settings = written(tmp_path, {"backends": ["ldap"], "ldap": ldap})
    assert settings.auth.ldap is not None
    assert settings.auth.ldap.bind_password is not None
    assert settings.auth.ldap.bind_password.reveal() == "s3cret"
    assert "s3cret" not in repr(settings)


def test_passwords_in_the_clear_are_worth_a_note(tmp_path: Path) -> None:
    plain = {
        "oauth2": {**OAUTH2, "jwks_url": "http://issuer.example/keys"},
        "http": {**HTTP, "user_path": "http://x.example/user"},
        "ldap": {**LDAP, "url": "ldap://x.example"},
    }
    said = notes(written(tmp_path, {"backends": [*plain], **plain}))
    assert [each.partition(":")[0] for each in said] == [
        "auth.oauth2.jwks_url",
        "auth.http.user_path",
        "auth.ldap.url",
    ]
    here = {**HTTP, "user_path": "http://127.0.0.1:8000/user"}
    assert notes(written(tmp_path, {"backends": ["http"], "http": here})) == []
