"""Valid topic names and topic filters (MQTT 5 section 4.7, shared ones 4.8.2).

Works on the bytes of the wire, because routing keys are bytes. Misplaced wildcards are answered
with the reason code that names the field, 0x90 for a topic name and 0x8F for a filter: the
specification gives no code for them, and these tell the client's author where to look. Limits are
arguments; beyond them the same codes apply ("correctly formed, but not accepted by this Server").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason, malformed
from fluxmq.protocols.mqtt.wire import FIELD_BYTES_MAX

LEVELS_MAX: Final = FIELD_BYTES_MAX + 1
"""Default limit, which no topic of 65 535 bytes can exceed: no limit of its own."""

_SHARE_PREFIX: Final = b"$share/"
_CONTROL_CHARACTERS: Final = re.compile(rb"[\x01-\x1f\x7f]|\xc2[\x80-\x9f]")


@dataclass(slots=True, frozen=True)
class ParsedFilter:
    """A parsed topic filter.

    `group` is the share name of `$share/<group>/<filter>`, None for an ordinary subscription;
    `filter` is what to match topics with; `wildcard` tells whether it holds `+` or `#`.
    """

    group: bytes | None
    filter: bytes
    wildcard: bool


def holds_control_characters(raw: bytes) -> bool:
    """Return whether well-formed UTF-8 holds U+0001 to U+001F or U+007F to U+009F, which a server
    may refuse (MQTT 5 section 1.5.4)."""
    return _CONTROL_CHARACTERS.search(raw) is not None


def validate_topic(
    topic: bytes,
    max_bytes: int = FIELD_BYTES_MAX,
    max_levels: int = LEVELS_MAX,
    control_characters: bool = True,
) -> None:
    """Check the topic name of a PUBLISH or a will. ``control_characters``: whether it may hold
    some.

    Raises `ProtocolError`: malformed for a string that is not UTF-8, holds U+0000 ([MQTT-1.5.4-1],
    [MQTT-1.5.4-2]) or forbidden control characters; topic name invalid when it is empty
    [MQTT-4.7.3-1], holds wildcards [MQTT-3.3.2-2], or is longer or deeper than the limits.
    """
    if not topic:
        raise _bad_topic("topic name is empty")
    _check_text(topic, control_characters)
    if b"+" in topic or b"#" in topic:
        raise _bad_topic("topic name contains a wildcard")
    if len(topic) > max_bytes:
        raise _bad_topic("topic name is longer than this server accepts")
    if topic.count(b"/") >= max_levels:
        raise _bad_topic("topic name has more levels than this server accepts")


def validate_filter(
    raw: bytes,
    max_bytes: int = FIELD_BYTES_MAX,
    max_levels: int = LEVELS_MAX,
    control_characters: bool = True,
) -> ParsedFilter:
    """Parse and check a topic filter; the limits count the whole field.

    Raises `ProtocolError`: malformed for bad UTF-8, and for forbidden control characters; topic
    filter invalid when it is empty [MQTT-4.7.3-1], has misplaced wildcards ([MQTT-4.7.1-1],
    [MQTT-4.7.1-2]), is a shared subscription without a name, with wildcards in it or without a
    filter ([MQTT-4.8.2-1], [MQTT-4.8.2-2]), or is longer or deeper than the limits.
    """
    if not raw:
        raise _bad_filter("topic filter is empty")
    _check_text(raw, control_characters)
    if len(raw) > max_bytes:
        raise _bad_filter("topic filter is longer than this server accepts")
    if raw.count(b"/") >= max_levels:
        raise _bad_filter("topic filter has more levels than this server accepts")
    group: bytes | None = None
    body = raw
    if raw.startswith(_SHARE_PREFIX):
        group, slash, body = raw[len(_SHARE_PREFIX) :].partition(b"/")
        if not group:
            raise _bad_filter("shared subscription has an empty name")
        if b"+" in group or b"#" in group:
            raise _bad_filter("shared subscription's name contains a wildcard")
        if not slash or not body:
            raise _bad_filter("shared subscription lacks its topic filter")
    wildcard = b"+" in body or b"#" in body
    if wildcard:
        _check_wildcards(body)
    return ParsedFilter(group, body, wildcard)


def _check_wildcards(topic_filter: bytes) -> None:
    levels = topic_filter.split(b"/")
    last = len(levels) - 1
    for index, level in enumerate(levels):
        if b"#" in level and (index != last or level != b"#"):
            raise _bad_filter("'#' must be a whole level and the last")
        if b"+" in level and level != b"+":
            raise _bad_filter("'+' must be a whole level")


def _check_text(raw: bytes, control_characters: bool) -> None:
    if 0 in raw:
        raise malformed("string contains U+0000")
    if not raw.isascii():
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError:
            raise malformed("string is not well-formed UTF-8") from None
    if not control_characters and holds_control_characters(raw):
        raise malformed("topic contains a control character")


def _bad_topic(text: str) -> ProtocolError:
    return ProtocolError(Reason.TOPIC_NAME_INVALID, text)


def _bad_filter(text: str) -> ProtocolError:
    return ProtocolError(Reason.TOPIC_FILTER_INVALID, text)
