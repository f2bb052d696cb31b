"""Reads a publisher's headers and properties.

Headers are decoded on demand, since most publishes never need them. Source: RabbitMQ's
sender-selected distribution (CC, BCC), its per-message TTL and its error texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from fluxmq.model.deduplication import identity_of
from fluxmq.protocols.amqp091.content import malformed
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.protocols.amqp091.tables import (
    FieldTableError,
    Table,
    decode_entries,
    read_values,
    write_values,
)
from fluxmq.routing.topology.values import type_name
from fluxmq.sessions.amqp091.refusals import precondition

KEYS_MAX: Final = 1024
"""Maximum routing keys of one message: its own and those of its CC and BCC headers."""
CC: Final = "CC"
BCC: Final = "BCC"
DEDUPLICATION_ID: Final = "x-deduplication-id"
"""Header that identifies a message, so that duplicates are stored once."""
EXPIRY_MS_MAX: Final = 10**15
"""Thirty thousand years: times in microseconds stay far within 64 bits."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


class Headers(Mapping[str, object]):
    """The headers in a field table's bytes (without its length). Access raises HardError 502 if
    they are malformed."""

    __slots__ = ("_raw", "_table")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._table: Table | None = None

    def _read(self) -> Table:
        if self._table is None:
            try:
                self._table = decode_entries(self._raw, lenient=True)
            except FieldTableError as error:
                raise malformed(f"headers: {error}") from None
        return self._table

    def __getitem__(self, name: str) -> object:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __bool__(self) -> bool:
        """Return whether there are any, without decoding them."""
        return bool(self._raw)

    def may_have(self, name: str) -> bool:
        """Return False when there is certainly no header of this name."""
        raw = name.encode()
        return bytes((len(raw),)) + raw in self._raw

    def copies(self, name: str) -> tuple[str, ...]:
        """Return the routing keys in a CC or BCC header. Raises SoftError 406 unless it is an
        array."""
        if name not in self:
            return ()
        found = self[name]
        if not isinstance(found, list):
            raise _unacceptable(name, found)
        return tuple(each for each in found if isinstance(each, str))

    def without(self, name: str) -> bytes:
        """Return the encoded headers without one of them."""
        left = name.encode()
        return write_values([each for each in read_values(self._raw) if each[0] != left])


def all_keys(routing_key: str, headers: Headers) -> tuple[str, ...]:
    """Return the routing key and those in the headers. Raises AmqpError."""
    keys = (routing_key, *headers.copies(CC), *headers.copies(BCC))
    if len(keys) > KEYS_MAX:
        raise precondition(f"more than {KEYS_MAX} routing keys of one message")
    return keys


def identity_in(headers: Headers) -> tuple[int, int] | None:
    """Return producer and sequence from a header, None without it. Raises SoftError 406 if it is
    malformed."""
    if DEDUPLICATION_ID not in headers:
        return None
    value = headers[DEDUPLICATION_ID]
    if not isinstance(value, str | bytes):
        raise _unacceptable(DEDUPLICATION_ID, value)
    try:
        return identity_of(value.encode() if isinstance(value, str) else value)
    except ValueError as error:
        raise precondition(f"invalid message: {DEDUPLICATION_ID}: {error}") from None


def _unacceptable(name: str, value: object) -> SoftError:
    kind = type_name(value)
    return precondition(f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}')


def expiry_of(text: str) -> int:
    """Return the milliseconds of an ``expiration``, clamped to the range of times. Raises SoftError
    406."""
    found = _INTEGER.match(text)
    if found is None:
        raise _invalid_expiry(text, "no_integer")
    digits, rest = found[0], text[found.end() :]
    if rest:
        raise _invalid_expiry(text, f'{{leftover_string,"{rest}"}}')
    if digits[0] == "-" and digits.strip("-0"):
        raise _invalid_expiry(text, f"{{value_negative,-{digits[1:].lstrip('0')}}}")
    return min(int(digits), EXPIRY_MS_MAX)


def _invalid_expiry(text: str, why: str) -> SoftError:
    return precondition(f"invalid expiration '{text}': {why}")
