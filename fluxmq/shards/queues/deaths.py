"""What a message that was dead-lettered through an exchange says of its deaths: the header ``x-death``.

A message keeps a list of them, the newest queue first: how often it died in which queue of what, where it had been
published. What RabbitMQ says so, and how, is the reference (its documentation of dead letter exchanges); what it does
to the message's own properties too: a time to live is taken out, and with a routing key of the queue's the copies' keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fluxmq.model.properties import Item, Kind, Value, decode, encode, text
from fluxmq.protocols.amqp091.message_properties import address_of
from fluxmq.queues.commands import Reason

DEATHS: Final = b"x-death"
COPIES: Final = b"CC"
"""Header with more routing keys, which a publisher has set."""

REASONS: Final = {
    Reason.REJECTED: b"rejected",
    Reason.EXPIRED: b"expired",
    Reason.DELIVERY_LIMIT: b"delivery_limit",
    Reason.MAX_RETRIES: b"delivery_limit",
    Reason.MAX_LENGTH: b"maxlen",
}
"""What ``x-death`` calls a reason."""

DEATHS_MAX: Final = 64
"""Queues and reasons that a message remembers; the oldest is forgotten first. Cycles that no consumer takes part in
end by themselves, so that more means a topology that passes messages round by rejecting them."""

_PROTOCOL_AMQP: Final = Item(Kind.PROTOCOL, 2)


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead message as it is published again: its properties, and the routing keys it is published with."""

    block: bytes
    keys: tuple[bytes, ...]
    deaths: tuple[Value, ...]

    def goes_round(self, queue: bytes) -> bool:
        """Whether it would come to a queue again without having been rejected anywhere since it was there."""
        newest_first = [dict(_entries(death)) for death in self.deaths]
        for index, death in enumerate(newest_first):
            if death.get(b"queue") == text(queue):
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
    """A message that died in `queue` at `time` (µs), for `exchange`; without a `routing_key` it keeps its own.

    `block` and `key` are as its queue kept them. Raises `PropertyError` for bytes that are no block.
    """
    items = decode(block)
    was_in, was_for = address_of(block, key)
    copies = _copies(items)
    death: list[tuple[bytes, Value]] = [
        (b"reason", text(REASONS[Reason(reason)])),
        (b"queue", text(queue)),
        (b"time", Value("T", time // 1_000_000)),
        (b"exchange", text(was_in)),
        (b"routing-keys", Value("A", tuple(text(each) for each in (was_for, *copies)))),
    ]
    death += [
        (b"original-expiration", text(item.value))
        for item in items
        if item.kind is Kind.EXPIRATION and isinstance(item.value, bytes)
    ]
    before = _deaths(items)
    deaths = _with(before, death)
    kept = [item for item in items if not _replaced(item, routing_key is not None)]
    place = 1 if kept and kept[0] == _PROTOCOL_AMQP else len(kept)
    kept.insert(place, Item(Kind.EXCHANGE, exchange))
    if not before and not any(item.name == b"x-first-death-queue" for item in items):
        kept += [
            Item(Kind.HEADER, text(REASONS[Reason(reason)]), b"x-first-death-reason"),
            Item(Kind.HEADER, text(queue), b"x-first-death-queue"),
            Item(Kind.HEADER, text(was_in), b"x-first-death-exchange"),
        ]
    kept.append(Item(Kind.HEADER, Value("A", deaths), DEATHS))
    keys = (was_for, *copies) if routing_key is None else (routing_key,)
    return Letter(encode(kept), keys, deaths)


def _with(before: Sequence[Value], death: list[tuple[bytes, Value]]) -> tuple[Value, ...]:
    """The deaths with a new one, which is counted where the same has happened before."""
    queue, reason = dict(death)[b"queue"], dict(death)[b"reason"]
    others: list[Value] = []
    again: Value | None = None
    for each in before:
        entries = dict(_entries(each))
        if again is None and entries.get(b"queue") == queue and entries.get(b"reason") == reason:
            again = each
        else:
            others.append(each)
    if again is None:
        first = Value("F", ((b"count", Value("l", 1)), *death))
    else:
        first = Value("F", tuple(_counted(name, value) for name, value in _entries(again)))
    return (first, *others)[:DEATHS_MAX]


def _counted(name: bytes, value: Value) -> tuple[bytes, Value]:
    if name == b"count" and isinstance(value.content, int):
        return name, Value("l", value.content + 1)
    return name, value


def _entries(table: Value) -> Iterable[tuple[bytes, Value]]:
    return table.content if table.tag == "F" and isinstance(table.content, tuple) else ()


def _deaths(items: Iterable[Item]) -> tuple[Value, ...]:
    """What a message's header says of earlier deaths; nothing when that is no list."""
    for item in items:
        if item.kind is Kind.HEADER and item.name == DEATHS and isinstance(item.value, Value):
            content = item.value.content
            return content if item.value.tag == "A" and isinstance(content, tuple) else ()
    return ()


def _copies(items: Iterable[Item]) -> list[bytes]:
    """The further routing keys of a message."""
    for item in items:
        if item.kind is Kind.HEADER and item.name == COPIES and isinstance(item.value, Value):
            content = item.value.content
            if item.value.tag == "A" and isinstance(content, tuple):
                return [each.content for each in content if each.tag == "S"]
    return []


def _replaced(item: Item, rerouted: bool) -> bool:
    """Whether an item goes: what is said anew, what a dead letter does not have, what queues say of theirs."""
    if item.kind in (Kind.EXCHANGE, Kind.EXPIRATION, Kind.EMPTY_HEADERS):
        return True
    if item.kind is Kind.HEADER:
        return item.name == DEATHS or (rerouted and item.name == COPIES)
    return item.kind >= Kind.DEAD_REASON
