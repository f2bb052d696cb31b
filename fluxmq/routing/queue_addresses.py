"""Addresses of queues in topics and filters: taken apart, and put together for delivery.

The words are the same for every protocol. A publish to ``$queue/<name>[/<key>]`` goes to that queue and to nothing
else; ``$dlq/<name>[/<key>]`` is the dead-letter queue of <name>, whose own name is ``$dlq/<name>``. The key is any
topic: consumer groups filter by it. A last level of ``$ack``, ``$nack``, ``$reject`` or ``$commit`` makes the publish an
order to the broker instead of a message. Whether there is such a queue, and who may use it, is not known here.

``$queue/$dlq/<name>`` is no address: a permission for ``$queue/#`` shall not reach dead letters.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.model.errors import FluxmqError
from fluxmq.model.limits import MQTT_STRING_BYTES_MAX

QUEUE_PREFIX: Final = b"$queue/"
DEAD_LETTER_PREFIX: Final = b"$dlq/"
PREFIXES: Final = (QUEUE_PREFIX, DEAD_LETTER_PREFIX)
"""What topics and filters that address queues begin with; for ``bytes.startswith``."""
QUEUE_NAME_BYTES_MAX: Final = 255
"""A queue's name, ``$dlq/`` not counted, is also an AMQP short string: one byte of length."""
VERBS: Final = {
    b"$ack": "ack",
    b"$nack": "nack",
    b"$reject": "reject",
    b"$commit": "commit",
}
"""Last levels that make a publish an order to the broker, and what they order."""
_CONTROL: Final = frozenset(range(0x20)) | {0x7F}
_ALL_KEYS: Final = b"#"


class MalformedAddressError(FluxmqError):
    """A topic or filter begins like a queue's address and is none; the text says why, quoting nothing."""


class QueueAddress(NamedTuple):
    """Where a publish goes.

    ``queue``: the queue's name, beginning with ``$dlq/`` for a dead-letter queue. ``key``: the levels behind it,
    empty for none. ``verb``: empty for a message, else ``ack``, ``nack``, ``reject`` or ``commit``.
    """

    queue: bytes
    key: bytes
    verb: str


class QueueFilter(NamedTuple):
    """What a subscription takes from a queue: messages whose key matches ``pattern``, all when it is empty."""

    queue: bytes
    pattern: bytes


def parse_publish(topic: bytes) -> QueueAddress | None:
    """What a publish to this topic addresses; None for an ordinary topic.

    The topic is a valid topic name. Raises MalformedAddressError for a name that no queue has and for a verb that
    is not the last level.
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
        raise MalformedAddressError("a queue's order is not the last level of its topic")
    return QueueAddress(queue, key, verb)


def parse_filter(topic_filter: bytes) -> QueueFilter | None:
    """What a subscription to this filter takes; None for an ordinary filter.

    The filter is a valid one, without ``$share/<group>/``. Raises MalformedAddressError for a name that no queue
    has (wildcards, for one) and for levels that order something.
    """
    if not topic_filter.startswith(PREFIXES):
        return None
    queue, pattern = _split(topic_filter)
    if b"$" in pattern and not VERBS.keys().isdisjoint(pattern.split(b"/")):
        raise MalformedAddressError("a queue's orders cannot be subscribed to")
    return QueueFilter(queue, b"" if pattern == _ALL_KEYS else pattern)


def is_reachable_name(name: bytes) -> bool:
    """Whether clients can address a queue of this name, without ``$dlq/``, by ``$queue/<name>``."""
    return (
        0 < len(name) <= QUEUE_NAME_BYTES_MAX
        and name[0] != 0x24  # $
        and b"/" not in name
        and b"+" not in name
        and b"#" not in name
        and _CONTROL.isdisjoint(name)
    )


def _split(text: bytes) -> tuple[bytes, bytes]:
    """The queue's name and what stands behind it."""
    prefix = QUEUE_PREFIX if text.startswith(QUEUE_PREFIX) else DEAD_LETTER_PREFIX
    name, _, rest = text[len(prefix) :].partition(b"/")
    if not is_reachable_name(name):
        raise MalformedAddressError("no queue can have this name")
    return (name if prefix == QUEUE_PREFIX else DEAD_LETTER_PREFIX + name), rest


def effective_group(group: bytes, pattern: bytes) -> bytes:
    """Id of the consumer group that reads a queue with this pattern: every pattern has its own progress."""
    return group + b"@" + pattern if pattern else group


def address_of(queue: bytes) -> bytes:
    """The topic that addresses a queue of this name."""
    return queue if queue.startswith(DEAD_LETTER_PREFIX) else QUEUE_PREFIX + queue


def key_of(source_topic: bytes) -> bytes:
    """What filters of consumer groups are matched with: the key of a publish to a queue, of an ordinary one its topic.

    The topic is one that was accepted.
    """
    if not source_topic.startswith(PREFIXES):
        return source_topic
    return source_topic.split(b"/", 2)[2] if source_topic.count(b"/") > 1 else b""


def delivery_topic(queue: bytes, source_topic: bytes) -> bytes:
    """The topic under which a queue delivers a message published to ``source_topic``.

    It begins with the queue's address, so that it matches the filter it was subscribed with: the key stands behind
    it, or the whole topic of a captured message. One too long for MQTT is delivered under the address alone.
    """
    address, key = address_of(queue), key_of(source_topic)
    if not key or len(address) + 1 + len(key) > MQTT_STRING_BYTES_MAX:
        return address
    return address + b"/" + key
