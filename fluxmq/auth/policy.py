"""Topic permissions of one client: filters, with the client's names inserted.

A rule is a topic filter that may contain ``{client_id}`` and ``{username}``. Those values are
chosen by the client (the client id always, the user name by whoever created it), so they must never
widen a grant: a value that is empty, or contains ``+``, ``#``, ``/`` or NUL, or would make the
filter begin with ``$``, makes that rule grant nothing. Values are inserted once; a value that
itself looks like a placeholder stays text.

Publishing needs a rule that *matches* the topic. Subscribing needs one rule that *covers* the
filter: a partial match is not enough, and two rules are never combined. Wildcards at the start of a
rule do not reach topics beginning with ``$``; such topics must be granted by name (``$SYS/#``).

Users of other login backends have no rules but rights (`fluxmq.auth.topic_rights`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from fluxmq.auth.filters import SHARE, covers, filter_problem, matches, shared_filter

_PLACEHOLDER = re.compile(r"\{(client_id|username)\}")
_LOOKS_LIKE_PLACEHOLDER = re.compile(r"\{\w*\}")
_WIDENING = re.compile("[+#/\x00]")


def rule_problem(rule: str) -> str | None:
    """Return why `rule` cannot be a permission, or None when it can.

    For interfaces through which people enter rules: besides malformed filters this refuses
    shared-subscription prefixes (the filter inside is checked) and misspelt placeholders, which
    would silently grant nothing.
    """
    unknown = _LOOKS_LIKE_PLACEHOLDER.search(_PLACEHOLDER.sub("", rule))
    if unknown is not None:
        return (
            f"has unknown placeholder {unknown.group()}; known are {{client_id}} and {{username}}"
        )
    if rule == SHARE or rule.startswith(f"{SHARE}/"):
        return "begins with $share; grant the filter inside instead"
    return filter_problem(_PLACEHOLDER.sub("x", rule))


def _fill(rule: str, values: dict[str, str | None]) -> tuple[str, ...] | None:
    """Return the rule's levels with the client's values inserted, or None when the rule grants
    nothing to this client."""
    unusable = False

    def value(match: re.Match[str]) -> str:
        nonlocal unusable
        text = values[match.group(1)]
        if not text or _WIDENING.search(text):
            unusable = True
            return ""
        return text

    filled = _PLACEHOLDER.sub(value, rule)
    if unusable or filter_problem(filled) is not None:
        return None
    if filled.startswith("$") and not rule.startswith("$"):
        return None
    return tuple(filled.split("/"))


class TopicGrants(Protocol):
    """Rights on topics that do not come from rules."""

    @property
    def allow_everything(self) -> bool:
        """True when every topic and filter not beginning with ``$`` is allowed."""

    @property
    def lasting(self) -> bool:
        """True when answers hold as long as the client is connected."""

    def may_publish(self, topic: str, /) -> bool:
        """Return whether the client may publish to this topic name."""

    def may_subscribe(self, topic_filter: str, /) -> bool:
        """Return whether the client may subscribe to this filter."""


class TopicPolicy:
    """The permissions of one connected client; immutable, cheap to ask, made once per connection
    and users' revision.

    `allows_everything` is true when both ``#`` are granted: then every topic and filter not
    beginning with ``$`` is allowed without further checks. Lives in a shard, shared by nothing.
    """

    __slots__ = ("_publish", "_rights", "_subscribe", "allows_everything", "backend", "ends_at")

    def __init__(
        self,
        publish: Iterable[str],
        subscribe: Iterable[str],
        *,
        client_id: str | None = None,
        username: str | None = None,
        rights: TopicGrants | None = None,
        backend: str = "",
        ends_at: float = 0.0,
    ) -> None:
        """Take the rules and the client's names. Malformed rules grant nothing. `rights` grant in
        addition to rules. `backend`: that of a login by another backend than the internal one;
        `ends_at`: monotonic seconds at which the login ends, 0 for never."""
        self.backend = backend
        self.ends_at = ends_at
        values = {"client_id": client_id, "username": username}
        self._publish = tuple(
            levels for rule in publish if (levels := _fill(rule, values)) is not None
        )
        self._subscribe = tuple(
            levels for rule in subscribe if (levels := _fill(rule, values)) is not None
        )
        self._rights = rights
        self.allows_everything = (("#",) in self._publish and ("#",) in self._subscribe) or (
            rights is not None and rights.allow_everything
        )

    @property
    def lasting(self) -> bool:
        """True when answers hold as long as this policy is in use. Otherwise another backend is
        asked, and the methods below may raise UndecidedError."""
        return self._rights is None or self._rights.lasting

    def may_publish(self, topic: str) -> bool:
        """Return whether the client may publish to this topic name. A name with wildcards is never
        allowed."""
        if not topic or "+" in topic or "#" in topic:
            return False
        levels = topic.split("/")
        if any(matches(rule, levels) for rule in self._publish):
            return True
        return self._rights is not None and self._rights.may_publish(topic)

    def may_subscribe(self, topic_filter: str) -> bool:
        """Return whether one rule covers the whole filter; in ``$share/<group>/<filter>`` the
        filter counts.

        A malformed filter is never allowed.
        """
        if topic_filter == SHARE or topic_filter.startswith(f"{SHARE}/"):
            inner = shared_filter(topic_filter)
            if inner is None:
                return False
            topic_filter = inner
        if filter_problem(topic_filter) is not None:
            return False
        levels = topic_filter.split("/")
        if any(covers(rule, levels) for rule in self._subscribe):
            return True
        return self._rights is not None and self._rights.may_subscribe(topic_filter)
