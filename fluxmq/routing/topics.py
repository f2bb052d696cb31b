"""Levels of a topic and the meaning of a filter (MQTT 5 section 4.7).

The reference definition for tests of this package's tables, each of which has a faster way of its
own. Topics and filters are assumed valid.
"""

from __future__ import annotations

from typing import Final

SEPARATOR: Final = b"/"
SINGLE: Final = b"+"
MULTI: Final = b"#"


def split(topic: bytes) -> list[bytes]:
    """Return the levels of a topic or filter; empty levels count [MQTT-4.7.3-4]."""
    return topic.split(SEPARATOR)


def is_wildcard(topic_filter: bytes) -> bool:
    """Return whether the filter can match more than one topic."""
    return SINGLE in topic_filter or MULTI in topic_filter


def is_reserved(topic: bytes) -> bool:
    """Return whether the topic starts with `$` and so hides from leading wildcards
    [MQTT-4.7.2-1]."""
    return topic[:1] == b"$"


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """Return whether the filter matches the topic ([MQTT-4.7.1-2] to [MQTT-4.7.3-4],
    [MQTT-4.7.2-1])."""
    if topic_filter == topic:
        return True
    if is_reserved(topic) and topic_filter[:1] in (SINGLE, MULTI):
        return False
    levels = split(topic)
    wanted = split(topic_filter)
    for index, want in enumerate(wanted):
        if want == MULTI:
            return True  # also where the topic has ended: "a/#" matches "a" [MQTT-4.7.1-2]
        if index == len(levels) or want not in (SINGLE, levels[index]):
            return False
    return len(wanted) == len(levels)
