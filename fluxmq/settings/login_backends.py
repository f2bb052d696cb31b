"""The settings of login backends beside the internal one: OAuth 2.0, HTTP and LDAP. Data only;
``login_checks`` compares values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fluxmq.settings.section import Section
from fluxmq.settings.values import Duration, FilePath, ScalarKind, Secret

BackendName = Literal["internal", "oauth2", "http", "ldap"]
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
WaitTime = Annotated[Duration, Field(ge=0.01, le=60)]


def _url(text: str, *schemes: str) -> str:
    scheme, found, rest = text.partition("://")
    if not found or scheme not in schemes or not rest or rest.startswith("/"):
        forms = " or ".join(f"{each}://host/..." for each in schemes)
        raise ValueError(f"is not a URL; write {forms}")
    return text


HttpUrl = Annotated[
    str, AfterValidator(lambda text: _url(text, "https", "http")), ScalarKind("URL")
]
LdapUrl = Annotated[
    str, AfterValidator(lambda text: _url(text, "ldaps", "ldap")), ScalarKind("URL")
]


class LoginCache(Section):
    """Answers of backends that are remembered, so that one is not asked at each connection."""

    success: Annotated[Duration, Field(ge=0, le=86_400)] = 60.0
    """Time that an accepted login is remembered, at most until its token expires; 0 remembers
    none."""
    failure: Annotated[Duration, Field(ge=0, le=3600)] = 5.0
    """Time that a refused login is remembered; 0 remembers none."""
    entries: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Logins remembered by each node; the oldest is forgotten first."""


class OAuth2(Section):
    """Logins with a signed token (JWT) as the password; its scopes grant permissions and tags."""

    resource_server_id: Annotated[str, Field(min_length=1, max_length=256)]
    """Name of this broker at the issuer: the audience that tokens must have."""
    scope_prefix: Annotated[str, Field(max_length=256)] | None = None
    """Beginning of the scopes that are meant for this broker; by default resource_server_id and a
    dot."""
    verify_audience: bool = True
    """Refuse tokens whose audience is not resource_server_id."""
    issuer: Annotated[str, Field(min_length=1)] | None = None
    """Issuer that tokens must name; any if not given."""
    jwks_url: HttpUrl | None = None
    """Address of the issuer's public keys (JWKS)."""
    jwks_file: FilePath | None = None
    """File with the issuer's public keys, instead of jwks_url."""
    ca_file: FilePath | None = None
    """Certificates that the issuer's is verified against, instead of the system's."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256", "EdDSA")
    """Algorithms of signatures that are accepted."""
    refresh_interval: Annotated[Duration, Field(ge=1, le=86_400)] = 300.0
    """Age at which keys are fetched again; a token with an unknown key has them fetched sooner."""
    keys_valid: Annotated[Duration, Field(ge=1, le=30 * 86_400)] = 3600.0
    """Time that keys are used while the issuer cannot be reached; then logins are refused."""
    leeway: Annotated[Duration, Field(ge=0, le=300)] = 30.0
    """Difference between the issuer's clock and this one's that is tolerated."""
    preferred_username_claims: tuple[str, ...] = ()
    """Claims that may hold the user's name, the first that is present counts; then sub and
    client_id."""
    additional_scopes_key: tuple[str, ...] = ()
    """Claims with scopes beside scope, such as realm_access.roles: a dot leads into an object."""
    scope_aliases: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Scopes, with their prefix, that stand for a word among a token's scopes, such as a role."""
    timeout: WaitTime = 2.0
    """Time for the issuer to answer."""


class HttpBackend(Section):
    """Logins that an HTTP server decides, as with RabbitMQ's rabbitmq_auth_backend_http."""

    user_path: HttpUrl
    """Address that is asked whether a name and a password are right; it answers deny, or allow and
    tags."""
    vhost_path: HttpUrl
    """Address that is asked whether the user may access a virtual host."""
    resource_path: HttpUrl | None = None
    """Address that is asked whether the user may configure, write or read an exchange or queue;
    without it, the patterns below count."""
    topic_path: HttpUrl | None = None
    """Address that is asked about routing keys of topic exchanges; without it, they are not
    checked."""
    method: Literal["get", "post"] = "post"
    """Method of requests; get puts the password into the address."""
    ca_file: FilePath | None = None
    """Certificates that the server's is verified against, instead of the system's."""
    configure: str = ".*"
    """Without resource_path, pattern of the names that users may declare and delete."""
    write: str = ".*"
    """Without resource_path, pattern of the names that they may publish to, or bind."""
    read: str = ".*"
    """Without resource_path, pattern of the names that they may consume from, or bind to."""
    timeout: WaitTime = 2.0
    """Time for an answer; without one, what was asked is refused."""


class GroupPermission(Section):
    """Permissions of a group in a virtual host."""

    vhost: Annotated[str, Field(min_length=1, max_length=255)] = "/"
    """The virtual host."""
    configure: str = "^$"
    """Pattern of the names that members may declare and delete."""
    write: str = "^$"
    """Pattern of the names that members may publish to, or bind."""
    read: str = "^$"
    """Pattern of the names that members may consume from, or bind to."""


class LdapGroup(Section):
    """Tags and permissions of a group's members."""

    dn: Annotated[str, Field(min_length=1, max_length=1024)]
    """Distinguished name of the group; * is every user."""
    tags: tuple[str, ...] = ()
    """Tags of its members: administrator, monitoring, policymaker, management."""
    permissions: tuple[GroupPermission, ...] = ()
    """Permissions of its members, by virtual host; those of several groups add up."""


class Ldap(Section):
    """Logins by binding to an LDAP directory; groups grant tags and permissions."""

    url: LdapUrl
    """The server: ldap://host:port or ldaps://host:port."""
    start_tls: bool = False
    """Encrypt a connection of ldap:// before anything is sent."""
    ca_file: FilePath | None = None
    """Certificates that the server's is verified against, instead of the system's."""
    user_dn_pattern: Annotated[str, Field(max_length=1024)] | None = None
    """Distinguished name of a user, with {username} in it; otherwise the user is searched for."""
    user_base: Annotated[str, Field(max_length=1024)] | None = None
    """Name below which users are searched for."""
    user_filter: Annotated[str, Field(max_length=1024)] = "(uid={username})"
    """Filter that finds a user, with {username} in it."""
    bind_dn: Annotated[str, Field(max_length=1024)] | None = None
    """Name to bind with for searches; otherwise they are made as the user who logs in."""
    bind_password: Secret | None = None
    """Password of bind_dn."""
    bind_password_file: FilePath | None = None
    """File with the password of bind_dn."""
    group_base: Annotated[str, Field(max_length=1024)] | None = None
    """Name below which groups are searched for."""
    group_filter: Annotated[str, Field(max_length=1024)] = "(member={dn})"
    """Filter that finds the groups of a user, with {dn} or {username} in it."""
    groups: tuple[LdapGroup, ...] = ()
    """Tags and permissions by group; a user who has none may not enter any virtual host."""
    threads: Annotated[int, Field(ge=1, le=64)] = 4
    """Users that are checked at once."""
    timeout: WaitTime = 5.0
    """Time for an answer; without one the login is refused."""
