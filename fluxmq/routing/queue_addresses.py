"""Addresses of queues in topics and filters: parsing, and construction for delivery.

The syntax is the same for every protocol. A publish to ``$queue/<name>[/<key>]`` goes to that queue
and to nothing else; ``$dlq/<name>[/<key>]`` is the dead-letter queue of <name>, whose own name is
``$dlq/<name>``. The key is any topic: consumer groups filter by it. A last level of ``$ack``,
``$nack``, ``$reject`` or ``$commit`` makes the publish a command to the broker instead of a
message. This module knows neither which queues exist nor who may use them.

``$queue/$dlq/<name>`` is no address: a permission for ``$queue/#`` must not reach dead letters.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.model.errors import FluxmqError
from fluxmq.model.limits import MQTT_STRING_BYTES_MAX

QUEUE_PREFIX: Final = b"$queue/"
DEAD_LETTER_PREFIX: Final = b"$dlq/"
PREFIXES: Final = (QUEUE_PREFIX, DEAD_LETTER_PREFIX)
"""Prefixes of topics and filters that address queues; for ``bytes.startswith``."""
QUEUE_NAME_BYTES_MAX: Final = 255
"""Maximum length of a queue's name without ``$dlq/``, which is also an AMQP short string: one byte
of length."""
VERBS: Final = {
    b"$ack": "ack",
    b"$nack": "nack",
    b"$reject": "reject",
    b"$commit": "commit",
}
"""Last levels that make a publish a command to the broker, and the commands."""
_CONTROL: Final = frozenset(range(0x20)) | {0x7F}
_ALL_KEYS: Final = b"#"


class MalformedAddressError(FluxmqError):
    """A topic or filter starts like a queue's address and is invalid; the text says why, quoting
    nothing."""


class QueueAddress(NamedTuple):
    """Target of a publish.

    ``queue``: the queue's name, beginning with ``$dlq/`` for a dead-letter queue. ``key``: the
    levels behind it, empty for none. ``verb``: empty for a message, else ``ack``, ``nack``,
    ``reject`` or ``commit``.
    """

    queue: bytes
    key: bytes
    verb: str


class QueueFilter(NamedTuple):
    """Queue of a subscription, and ``pattern`` that the keys of its messages match, empty for
    all."""

    queue: bytes
    pattern: bytes


def parse_publish(topic: bytes) -> QueueAddress | None:
    """Return the queue address of a publish to this topic; None for an ordinary topic.

    The topic must be a valid topic name. Raises MalformedAddressError for an impossible queue name
    and for a verb that is not the last level.
    """
    if not topic.startswith(PREFIXES):
        return None
    queue, key = _split(topic)
    if b"$" not in key:
        return QueueAddress(queue, key, "")
    rest, _, last = key.rpartition(b"/")
    verb = VERBS.get(last, "")
    if verb:
        key = rest
    if not VERBS.keys().isdisjoint(key.split(b"/")):
        raise MalformedAddressError("a queue command must be the last level of its topic")
    return QueueAddress(queue, key, verb)


def parse_filter(topic_filter: bytes) -> QueueFilter | None:
    """Return the queue filter of a subscription; None for an ordinary filter.

    The filter must be valid, without ``$share/<group>/``. Raises MalformedAddressError for an
    impossible queue name (wildcards, for one) and for a command.
    """
    if not topic_filter.startswith(PREFIXES):
        return None
    queue, pattern = _split(topic_filter)
    if b"$" in pattern and not VERBS.keys().isdisjoint(pattern.split(b"/")):
        raise MalformedAddressError("queue commands cannot be subscribed to")
    return QueueFilter(queue, b"" if pattern == _ALL_KEYS else pattern)


def is_reachable_name(name: bytes) -> bool:
    """Return whether clients can address a queue of this name, without ``$dlq/``, by
    ``$queue/<name>``."""
    return (
        0 < len(name) <= QUEUE_NAME_BYTES_MAX
        and name[0] != 0x24  # $
        and b"/" not in name
        and b"+" not in name
        and b"#" not in name
        and _CONTROL.isdisjoint(name)
    )


def _split(text: bytes) -> tuple[bytes, bytes]:
    """Return the queue's name and the rest behind it."""
    prefix = QUEUE_PREFIX if text.startswith(QUEUE_PREFIX) else DEAD_LETTER_PREFIX
    name, _, rest = text[len(prefix) :].partition(b"/")
    if not is_reachable_name(name):
        raise MalformedAddressError("this is not a valid queue name")
    return (name if prefix == QUEUE_PREFIX else DEAD_LETTER_PREFIX + name), rest


def effective_group(group: bytes, pattern: bytes) -> bytes:
    """Return the id of the consumer group for a pattern: every pattern has its own progress."""
    return group + b"@" + pattern if pattern else group


def address_of(queue: bytes) -> bytes:
    """Return the topic that addresses a queue of this name."""
    return queue if queue.startswith(DEAD_LETTER_PREFIX) else QUEUE_PREFIX + queue


def key_of(source_topic: bytes) -> bytes:
    """Return the key that consumer groups filter by: of a publish to a queue its key, else the
    topic.

    The topic must be one that was accepted.
    """
    if not source_topic.startswith(PREFIXES):
        return source_topic
    return source_topic.split(b"/", 2)[2] if source_topic.count(b"/") > 1 else b""


def delivery_topic(queue: bytes, source_topic: bytes) -> bytes:
    """Return the topic under which a queue delivers a message published to ``source_topic``.

    It begins with the queue's address, so that it matches the subscribed filter, followed by the
    key, or the whole topic of a captured message. If that is too long for MQTT, the address alone
    is used.
    """
    address, key = address_of(queue), key_of(source_topic)
    if not key or len(address) + 1 + len(key) > MQTT_STRING_BYTES_MAX:
        return address
    return address + b"/" + key
