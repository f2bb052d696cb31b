"""The record of one user, and validation of names and rules.

Pure values. The control process stores them; `fluxmq.ipc.user_messages` encodes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from fluxmq.auth.credentials import HASH_CHARACTERS_MAX, hash_problem
from fluxmq.auth.policy import rule_problem
from fluxmq.auth.saslprep import saslprep
from fluxmq.auth.scram import StoredKeys
from fluxmq.model.patterns import PATTERN_BYTES_MAX, pattern_problem

# Far above any real name, far below the limits of a log line or a table column.
NAME_BYTES_MAX: Final = 256
# Checked in turn at each SUBSCRIBE and (by run) PUBLISH: more rules than this belong in fewer,
# wider filters.
RULES_MAX: Final = 128
RULE_BYTES_MAX: Final = 1024
TAGS_MAX: Final = 32
"""Tags of one user; a handful have a meaning."""
TAG_CHARACTERS_MAX: Final = 64
PERMISSIONS_MAX: Final = 256
"""Virtual hosts that one user may access, and topic exchanges with patterns for one user."""
VHOST_BYTES_MAX: Final = 255
EXCHANGE_BYTES_MAX: Final = 255
"""Maximum bytes: names of AMQP 0.9.1 are short strings (section 4.2.5.3)."""

# Bounds of records that another process or a file brings, in characters; `user_problem` counts bytes.
UserName = Annotated[str, Meta(max_length=NAME_BYTES_MAX)]
Hash = Annotated[str, Meta(max_length=HASH_CHARACTERS_MAX)]
VhostName = Annotated[str, Meta(max_length=VHOST_BYTES_MAX)]
ExchangeName = Annotated[str, Meta(max_length=EXCHANGE_BYTES_MAX)]
Pattern = Annotated[str, Meta(max_length=PATTERN_BYTES_MAX)]
Rule = Annotated[str, Meta(max_length=RULE_BYTES_MAX)]
Rules = Annotated[tuple[Rule, ...], Meta(max_length=RULES_MAX)]
Tag = Annotated[str, Meta(max_length=TAG_CHARACTERS_MAX)]
Tags = Annotated[tuple[Tag, ...], Meta(max_length=TAGS_MAX)]


@dataclass(frozen=True, slots=True)
class VhostPermission:
    """A user's permissions in one virtual host: patterns of names, see
    `fluxmq.auth.permissions`."""

    vhost: VhostName
    configure: Pattern
    write: Pattern
    read: Pattern


VhostPermissions = Annotated[tuple[VhostPermission, ...], Meta(max_length=PERMISSIONS_MAX)]


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """Routing keys a user may write and read on one topic exchange: patterns."""

    vhost: VhostName
    exchange: ExchangeName
    write: Pattern
    read: Pattern


TopicPermissions = Annotated[tuple[TopicPermission, ...], Meta(max_length=PERMISSIONS_MAX)]


@dataclass(frozen=True, slots=True)
class KeyPermission:
    """Topic exchanges and routing keys that a token's holder may write and read: patterns for the
    exchange's name, a NUL and the routing key. Nothing else is granted in the virtual host."""

    vhost: VhostName
    write: Pattern
    read: Pattern


KeyPermissions = Annotated[tuple[KeyPermission, ...], Meta(max_length=PERMISSIONS_MAX)]


@dataclass(frozen=True, slots=True)
class User:
    """One user as shards know it: `hash` is argon2id text, `scram` the keys for SCRAM-SHA-256
    (None: password only).

    `publish` and `subscribe` are topic filters, possibly with ``{client_id}`` and ``{username}``,
    for MQTT. `tags` (``administrator``, ``management`` ...), `permissions` and `topic_permissions`
    are those of AMQP; there is at most one per virtual host, and per virtual host and exchange.
    """

    name: UserName
    hash: Hash
    scram: StoredKeys | None
    publish: Rules
    subscribe: Rules
    enabled: bool
    tags: Tags = ()
    permissions: VhostPermissions = ()
    topic_permissions: TopicPermissions = ()


