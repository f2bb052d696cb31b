"""Messages about users' tags and permissions, and their encoding in users' records. Pure.

    fluxmqctl -> control         user_tags, permission_set, permission_clear, topic_permission_set,
                                 topic_permission_clear, user_hash

Every change is answered with `user_messages.UserChanged`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self, TypeVar

from fluxmq.auth.credentials import HASH_CHARACTERS_MAX
from fluxmq.auth.users import (
    EXCHANGE_BYTES_MAX,
    NAME_BYTES_MAX,
    PERMISSIONS_MAX,
    TAG_CHARACTERS_MAX,
    TAGS_MAX,
    VHOST_BYTES_MAX,
    TopicPermission,
    VhostPermission,
    permission_problem,
    tags_problem,
)
from fluxmq.ipc.messages import ERROR_INVALID, Body, Fields, MessageError
from fluxmq.model.patterns import PATTERN_BYTES_MAX

USER_TAGS: Final = "user_tags"
USER_HASH: Final = "user_hash"
PERMISSION_SET: Final = "permission_set"
PERMISSION_CLEAR: Final = "permission_clear"
TOPIC_PERMISSION_SET: Final = "topic_permission_set"
TOPIC_PERMISSION_CLEAR: Final = "topic_permission_clear"

Permission = TypeVar("Permission", VhostPermission, TopicPermission)


def permission_to_body(permission: VhostPermission | TopicPermission) -> dict[str, object]:
    """Encode a permission."""
    return {name: getattr(permission, name) for name in permission.__slots__}


def vhost_permission(value: object) -> VhostPermission:
    """Read a permission for a virtual host, without compiling its patterns. Raises MessageError."""
    fields = Fields(value, "permission")
    patterns = (fields.text(name, PATTERN_BYTES_MAX) for name in ("configure", "write", "read"))
    return VhostPermission(fields.text("vhost", VHOST_BYTES_MAX), *patterns)


def topic_permission(value: object) -> TopicPermission:
    """Read a permission for a topic exchange, without compiling its patterns. Raises
    MessageError."""
    fields = Fields(value, "topic permission")
    patterns = (fields.text(name, PATTERN_BYTES_MAX) for name in ("write", "read"))
    vhost = fields.text("vhost", VHOST_BYTES_MAX)
    return TopicPermission(vhost, fields.text("exchange", EXCHANGE_BYTES_MAX), *patterns)


def _checked(permission: Permission) -> Permission:
    problem = permission_problem(permission)
    if problem is not None:
        raise MessageError(problem, ERROR_INVALID)
    return permission


def tags_from(fields: Fields) -> tuple[str, ...]:
    """Read a user's tags. Raises MessageError."""
    tags = fields.texts("tags", TAGS_MAX, TAG_CHARACTERS_MAX)
    problem = tags_problem(tags)
    if problem is not None:
        raise MessageError(problem, ERROR_INVALID)
    return tags


def vhost_permissions(fields: Fields) -> tuple[VhostPermission, ...]:
    """Read a user's permissions. Raises MessageError."""
    return tuple(vhost_permission(item) for item in fields.items("permissions", PERMISSIONS_MAX))


def topic_permissions(fields: Fields) -> tuple[TopicPermission, ...]:
    """Read a user's permissions on topic exchanges. Raises MessageError."""
    items = fields.items("topic_permissions", PERMISSIONS_MAX)
    return tuple(topic_permission(item) for item in items)


@dataclass(frozen=True, slots=True)
class UserTags:
    """Replace a user's tags."""

    name: str
    tags: tuple[str, ...]

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"name": self.name, "tags": list(self.tags)}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, USER_TAGS)
        return cls(fields.text("name", NAME_BYTES_MAX), tags_from(fields))


@dataclass(frozen=True, slots=True)
class PermissionSet:
    """Replace a user's permissions in a virtual host, or on one of its topic exchanges."""

    name: str
    permission: VhostPermission | TopicPermission

    @property
    def kind(self) -> str:
        """Kind of the message."""
        topic = isinstance(self.permission, TopicPermission)
        return TOPIC_PERMISSION_SET if topic else PERMISSION_SET

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"name": self.name, "permission": permission_to_body(self.permission)}


def permission_set(body: Body) -> tuple[str, VhostPermission]:
    """Read the user and the permission of permission_set. Raises MessageError."""
    fields = Fields(body, PERMISSION_SET)
    permission = _checked(vhost_permission(fields.optional("permission")))
    return fields.text("name", NAME_BYTES_MAX), permission


def topic_permission_set(body: Body) -> tuple[str, TopicPermission]:
    """Read the user and the permission of topic_permission_set. Raises MessageError."""
    fields = Fields(body, TOPIC_PERMISSION_SET)
    permission = _checked(topic_permission(fields.optional("permission")))
    return fields.text("name", NAME_BYTES_MAX), permission


@dataclass(frozen=True, slots=True)
class PermissionClear:
    """Revoke a user's permissions in a virtual host, or its restrictions on topic exchanges.

    `exchange` counts for topic_permission_clear only; None: all exchanges.
    """

    name: str
    vhost: str
    exchange: str | None = None

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"name": self.name, "vhost": self.vhost, "exchange": self.exchange}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, PERMISSION_CLEAR)
        exchange = fields.optional("exchange")
        return cls(
            fields.text("name", NAME_BYTES_MAX),
            fields.text("vhost", VHOST_BYTES_MAX),
            None if exchange is None else fields.text("exchange", EXCHANGE_BYTES_MAX),
        )


@dataclass(frozen=True, slots=True)
class UserHash:
    """The answer to user_hash: a user's password hash, and whether the user may log in."""

    hash: str
    enabled: bool

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"hash": self.hash, "enabled": self.enabled}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, USER_HASH)
        return cls(fields.text("hash", HASH_CHARACTERS_MAX), fields.boolean("enabled"))
