"""The ``x-x_death`` header: history of a message dead-lettered through an exchange.

The header lists deaths, newest queue first: how often the message died in which queue, why, and how
it had been published. Content and form follow RabbitMQ (its documentation of dead letter
exchanges), as do changes of the message's own properties: its expiration is removed, and its CC
keys if the queue sets a dead-letter routing key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fluxmq.model.amqp10_readers import SectionReader, expanded
from fluxmq.model.amqp10_sections import without_annotations
from fluxmq.model.properties import Item, PropertyKind, Value, decode, encode, text
from fluxmq.protocols.amqp091.message_properties import address_of
from fluxmq.queues.commands import DeadLetterReason

DEATHS: Final = b"x-death"
COPIES: Final = b"CC"
"""Header with a publisher's additional routing keys."""

REASONS: Final = {
    DeadLetterReason.REJECTED: b"rejected",
    DeadLetterReason.EXPIRED: b"expired",
    DeadLetterReason.DELIVERY_LIMIT: b"delivery_limit",
    DeadLetterReason.MAX_RETRIES: b"delivery_limit",
    DeadLetterReason.MAX_LENGTH: b"maxlen",
}
"""Names of reasons in ``x-x_death``."""

X_DEATHS_MAX: Final = 64
"""Maximum number of deaths (queue and reason) per message; the oldest is dropped first. Cycles
without a consumer end by themselves, so more means a topology that cycles messages by rejecting
them."""

_PROTOCOL_AMQP: Final = Item(PropertyKind.PROTOCOL, 2)


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead message as republished: its properties and the routing keys."""

    block: bytes
    keys: tuple[bytes, ...]
    x_deaths: tuple[Value, ...]

    def goes_round(self, queue: bytes) -> bool:
        """Return whether the message would return to a queue without a rejection since it was
        there."""
        newest_first = [dict(_entries(x_death)) for x_death in self.x_deaths]
        for index, x_death in enumerate(newest_first):
            if x_death.get(b"queue") == text(queue):
                since = newest_first[: index + 1]
                return all(each.get(b"reason") != text(b"rejected") for each in since)
        return False


def letter(
    block: bytes,
    key: bytes,
    *,
    queue: bytes,
    reason: int,
    time: int,
    exchange: bytes,
    routing_key: bytes | None,
) -> Letter:
    """Return a message that died in `queue` at `time` (µs), for `exchange`; by default with its own
    keys.

    `block` and `key` are as its queue stored them. Raises `PropertyError` for an invalid block.
    """
    items = decode(block)
    was_in, was_for = address_of(block, key)
    said = expanded(items, SectionReader.AMQP_0_9_1)
    copies = _copies(said)
    x_death: list[tuple[bytes, Value]] = [
        (b"reason", text(REASONS[DeadLetterReason(reason)])),
        (b"queue", text(queue)),
        (b"time", Value("T", time // 1_000_000)),
        (b"exchange", text(was_in)),
        (b"routing-keys", Value("A", tuple(text(each) for each in (was_for, *copies)))),
    ]
    x_death += [
        (b"original-expiration", text(item.value))
        for item in items
        if item.kind is PropertyKind.EXPIRATION and isinstance(item.value, bytes)
    ]
    before = _x_deaths(said)
    x_deaths = _with(before, x_death)
    kept = [
        _kept(item, routing_key) for item in items if not _replaced(item, routing_key is not None)
    ]
    place = 1 if kept and kept[0] == _PROTOCOL_AMQP else len(kept)
    kept.insert(place, Item(PropertyKind.EXCHANGE, exchange))
    if not before and not any(item.name == b"x-first-death-queue" for item in said):
        kept += [
            Item(
                PropertyKind.HEADER,
                text(REASONS[DeadLetterReason(reason)]),
                b"x-first-death-reason",
            ),
            Item(PropertyKind.HEADER, text(queue), b"x-first-death-queue"),
            Item(PropertyKind.HEADER, text(was_in), b"x-first-death-exchange"),
        ]
    kept.append(Item(PropertyKind.HEADER, Value("A", x_deaths), DEATHS))
    keys = (was_for, *copies) if routing_key is None else (routing_key,)
    return Letter(encode(kept), keys, x_deaths)


def _with(before: Sequence[Value], x_death: list[tuple[bytes, Value]]) -> tuple[Value, ...]:
    """Return the deaths with a new one, merged with an earlier one of the same queue and reason."""
    queue, reason = dict(x_death)[b"queue"], dict(x_death)[b"reason"]
    others: list[Value] = []
    again: Value | None = None
    for each in before:
        entries = dict(_entries(each))
        if again is None and entries.get(b"queue") == queue and entries.get(b"reason") == reason:
            again = each
        else:
            others.append(each)
    if again is None:
        first = Value("F", ((b"count", Value("l", 1)), *x_death))
    else:
        first = Value("F", tuple(_counted(name, value) for name, value in _entries(again)))
    return (first, *others)[:X_DEATHS_MAX]


def _counted(name: bytes, value: Value) -> tuple[bytes, Value]:
    if name == b"count" and isinstance(value.content, int):
        return name, Value("l", value.content + 1)
    return name, value


def _entries(table: Value) -> Iterable[tuple[bytes, Value]]:
    return table.content if table.tag == "F" and isinstance(table.content, tuple) else ()


def _x_deaths(items: Iterable[Item]) -> tuple[Value, ...]:
    """Return the earlier deaths in a message's header; none if it is no list."""
    for item in items:
        if (
            item.kind is PropertyKind.HEADER
            and item.name == DEATHS
            and isinstance(item.value, Value)
        ):
            content = item.value.content
            return content if item.value.tag == "A" and isinstance(content, tuple) else ()
    return ()


def _copies(items: Iterable[Item]) -> list[bytes]:
    """Return a message's additional routing keys."""
    for item in items:
        if (
            item.kind is PropertyKind.HEADER
            and item.name == COPIES
            and isinstance(item.value, Value)
        ):
            content = item.value.content
            if item.value.tag == "A" and isinstance(content, tuple):
                return [each.content for each in content if each.tag == "S"]
    return []


def _kept(item: Item, routing_key: bytes | None) -> Item:
    """Return an item as the dead letter has it: sections of AMQP 1.0 lose the annotations that are
    replaced."""
    if item.kind is not PropertyKind.AMQP10 or not isinstance(item.value, bytes):
        return item
    gone = (b"x-opt-deaths",) if routing_key is None else (b"x-opt-deaths", b"x-cc")
    return Item(PropertyKind.AMQP10, without_annotations(item.value, gone))


def _replaced(item: Item, rerouted: bool) -> bool:
    """Return whether an item is dropped: replaced, absent from dead letters, or a queue's own."""
    if item.kind in (PropertyKind.EXCHANGE, PropertyKind.EXPIRATION, PropertyKind.EMPTY_HEADERS):
        return True
    if item.kind is PropertyKind.HEADER:
        return item.name == DEATHS or (rerouted and item.name == COPIES)
    return item.kind >= PropertyKind.DEAD_REASON
