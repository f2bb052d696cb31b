"""Topic filters for permissions: well-formed, matching, covering.

Topics and filters are those of MQTT 5.0 section 4.7: levels between slashes, ``+`` for one level,
``#`` for the parent and everything below it, and a leading wildcard that never reaches topics
beginning with ``$`` (4.7.2). A permission differs from a route: the question is not "does this
topic match" but "is everything this filter could ever match already granted", which is `covers`.
"""

from __future__ import annotations

from collections.abc import Sequence

SHARE = "$share"


def filter_problem(text: str) -> str | None:
    """Return why `text` is not a well-formed topic filter (MQTT 5.0, 4.7.1 and 4.7.3), or None if
    it is."""
    if not text:
        return "is empty"
    if "\x00" in text:
        return "contains NUL"
    levels = text.split("/")
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != len(levels) - 1):
            return "may use # only as the whole last level"
        if "+" in level and level != "+":
            return "may use + only as a whole level"
    return None


def matches(topic_filter: Sequence[str], topic: Sequence[str]) -> bool:
    """Return whether the filter matches the topic name; both are given as levels."""
    if topic[0].startswith("$") and topic_filter[0] in ("+", "#"):
        return False
    last = len(topic)
    for index, level in enumerate(topic_filter):
        if level == "#":
            return True
        if index == last or (level not in ("+", topic[index])):
            return False
    return len(topic_filter) == last


def covers(granted: Sequence[str], requested: Sequence[str]) -> bool:
    """Return whether every topic that `requested` matches is matched by `granted`, both given as
    levels.

    Exact over all topics (an unlimited alphabet): never true when some topic escapes, never false
    when none does.
    """
    first = requested[0]
    if first.startswith("$") and granted[0] in ("+", "#"):
        return False
    if first == "#":
        # Every topic has at least one level, so "+/#" is another way to write "#". Further down
        # this does not hold: "a/#" matches "a" itself, "a/+/#" does not.
        return granted[0] == "#" or tuple(granted) == ("+", "#")
    last = len(requested)
    for index, level in enumerate(granted):
        if level == "#":
            return True
        if index == last:
            return False
        asked = requested[index]
        if asked == "#" or (level not in ("+", asked)):
            return False
    return len(granted) == last


def shared_filter(text: str) -> str | None:
    """Return the topic filter inside ``$share/<group>/<filter>``, or None if the form is malformed.

    MQTT 5.0, 4.8.2: the group is at least one character without ``/ + #``, and a filter follows it.
    """
    parts = text.split("/", 2)
    if len(parts) != 3 or parts[0] != SHARE or not parts[1] or not parts[2]:
        return None
    if "+" in parts[1] or "#" in parts[1]:
        return None
    return parts[2]
