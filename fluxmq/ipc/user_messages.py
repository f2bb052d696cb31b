"""Messages about users: the snapshot for shards, and the changes fluxmqctl asks for.

Shards receive all users at once with a revision, at hello and after each change, and confirm it; a
snapshot replaces the previous one, and one with a smaller revision is ignored. Passwords never
travel: fluxmqctl hashes them itself and sends hash and SCRAM keys. Pure, like `messages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from fluxmq.auth.credentials import HASH_CHARACTERS_MAX, HashParameters
from fluxmq.auth.scram import ITERATIONS_MAX, StoredKeys
from fluxmq.auth.users import (
    NAME_BYTES_MAX,
    RULE_BYTES_MAX,
    RULES_MAX,
    TopicPermission,
    User,
    VhostPermission,
    user_problem,
)
from fluxmq.ipc.framing import FRAME_BYTES_MAX
from fluxmq.ipc.messages import (
    ERROR_INVALID,
    HASHING,
    USER_ADD,
    USER_DELETE,
    USER_ENABLE,
    USER_LIST,
    USER_PASSWORD,
    USER_PERMIT,
    USERS,
    Body,
    Fields,
    MessageError,
)
from fluxmq.ipc.permission_messages import (
    permission_to_body,
    tags_from,
    topic_permissions,
    vhost_permissions,
)

# All users travel in one frame. Adding a user that would push the snapshot past this is refused.
USERS_MAX: Final = 16384
SNAPSHOT_BYTES_MAX: Final = FRAME_BYTES_MAX // 2
_KEY_BYTES_MAX: Final = 64


def keys_to_body(keys: StoredKeys | None) -> dict[str, object] | None:
    """Encode SCRAM keys."""
    if keys is None:
        return None
    return {
        "iterations": keys.iterations,
        "salt": keys.salt,
        "stored_key": keys.stored_key,
        "server_key": keys.server_key,
    }


def keys_from_body(value: object) -> StoredKeys | None:
    """Read SCRAM keys. Raises MessageError."""
    if value is None:
        return None
    fields = Fields(value, "scram")
    try:
        return StoredKeys(
            iterations=fields.integer("iterations", 1, ITERATIONS_MAX),
            salt=fields.data("salt", _KEY_BYTES_MAX),
            stored_key=fields.data("stored_key", _KEY_BYTES_MAX),
            server_key=fields.data("server_key", _KEY_BYTES_MAX),
        )
    except ValueError as error:
        raise MessageError(f"scram: {error}", ERROR_INVALID) from error


def user_to_body(user: User) -> dict[str, object]:
    """Encode a user's record."""
    return {
        "name": user.name,
        "hash": user.hash,
        "scram": keys_to_body(user.scram),
        "publish": list(user.publish),
        "subscribe": list(user.subscribe),
        "enabled": user.enabled,
        **_amqp_to_body(user),
    }


def _amqp_to_body(user: User | UserSummary) -> dict[str, object]:
    return {
        "tags": list(user.tags),
        "permissions": [permission_to_body(each) for each in user.permissions],
        "topic_permissions": [permission_to_body(each) for each in user.topic_permissions],
    }


def user_from_body(value: object, *, patterns: bool = True) -> User:
    """Read a user's record and check that it is usable. Raises MessageError.

    `patterns` as in `fluxmq.auth.users.permission_problem`.
    """
    fields = Fields(value, "user")
    user = User(
        name=fields.text("name", NAME_BYTES_MAX),
        hash=fields.text("hash", HASH_CHARACTERS_MAX),
        scram=keys_from_body(fields.optional("scram")),
        publish=fields.texts("publish", RULES_MAX, RULE_BYTES_MAX),
        subscribe=fields.texts("subscribe", RULES_MAX, RULE_BYTES_MAX),
        enabled=fields.boolean("enabled"),
        tags=tags_from(fields),
        permissions=vhost_permissions(fields),
        topic_permissions=topic_permissions(fields),
    )
    problem = user_problem(user, patterns=patterns)
    if problem is not None:
        raise MessageError(problem, ERROR_INVALID)
    return user


@dataclass(frozen=True, slots=True)
class Users:
    """All users at one revision, from control to shard; the shard replies with `Confirmed`."""

    revision: int
    users: tuple[User, ...]

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"revision": self.revision, "users": [user_to_body(user) for user in self.users]}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, USERS)
        revision = fields.integer("revision")
        # Control compiled the patterns when they were entered; thousands would stop a shard for a
        # while.
        items = fields.items("users", USERS_MAX)
        return cls(revision, tuple(user_from_body(item, patterns=False) for item in items))


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A shard's answer to users: the revision it has applied."""

    revision: int

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"revision": self.revision}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        return cls(Fields(body, "confirmed").integer("revision"))