def name_problem(name: str) -> str | None:
    """Return why `name` cannot be a user's name, or None when it can."""
    if not name:
        return "name is empty"
    try:
        encoded = name.encode()
        prepared = saslprep(name)
    except (UnicodeEncodeError, ValueError) as error:
        return f"name cannot be used: {error}"
    if len(encoded) > NAME_BYTES_MAX:
        return f"name is longer than {NAME_BYTES_MAX} bytes"
    if prepared != name:
        # SCRAM compares prepared names; a name that changes when prepared could never log in that
        # way.
        return f"name is not in normal form; use {prepared!r}"
    if name != name.strip():
        return "name begins or ends with a space"
    return None


def rules_problem(rules: Sequence[str]) -> str | None:
    """Return why `rules` cannot be a user's permissions to publish (or subscribe), or None when
    they can."""
    if len(rules) > RULES_MAX:
        return f"more than {RULES_MAX} filters"
    for rule in rules:
        problem = rule_problem(rule)
        if problem is not None:
            return f"filter {rule!r} {problem}"
        if len(rule.encode("utf-8", "surrogatepass")) > RULE_BYTES_MAX:
            return f"filter {rule[:40]!r}... is longer than {RULE_BYTES_MAX} bytes"
    return None


def tags_problem(tags: Sequence[str]) -> str | None:
    """Return why `tags` cannot be a user's tags, or None when they can."""
    if len(tags) > TAGS_MAX:
        return f"more than {TAGS_MAX} tags"
    for tag in tags:
        usable = tag.isprintable() and not any(c.isspace() or c in ",[]" for c in tag)
        if not 0 < len(tag) <= TAG_CHARACTERS_MAX or not usable:
            return f"tag {tag[:TAG_CHARACTERS_MAX]!r} is not a word of at most {TAG_CHARACTERS_MAX} characters"
    if len(set(tags)) != len(tags):
        return "a tag is given twice"
    return None


def permission_problem(
    permission: VhostPermission | TopicPermission, *, patterns: bool = True
) -> str | None:
    """Return why a permission cannot be granted, or None when it can.

    Without `patterns` they are not compiled, which takes some 10 µs each: an unusable one grants
    nothing anyway.
    """
    if not 0 < _size(permission.vhost) <= VHOST_BYTES_MAX:
        return f"virtual host's name is not 1 to {VHOST_BYTES_MAX} bytes"
    texts = [permission.write, permission.read]
    if isinstance(permission, VhostPermission):
        texts.insert(0, permission.configure)
    elif not 0 < _size(permission.exchange) <= EXCHANGE_BYTES_MAX:
        return f"exchange's name is not 1 to {EXCHANGE_BYTES_MAX} bytes"
    for text in texts if patterns else ():
        problem = pattern_problem(text)
        if problem is not None:
            return f"{text[:40]!r}: {problem}"
    return None


def user_problem(user: User, *, patterns: bool = True) -> str | None:
    """Return the first thing wrong with a user's record, or None; `patterns` as in
    `permission_problem`."""
    return (
        name_problem(user.name)
        or hash_problem(user.hash)
        or rules_problem(user.publish)
        or rules_problem(user.subscribe)
        or tags_problem(user.tags)
        or _permissions_problem(user, patterns)
    )


def _permissions_problem(user: User, patterns: bool) -> str | None:
    for permissions in (user.permissions, user.topic_permissions):
        if len(permissions) > PERMISSIONS_MAX:
            return f"more than {PERMISSIONS_MAX} permissions"
        for permission in permissions:
            problem = permission_problem(permission, patterns=patterns)
            if problem is not None:
                return problem
    hosts = {each.vhost for each in user.permissions}
    topics = {(each.vhost, each.exchange) for each in user.topic_permissions}
    if len(hosts) != len(user.permissions) or len(topics) != len(user.topic_permissions):
        return "a permission is given twice"
    return None


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
