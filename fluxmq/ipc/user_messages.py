"""Messages about users: the snapshot for shards, and the changes fluxmqctl asks for.

Shards receive all users at once with a revision, at hello and after each change, and confirm it; a
snapshot replaces the previous one, and one with a smaller revision is ignored. Passwords never
travel: fluxmqctl hashes them itself and sends hash and SCRAM keys, as do shards that have verified a
password against an imported hash. Pure, like `messages`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from msgspec import Meta

from fluxmq.auth.credentials import HashParameters
from fluxmq.auth.hash_upgrades import HashUpgrade
from fluxmq.auth.scram import StoredKeys
from fluxmq.auth.users import (
    Hash,
    Rules,
    Tags,
    TopicPermissions,
    User,
    UserName,
    VhostPermissions,
    user_problem,
)
from fluxmq.ipc.control_frames import FRAME_BYTES_MAX
from fluxmq.ipc.messages import (
    ERROR_INVALID,
    MessageBody,
    MessageError,
    Natural,
    ProcessNames,
    from_plain,
    to_plain,
)

# All users travel in one frame. Adding a user that would push the snapshot past this is refused.
USERS_MAX: Final = 16384
SNAPSHOT_BYTES_MAX: Final = FRAME_BYTES_MAX // 2

UPGRADES_MAX: Final = 64
"""Hashes replaced by one change: each is a snapshot of all users to every shard."""


def user_to_body(user: User) -> dict[str, Any]:
    """Encode a user's record; entries and snapshots of the metadata keep it."""
    body: dict[str, Any] = to_plain(user)
    return body


def user_from_body(value: object, *, patterns: bool = True) -> User:
    """Read a user's record and check that it is usable. Raises MessageError.

    `patterns` as in `fluxmq.auth.users.permission_problem`.
    """
    user = from_plain(value, User)
    problem = user_problem(user, patterns=patterns)
    if problem is not None:
        raise MessageError(problem, ERROR_INVALID)
    return user


class Users(MessageBody, frozen=True):
    """All users at one revision, from control to shard; the shard replies with `Confirmed`."""

    revision: int
    users: Annotated[tuple[User, ...], Meta(max_length=USERS_MAX)]

    def unusable(self) -> str | None:
        """Return the fault of a record.

        Control compiled the patterns when they were entered; thousands would stop a shard for a
        while.
        """
        problems = (user_problem(user, patterns=False) for user in self.users)
        return next(filter(None, problems), None)


class Confirmed(MessageBody, frozen=True):
    """A shard's answer to users: the revision it has applied."""

    revision: Natural


class UserAdd(MessageBody, frozen=True):
    """Create a user; refused when the name is taken."""

    user: User

    def unusable(self) -> str | None:
        """Return the record's fault."""
        return user_problem(self.user)


class UserPassword(MessageBody, frozen=True):
    """Replace a user's password."""

    name: UserName
    hash: Hash
    scram: StoredKeys | None

    def unusable(self) -> str | None:
        """Return the fault, by the rules for a whole record."""
        return user_problem(User(self.name, self.hash, self.scram, (), (), enabled=True))


class UserUpgrade(MessageBody, frozen=True):
    """Replace imported hashes by others of the same passwords, where they are still in force; refused
    when none is."""

    upgrades: Annotated[tuple[HashUpgrade, ...], Meta(max_length=UPGRADES_MAX)]

    def unusable(self) -> str | None:
        """Return the fault of a hash."""
        return next(filter(None, (each.problem() for each in self.upgrades)), None)


class UserPermit(MessageBody, frozen=True):
    """Replace a user's permissions; None leaves that half as it is."""

    name: UserName
    publish: Rules | None
    subscribe: Rules | None


class UserEnable(MessageBody, frozen=True):
    """Allow a user to log in, or not."""

    name: UserName
    enabled: bool


class UserDelete(MessageBody, frozen=True):
    """Remove a user."""

    name: UserName


class UserChanged(MessageBody, frozen=True):
    """The answer to every change: the new revision, and the shards that did not confirm it in
    time."""

    revision: Natural
    unconfirmed: ProcessNames


class UserSummary(MessageBody, frozen=True):
    """One user as listed: no hash, no keys."""

    name: UserName
    publish: Rules
    subscribe: Rules
    enabled: bool
    scram: bool
    tags: Tags = ()
    permissions: VhostPermissions = ()
    topic_permissions: TopicPermissions = ()

    @classmethod
    def of(cls, user: User) -> Self:
        """Return the summary of a user's record."""
        return cls(
            user.name,
            user.publish,
            user.subscribe,
            user.enabled,
            user.scram is not None,
            user.tags,
            user.permissions,
            user.topic_permissions,
        )


class UserListing(MessageBody, frozen=True):
    """The answer to user_list."""

    revision: Natural
    users: Annotated[tuple[UserSummary, ...], Meta(max_length=USERS_MAX)]


class Hashing(MessageBody, frozen=True):
    """The answer to hashing: the parameters for hashing new passwords."""

    parameters: HashParameters
