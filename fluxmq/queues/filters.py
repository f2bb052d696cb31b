"""Message-level filters: an MQTT-style pattern on the routing key (MQTT 5 section 4.7).

The routing key of a message is its stored key without ``$queue/<queue>/``; a message captured from
an ordinary topic has the whole topic. ``+`` is one level, ``#`` the rest, even empty: ``a/#``
matches ``a``. Unlike in topics, wildcards match a leading ``$``: keys are the publisher's own.
"""

from __future__ import annotations

from typing import Final

_KNOWN_MAX: Final = 4_096
"""Keys whose result is cached; publishers use few keys, or all of them are new."""


def routing_key(key: bytes, prefix: bytes) -> bytes:
    """Return the part of a stored key that is matched; `prefix` is ``$queue/<queue>``."""
    if key.startswith(prefix):
        if len(key) == len(prefix):
            return b""
        if key[len(prefix)] == 0x2F:
            return key[len(prefix) + 1 :]
    return key


def matches(levels: list[bytes], key: bytes) -> bool:
    """Return whether a pattern, split into its levels, matches a routing key."""
    parts = key.split(b"/")
    for index, level in enumerate(levels):
        if level == b"#":
            return True
        if index == len(parts) or level not in (b"+", parts[index]):
            return False
    return len(parts) == len(levels)


class Filter:
    """A group's pattern on the keys of one queue."""

    __slots__ = ("_known", "_levels", "_prefix")

    def __init__(self, pattern: bytes, queue: str) -> None:
        self._levels = pattern.split(b"/")
        self._prefix = b"$queue/" + queue.encode()
        self._known: dict[bytes, bool] = {}

    def __call__(self, key: bytes) -> bool:
        """Return whether the filter matches a message with this stored key."""
        answer = self._known.get(key)
        if answer is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            answer = matches(self._levels, routing_key(key, self._prefix))
            self._known[key] = answer
        return answer
