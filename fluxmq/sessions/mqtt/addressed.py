"""Queues that a client publishes to: what was found out about their topics holds until permissions or limits change.

Other topics are remembered as permitted by the connection; those that begin with ``$`` never are, and a queue's topic
has to be taken apart and looked up in the client's rules, for every message of a publisher that sends them one by one.
"""

from __future__ import annotations

from fluxmq.auth.policy import Policy

TOPICS_MAX = 1024
"""Topics remembered of one client; beyond them the memory starts anew."""
TOPIC_BYTES_MAX = 256
"""Longest topic remembered: a client may make us keep a quarter of a megabyte, not four."""


class Addressed:
    """Topics of queues that a client may publish messages to, under one policy and one object of limits."""

    __slots__ = ("_limits", "_policy", "_topics")

    def __init__(self) -> None:
        self._topics: set[bytes] = set()
        self._policy: Policy | None = None
        self._limits: object = None

    def knows(self, topic: bytes, policy: Policy | None, limits: object) -> bool:
        """Whether it is known that messages may be published to this topic."""
        return topic in self._topics and self._policy is policy and self._limits is limits

    def add(self, topic: bytes, policy: Policy | None, limits: object) -> None:
        """It was found out that they may."""
        if len(topic) > TOPIC_BYTES_MAX:
            return
        topics = self._topics
        if self._policy is not policy or self._limits is not limits or len(topics) >= TOPICS_MAX:
            topics.clear()
            self._policy, self._limits = policy, limits
        topics.add(topic)
