"""Messages about users' tags and permissions. Pure.

    fluxmqctl -> control         user_tags, permission_set, permission_clear, topic_permission_set,
                                 topic_permission_clear, user_hash

Every change is answered with `user_messages.UserChanged`.
"""

from __future__ import annotations

from typing import Final

from fluxmq.auth.users import (
    ExchangeName,
    Hash,
    Tags,
    TopicPermission,
    UserName,
    VhostName,
    VhostPermission,
    permission_problem,
    tags_problem,
)
from fluxmq.ipc.messages import MessageBody

USER_TAGS: Final = "user_tags"
USER_HASH: Final = "user_hash"
PERMISSION_SET: Final = "permission_set"
PERMISSION_CLEAR: Final = "permission_clear"
TOPIC_PERMISSION_SET: Final = "topic_permission_set"
TOPIC_PERMISSION_CLEAR: Final = "topic_permission_clear"
KINDS: Final = frozenset(
    {
        *(USER_TAGS, USER_HASH, PERMISSION_SET, PERMISSION_CLEAR),
        *(TOPIC_PERMISSION_SET, TOPIC_PERMISSION_CLEAR),
    }
)


class UserTags(MessageBody, frozen=True):
    """Replace a user's tags."""

    name: UserName
    tags: Tags

    def unusable(self) -> str | None:
        """Return why a tag cannot be given."""
        return tags_problem(self.tags)


class PermissionSet(MessageBody, frozen=True):
    """Replace a user's permissions in a virtual host."""

    name: UserName
    permission: VhostPermission

    def unusable(self) -> str | None:
        """Return why the permission cannot be granted."""
        return permission_problem(self.permission)


class TopicPermissionSet(MessageBody, frozen=True):
    """Replace a user's permissions on a topic exchange."""

    name: UserName
    permission: TopicPermission

    def unusable(self) -> str | None:
        """Return why the permission cannot be granted."""
        return permission_problem(self.permission)


class PermissionClear(MessageBody, frozen=True):
    """Revoke a user's permissions in a virtual host, or its restrictions on topic exchanges.

    `exchange` counts for topic_permission_clear only; None: all exchanges.
    """

    name: UserName
    vhost: VhostName
    exchange: ExchangeName | None = None


class UserHashWanted(MessageBody, frozen=True):
    """Request for a user's password hash."""

    name: UserName


class UserHash(MessageBody, frozen=True):
    """The answer to user_hash: a user's password hash, and whether the user may log in."""

    hash: Hash
    enabled: bool
