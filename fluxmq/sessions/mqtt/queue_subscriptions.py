"""Subscriptions to queues: a filter ``$queue/<name>[/<pattern>]`` and SUBSCRIBE's user properties.

The same filter may be written ``$share/<group>/$queue/...``. MQTT 5 clients may add user
properties, once each and for every queue among the filters of the packet:

``consumer-group``  group to read the queue with; default: the client id, for 3.1.1 clients up to
                    its first ``-``
``start``           start of a new group: first, last, next, offset=<n>, timestamp=<unix s or ms>
``ack-mode``        auto: PUBACK or PUBCOMP settles a message; explicit: a command does (see
                    ``settlement``)
``prefetch``        maximum unacked messages, at most the queue's limit

The broker checks whether the queue exists and takes such a consumer. Source: MQTT 5.0 sections 3.8,
4.8.2.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.protocols.mqtt.packets import Subscription
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.topics import ParsedFilter
from fluxmq.routing.queue_addresses import MalformedAddressError, effective_group, parse_filter
from fluxmq.sessions.mqtt.queue_properties import OFFSET_MAX, unusable, whole_number

GROUP_NAME_BYTES_MAX: Final = 1024
"""A group's name is usually a client id, which has at most this length."""
EFFECTIVE_GROUP_BYTES_MAX: Final = 65_535
"""Every delivery names its group in a user property, whose length has two bytes."""
PREFETCH_MAX: Final = 1_000_000
"""Maximum that a queue's limit per consumer may be configured to."""
MILLISECONDS_FROM: Final = 100_000_000_000
"""Timestamps from here on are milliseconds: as seconds they would be beyond the year 5000."""
_NAMES: Final = ("consumer-group", "start", "ack-mode", "prefetch")
_FORBIDDEN: Final = frozenset("/+#@") | {chr(code) for code in (*range(0x20), 0x7F)}


class QueueSubscription(NamedTuple):
    """A session's subscription to a queue; plain values, so that it can be stored and sent.

    ``group``: effective id, with ``@<pattern>`` after the name when there is a pattern.
    ``pattern``: filter of keys, empty for all. ``explicit``: acknowledging a PUBLISH settles
    nothing. ``start``: start of a new group, see ``parse_start``; None for the default.
    ``prefetch``: 0 for the queue's own limit. ``identifier``: Subscription Identifier, 0 for none.
    """

    queue: bytes
    group: bytes
    pattern: bytes
    qos: int
    explicit: bool = False
    start: tuple[str, int] | None = None
    prefetch: int = 0
    identifier: int = 0


def is_queue(parsed: ParsedFilter) -> bool:
    """Return whether a subscription is to a queue, shared or not."""
    return parsed.filter.startswith((b"$queue/", b"$dlq/"))


def queue_subscription(
    parsed: ParsedFilter,
    wanted: Subscription,
    properties: list[tuple[str, str]],
    client_id: str,
    version: int,
    qos_max: int,
    identifier: int,
) -> QueueSubscription:
    """Parse one filter of a SUBSCRIBE that ``is_queue``.

    Raises ProtocolError: topic filter invalid for an impossible queue name, implementation specific
    error for an invalid user property.
    """
    try:
        address = parse_filter(parsed.filter)
    except MalformedAddressError as error:
        raise ProtocolError(Reason.TOPIC_FILTER_INVALID, str(error)) from None
    assert address is not None, "asked of queues only"
    if wanted.no_local:
        raise unusable("no local is not supported for queues")
    said = _said(properties)
    group = effective_group(_group(parsed, said, client_id, version), address.pattern)
    if len(group) > EFFECTIVE_GROUP_BYTES_MAX:
        raise ProtocolError(Reason.TOPIC_FILTER_INVALID, "group and pattern are too long")
    return QueueSubscription(
        address.queue,
        group,
        address.pattern,
        min(wanted.qos, qos_max),
        _is_explicit(said.get("ack-mode", "auto")),
        parse_start(said["start"]) if "start" in said else None,
        _prefetch(said.get("prefetch")),
        identifier,
    )


def _said(properties: list[tuple[str, str]]) -> dict[str, str]:
    """Return the properties about queues; others are the client's own business."""
    said: dict[str, str] = {}
    for name, value in properties:
        if name in _NAMES:
            if name in said:
                raise unusable(f"{name} stands twice")
            said[name] = value
    return said


def _group(parsed: ParsedFilter, said: dict[str, str], client_id: str, version: int) -> bytes:
    """Return the group's name: from ``$share``, the property, or the client id."""
    named = said.get("consumer-group")
    if parsed.group is not None:
        shared = parsed.group.decode()
        if named is not None and named != shared:
            raise unusable("consumer-group differs from the name in $share")
        named = shared
    if named is not None:
        if not named or len(named.encode()) > GROUP_NAME_BYTES_MAX or _FORBIDDEN & set(named):
            raise unusable("consumer-group is not a valid group name")
        return named.encode()
    if version == 4:
        # The part after the dash tells instances of one application apart.
        return (client_id.partition("-")[0] or client_id).encode()
    return client_id.encode()


def parse_start(text: str) -> tuple[str, int]:
    """Parse the start of a new group: a word, and a number that is 0 for the first three.

    ``first``: the oldest message kept; ``last``: the newest; ``next``: the first from now on;
    ``offset``: that message; ``timestamp``: the first not older than so many microseconds since the
    epoch. Raises ProtocolError for anything else.
    """
    word, equals, number = text.partition("=")
    if equals and word == "offset":
        return word, whole_number(number.encode(), "start offset", OFFSET_MAX)
    if equals and word == "timestamp":
        time = whole_number(number.encode(), "start timestamp", OFFSET_MAX // 1_000_000)
        return word, time * (1000 if time >= MILLISECONDS_FROM else 1_000_000)
    if text not in ("first", "last", "next"):
        raise unusable("start must be first, last, next, offset= or timestamp=")
    return text, 0


def _is_explicit(text: str) -> bool:
    if text not in ("auto", "explicit"):
        raise unusable("ack-mode must be auto or explicit")
    return text == "explicit"


def _prefetch(text: str | None) -> int:
    if text is None:
        return 0
    number = whole_number(text.encode(), "prefetch", PREFETCH_MAX)
    if number == 0:
        raise unusable("prefetch is 0: nothing would be delivered")
    return number
