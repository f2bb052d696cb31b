"""Cache of the queues that a client may publish to, valid until permissions or limits change.

The connection caches other permitted topics, but never those that begin with ``$``; a queue's topic
would be parsed and matched against the client's rules for every message of a publisher that sends
them one by one.
"""

from __future__ import annotations

from fluxmq.auth.policy import TopicPolicy

TOPICS_MAX = 1024
"""Topics cached per client; beyond them the cache is cleared."""
TOPIC_BYTES_MAX = 256
"""Longest topic cached: a client may make us keep a quarter of a megabyte, not four."""


class Addressed:
    """Queue topics that a client may publish messages to, under one policy and one limits
    object."""

    __slots__ = ("_limits", "_policy", "_topics")

    def __init__(self) -> None:
        self._topics: set[bytes] = set()
        self._policy: TopicPolicy | None = None
        self._limits: object = None

    def knows(self, topic: bytes, policy: TopicPolicy | None, limits: object) -> bool:
        """Return whether publishing messages to this topic is known to be permitted."""
        return topic in self._topics and self._policy is policy and self._limits is limits

    def add(self, topic: bytes, policy: TopicPolicy | None, limits: object) -> None:
        """Record that publishing messages to this topic is permitted."""
        if len(topic) > TOPIC_BYTES_MAX:
            return
        topics = self._topics
        if self._policy is not policy or self._limits is not limits or len(topics) >= TOPICS_MAX:
            topics.clear()
            self._policy, self._limits = policy, limits
        topics.add(topic)
