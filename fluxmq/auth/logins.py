"""Outcomes of logins, which each protocol translates into its own codes; users of other backends.

Users of the internal backend are looked up by name, so that changes of their rights take effect at
once. A user of another backend is known by its login alone: the rights are those that the backend
granted then, and end when they expire.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fluxmq.auth.permissions import Permissions
from fluxmq.auth.policy import TopicPolicy
from fluxmq.auth.remote_rights import Decisions, RemoteRights
from fluxmq.auth.topic_rights import VHOST, TopicRights
from fluxmq.auth.users import KeyPermission, User

INTERNAL = "internal"
OAUTH2 = "oauth2"
HTTP = "http"
LDAP = "ldap"


class LoginOutcome(Enum):
    """Outcome of checking a client's credentials."""

    ACCEPTED = "accepted"
    WRONG = "wrong"
    """The name or the password is wrong; an unknown name looks the same."""
    DENIED = "denied"
    """A client without a name, or the holder of this certificate, is not let in."""
    UNAVAILABLE = "unavailable"
    """The users are not known yet, or no backend could be asked: the client may try again."""
    BANNED = "banned"
    """An administrator has banned the address, the user or the client id."""
    BUSY = "busy"
    """Too many logins are waiting, or too many failed: the client may try again."""


@dataclass(slots=True, frozen=True)
class RemoteDecisions:
    """Rights that a backend decides operation by operation: permissions on exchanges and queues
    (``resources``), and on routing keys of topic exchanges (``topics``)."""

    decisions: Decisions
    resources: bool
    topics: bool


class BackendLogin:
    """A user that another backend than the internal one has let in, on one connection.

    `user` has no password here. `keys` as in `KeyPermission`, empty where rights do not come from
    scopes. `expires_at`: monotonic seconds at which the login ends, 0 for never. `remote`: what the
    backend decides by the operation, None for nothing.
    """

    __slots__ = ("_generation", "_permissions", "backend", "expires_at", "keys", "remote", "user")

    def __init__(
        self,
        backend: str,
        user: User,
        keys: tuple[KeyPermission, ...] = (),
        expires_at: float = 0.0,
        remote: RemoteDecisions | None = None,
    ) -> None:
        self.backend = backend
        self.user = user
        self.keys = keys
        self.expires_at = expires_at
        self.remote = remote
        self._generation = 0
        self._permissions: dict[str, Permissions | None] = {}

    def permissions(self, vhost: str) -> Permissions | None:
        """Return the permissions in a virtual host, None for no access; the same object as long as
        what was found out with it holds."""
        remote = self.remote
        if remote is not None and remote.decisions.generation != self._generation:
            self._generation = remote.decisions.generation
            self._permissions.clear()
        try:
            return self._permissions[vhost]
        except KeyError:
            made = self._made(vhost, "")
            if len(self._permissions) <= len(self.user.permissions):
                self._permissions[vhost] = made
            return made

    def policy(self, client_id: str) -> TopicPolicy:
        """Return the permissions of an MQTT client."""
        rights = TopicRights(self._made(VHOST, client_id), self.user.tags)
        return TopicPolicy((), (), rights=rights, backend=self.backend, ends_at=self.expires_at)

    def _made(self, vhost: str, client_id: str) -> Permissions | None:
        user = self.user
        keys = next((each for each in self.keys if each.vhost == vhost), None)
        for permission in user.permissions:
            if permission.vhost == vhost:
                rights = None if self.remote is None else self._remote_rights(self.remote, vhost)
                return Permissions(
                    user.name, permission, user.topic_permissions, client_id, keys, rights
                )
        return None

    def _remote_rights(self, remote: RemoteDecisions, vhost: str) -> RemoteRights:
        user = self.user
        return RemoteRights(
            *(remote.decisions, self.backend, user.name, user.tags, vhost),
            *(remote.resources, remote.topics),
        )


@dataclass(slots=True, frozen=True)
class AuthResult:
    """Result of a login: its outcome and, if it is accepted, the principal; empty for an anonymous
    client. ``login``: of a user of another backend than the internal one."""

    outcome: LoginOutcome
    username: str = ""
    login: BackendLogin | None = None