@dataclass(frozen=True, slots=True)
class UserAdd:
    """Create a user; refused when the name is taken."""

    user: User

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"user": user_to_body(self.user)}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        return cls(user_from_body(Fields(body, USER_ADD).optional("user")))


@dataclass(frozen=True, slots=True)
class UserPassword:
    """Replace a user's password."""

    name: str
    hash: str
    scram: StoredKeys | None

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"name": self.name, "hash": self.hash, "scram": keys_to_body(self.scram)}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, USER_PASSWORD)
        name = fields.text("name", NAME_BYTES_MAX)
        keys = keys_from_body(fields.optional("scram"))
        # Checked as a whole record, so that the same rules apply.
        password_hash = fields.text("hash", HASH_CHARACTERS_MAX)
        problem = user_problem(User(name, password_hash, keys, (), (), enabled=True))
        if problem is not None:
            raise MessageError(problem, ERROR_INVALID)
        return cls(name, password_hash, keys)


@dataclass(frozen=True, slots=True)
class UserPermit:
    """Replace a user's permissions; None leaves that half as it is."""

    name: str
    publish: tuple[str, ...] | None
    subscribe: tuple[str, ...] | None

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {
            "name": self.name,
            "publish": None if self.publish is None else list(self.publish),
            "subscribe": None if self.subscribe is None else list(self.subscribe),
        }

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, USER_PERMIT)

        def rules(name: str) -> tuple[str, ...] | None:
            return (
                None
                if fields.optional(name) is None
                else fields.texts(name, RULES_MAX, RULE_BYTES_MAX)
            )

        return cls(fields.text("name", NAME_BYTES_MAX), rules("publish"), rules("subscribe"))


@dataclass(frozen=True, slots=True)
class UserEnable:
    """Allow a user to log in, or not."""

    name: str
    enabled: bool

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"name": self.name, "enabled": self.enabled}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, USER_ENABLE)
        return cls(fields.text("name", NAME_BYTES_MAX), fields.boolean("enabled"))


@dataclass(frozen=True, slots=True)
class UserDelete:
    """Remove a user."""

    name: str

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"name": self.name}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        return cls(Fields(body, USER_DELETE).text("name", NAME_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class UserChanged:
    """The answer to every change: the new revision, and the shards that did not confirm it in
    time."""

    revision: int
    unconfirmed: tuple[str, ...]

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"revision": self.revision, "unconfirmed": list(self.unconfirmed)}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, "user change")
        return cls(fields.integer("revision"), fields.texts("unconfirmed", 1024))


@dataclass(frozen=True, slots=True)
class UserSummary:
    """One user as listed: no hash, no keys."""

    name: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    enabled: bool
    scram: bool
    tags: tuple[str, ...] = ()
    permissions: tuple[VhostPermission, ...] = ()
    topic_permissions: tuple[TopicPermission, ...] = ()

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


@dataclass(frozen=True, slots=True)
class UserListing:
    """The answer to user_list."""

    revision: int
    users: tuple[UserSummary, ...]

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {
            "revision": self.revision,
            "users": [
                {
                    "name": user.name,
                    "publish": list(user.publish),
                    "subscribe": list(user.subscribe),
                    "enabled": user.enabled,
                    "scram": user.scram,
                    **_amqp_to_body(user),
                }
                for user in self.users
            ],
        }

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, USER_LIST)
        summaries = []
        for item in fields.items("users", USERS_MAX):
            each = Fields(item, "user")
            summaries.append(
                UserSummary(
                    each.text("name", NAME_BYTES_MAX),
                    each.texts("publish", RULES_MAX, RULE_BYTES_MAX),
                    each.texts("subscribe", RULES_MAX, RULE_BYTES_MAX),
                    each.boolean("enabled"),
                    each.boolean("scram"),
                    tags_from(each),
                    vhost_permissions(each),
                    topic_permissions(each),
                )
            )
        return cls(fields.integer("revision"), tuple(summaries))


@dataclass(frozen=True, slots=True)
class Hashing:
    """The answer to hashing: the parameters for hashing new passwords."""

    parameters: HashParameters

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {
            "time_cost": self.parameters.time_cost,
            "memory_cost_kib": self.parameters.memory_cost_kib,
            "parallelism": self.parameters.parallelism,
        }

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, HASHING)
        try:
            return cls(
                HashParameters(
                    fields.integer("time_cost"),
                    fields.integer("memory_cost_kib"),
                    fields.integer("parallelism"),
                )
            )
        except ValueError as error:
            raise MessageError(f"hashing: {error}", ERROR_INVALID) from error
