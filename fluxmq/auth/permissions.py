"""Permissions of a user on the resources of a virtual host: configure, write and read, by pattern.

The model of RabbitMQ: a user has, per virtual host, three patterns that are searched for in names
of exchanges and queues. Without a record for a host the user has no access. On topic exchanges two
more patterns per exchange are searched for in routing keys; without them, routing keys are not
checked.

Rights that another backend decides operation by operation (`fluxmq.auth.remote_rights`) replace
patterns; then each method may raise UndecidedError.

Pure. A `Permissions` is made once per user, virtual host and users' revision; its answers are
cached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fluxmq.auth.remote_rights import (
    CONFIGURE,
    EXCHANGE,
    QUEUE,
    READ,
    TOPIC,
    WRITE,
    RemoteRights,
)
from fluxmq.auth.users import KeyPermission, TopicPermission, User, VhostPermission
from fluxmq.model.patterns import Pattern, PatternError, compile_pattern, quote

ANSWERS_MAX: Final = 4096
"""Answers cached per user and virtual host; then the cache is cleared."""
DEFAULT_EXCHANGE: Final = "amq.default"
"""Name of the default exchange in patterns."""
EVERYTHING: Final = ".*"
"""The usual pattern for all names."""

_VARIABLE: Final = re.compile(r"\{(username|vhost|client_id)\}")


class Permissions:
    """The permissions of one user in one virtual host; immutable except for cached answers.

    An unusable pattern grants nothing. An empty pattern matches only an empty name, which no
    resource has.
    """

    __slots__ = (
        "_answers",
        "_configure",
        "_keys",
        "_read",
        "_remote",
        "_topics",
        "_write",
        "allows_everything",
    )

    def __init__(
        self,
        user: str,
        permission: VhostPermission,
        topics: tuple[TopicPermission, ...] = (),
        client_id: str = "",
        keys: KeyPermission | None = None,
        remote: RemoteRights | None = None,
    ) -> None:
        """Take the records; `client_id` replaces ``{client_id}`` in topic patterns. `keys` takes the
        place of `topics` where rights come from a token's scopes, and `remote` of what another
        backend decides."""
        self._configure = _pattern(permission.configure)
        self._write = _pattern(permission.write)
        self._read = _pattern(permission.read)
        values = {"username": user, "vhost": permission.vhost, "client_id": client_id}
        self._topics = {
            topic.exchange: (
                _pattern(_filled(topic.write, values)),
                _pattern(_filled(topic.read, values)),
            )
            for topic in topics
            if topic.vhost == permission.vhost
        }
        self._keys = None if keys is None else (_pattern(keys.write), _pattern(keys.read))
        self._remote = remote
        self._answers: dict[tuple[Pattern, str], bool] = {}
        self.allows_everything = (
            permission.write == permission.read == EVERYTHING
            and not self._topics
            and self._keys is None
            and remote is None
        )
        """True when any message may be written and read."""

    @property
    def lasting(self) -> bool:
        """True when answers hold as long as this object is in use."""
        return self._remote is None

    def configure(self, name: str, kind: str = QUEUE) -> bool:
        """Return whether the user may declare and delete the exchange or queue of this name."""
        return self._ask(self._configure, name or DEFAULT_EXCHANGE, kind, CONFIGURE)

    def write(self, name: str, kind: str = EXCHANGE) -> bool:
        """Return whether the user may publish to the exchange, or bind the queue (or exchange) as
        destination."""
        return self._ask(self._write, name or DEFAULT_EXCHANGE, kind, WRITE)

    def read(self, name: str, kind: str = QUEUE) -> bool:
        """Return whether the user may consume from the queue, or bind to the exchange as source."""
        return self._ask(self._read, name or DEFAULT_EXCHANGE, kind, READ)

    def topic_write(self, exchange: str, routing_key: str) -> bool:
        """Return whether the user may publish with this routing key to the topic exchange."""
        return self._topic(0, exchange or DEFAULT_EXCHANGE, routing_key)

    def topic_read(self, exchange: str, routing_key: str) -> bool:
        """Return whether the user may bind with this routing key to the topic exchange."""
        return self._topic(1, exchange or DEFAULT_EXCHANGE, routing_key)

    def _topic(self, at: int, exchange: str, routing_key: str) -> bool:
        """Return whether the routing key may be written (0) or read (1)."""
        if self._remote is not None and self._remote.topics:
            return self._remote.allow(TOPIC, exchange, (WRITE, READ)[at], routing_key)
        if self._keys is not None:
            return self._matches(self._keys[at], f"{exchange}\0{routing_key}")
        patterns = self._topics.get(exchange)
        return patterns is None or self._matches(patterns[at], routing_key)

    def _ask(self, pattern: Pattern | None, name: str, kind: str, permission: str) -> bool:
        if self._remote is not None and self._remote.resources:
            return self._remote.allow(kind, name, permission)
        return self._matches(pattern, name)

    def _matches(self, pattern: Pattern | None, name: str) -> bool:
        if pattern is None:
            return False
        question = (pattern, name)
        answer = self._answers.get(question)
        if answer is None:
            answer = pattern.search(name)
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self._answers[question] = answer
        return answer


def permissions_of(user: User, vhost: str, client_id: str = "") -> Permissions | None:
    """Return a user's permissions in a virtual host, or None when the user has no access."""
    for permission in user.permissions:
        if permission.vhost == vhost:
            return Permissions(user.name, permission, user.topic_permissions, client_id)
    return None


def _pattern(text: str) -> Pattern | None:
    try:
        return compile_pattern(text or "^$")
    except PatternError:
        return None


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Insert the client's names into a pattern, escaped: a name must never widen a grant.

    An empty name, as for a client without one, makes the variable match nothing.
    """
    return _VARIABLE.sub(lambda found: quote(values[found[1]]) or r"[^\s\S]", text)
