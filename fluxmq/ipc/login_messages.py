"""Messages about logins that the control process has other backends decide.

    shard -> control   login, login_rights

A password or token travels between processes of one node only. Pure, like `messages`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from fluxmq.auth.logins import BackendLogin, RemoteDecisions
from fluxmq.auth.remote_rights import Decisions, RightsQuestion
from fluxmq.auth.users import KeyPermissions, Tags, User, UserName, VhostPermissions
from fluxmq.ipc.messages import MessageBody

LOGIN: Final = "login"
LOGIN_RIGHTS: Final = "login_rights"

SECRET_BYTES_MAX: Final = 16 << 10
"""Longest password or token given to a backend: tokens with many scopes have some kilobytes."""
ADDRESS_CHARACTERS_MAX: Final = 64
BackendNames = Annotated[
    tuple[Annotated[str, Meta(max_length=16)], ...], Meta(min_length=1, max_length=4)
]


class LoginQuestion(MessageBody, frozen=True):
    """Check a name and a password with these backends, in this order. ``address``: the client's,
    without port."""

    username: UserName
    password: Annotated[bytes, Meta(max_length=SECRET_BYTES_MAX)]
    address: Annotated[str, Meta(max_length=ADDRESS_CHARACTERS_MAX)]
    backends: BackendNames


class LoginAnswer(MessageBody, frozen=True):
    """Decision of the backends: ``outcome`` is accepted, wrong, unavailable or busy.

    ``backend``: the one that has accepted, else the last that was asked. The rest counts for an
    accepted login: the user, the seconds until the login ends, 0 for never, and whether the backend
    decides about resources and routing keys by the operation.
    """

    outcome: Literal["accepted", "wrong", "unavailable", "busy"]
    backend: Annotated[str, Meta(max_length=16)] = ""
    name: UserName = ""
    tags: Tags = ()
    permissions: VhostPermissions = ()
    keys: KeyPermissions = ()
    expires_in: Annotated[float, Meta(ge=0)] = 0.0
    resources: bool = False
    topics: bool = False

    def user(self) -> User:
        """Return the record of the user, who has no password here."""
        return User(self.name, "", None, (), (), True, self.tags, self.permissions)

    def login(self, decisions: Decisions, now: float = 0.0) -> BackendLogin:
        """Return the login of a connection. ``now``: monotonic seconds, 0: it does not end."""
        ends = now and self.expires_in
        remote = None
        if self.resources or self.topics:
            remote = RemoteDecisions(decisions, self.resources, self.topics)
        return BackendLogin(
            self.backend, self.user(), self.keys, now + ends if ends else 0.0, remote
        )


class RightsAsked(MessageBody, frozen=True):
    """Have a backend decide about one operation of a user whom it has let in."""

    question: RightsQuestion


class RightsDecided(MessageBody, frozen=True):
    """Decision of the backend; neither ``allowed`` nor ``decided`` if it could not be asked."""

    allowed: bool
    decided: bool = True
