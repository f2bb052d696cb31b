"""Rights on topics that follow from rights on exchanges and queues, as in RabbitMQ.

MQTT's topics are routing keys of the exchange ``amq.topic`` in the virtual host ``/``: publishing
needs the right to write to it, subscribing to read from it, and both the routing key. A topic
becomes a routing key by exchanging ``/`` and ``.``; the wildcard ``+`` becomes ``*``. So a scope
``read:%2F/amq.topic/sensors.*`` grants every filter whose routing key it matches: what the client's
wildcards match is covered by the scope's. Queue topics (``$queue/<name>``, ``$dlq/<name>``) need
the right on the queue itself, and ``$SYS`` the tag monitoring or administrator.

Pure. Source: RabbitMQ's MQTT plugin (topics and routing keys), MQTT 5.0 section 4.7.
"""

from __future__ import annotations

from typing import Final

from fluxmq.auth.permissions import Permissions
from fluxmq.auth.remote_rights import EXCHANGE as AN_EXCHANGE
from fluxmq.auth.remote_rights import QUEUE

VHOST: Final = "/"
"""The virtual host that MQTT clients use."""
EXCHANGE: Final = "amq.topic"
QUEUES: Final = "$queue"
DEAD_LETTERS: Final = "$dlq"
SYSTEM: Final = "$SYS"
MONITORS: Final = frozenset({"monitoring", "administrator"})
"""Tags that may subscribe to ``$SYS``."""

_TO_KEY: Final = str.maketrans("/.+", "./*")


def routing_key(topic: str) -> str:
    """Return the routing key of a topic, or the binding key of a filter."""
    return topic.translate(_TO_KEY)


class TopicRights:
    """The rights of one client: its permissions in `VHOST`, None for none, and its tags."""

    __slots__ = ("_monitors", "_permissions", "allow_everything", "lasting")

    def __init__(self, permissions: Permissions | None, tags: tuple[str, ...]) -> None:
        self._permissions = permissions
        self._monitors = not MONITORS.isdisjoint(tags)
        self.lasting = permissions is None or permissions.lasting
        self.allow_everything = permissions is not None and permissions.allows_everything

    def may_publish(self, topic: str) -> bool:
        """Return whether the client may publish to this topic name, which has no wildcards."""
        permissions = self._permissions
        if permissions is None:
            return False
        if topic.startswith("$"):
            first, _, rest = topic.partition("/")
            queue = rest.partition("/")[0]
            return first == QUEUES and bool(queue) and permissions.write(queue, QUEUE)
        return permissions.write(EXCHANGE) and permissions.topic_write(EXCHANGE, routing_key(topic))

    def may_subscribe(self, topic_filter: str) -> bool:
        """Return whether the client may subscribe to this filter, which is well-formed and not
        shared."""
        if topic_filter.startswith("$"):
            first, _, rest = topic_filter.partition("/")
            queue = rest.partition("/")[0]
            if first == SYSTEM:
                return self._monitors
            if first not in (QUEUES, DEAD_LETTERS) or queue in ("", "+", "#"):
                return False
            return self._permissions is not None and self._permissions.read(queue)
        permissions = self._permissions
        if permissions is None or not permissions.read(EXCHANGE, AN_EXCHANGE):
            return False
        return permissions.topic_read(EXCHANGE, routing_key(topic_filter))
