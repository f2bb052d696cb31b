"""Entry points of the AMQP 0.9.1 parsers for fuzzing: bytes in, an outcome out, errors are findings.

What is read must also be written and read again, to the same bytes the second time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from decimal import Decimal
from typing import Any, Final

from fluxmq.model.properties import Item, PropertyError, PropertyKind, Timestamp, Value, text
from fluxmq.model.properties import encode as encode_block
from fluxmq.protocols.amqp091 import methods
from fluxmq.protocols.amqp091.content import (
    BasicProperties,
    decode_properties,
    encode_properties,
    frames_of_content,
    split_header,
)
from fluxmq.protocols.amqp091.errors import HardError, reply_text
from fluxmq.protocols.amqp091.message_properties import (
    address_of,
    block_headers,
    from_block,
    stream_properties,
    to_block,
)
from fluxmq.protocols.amqp091.method_codec import decode, encode
from fluxmq.protocols.amqp091.sasl import parse
from fluxmq.protocols.amqp091.tables import (
    FieldTableError,
    decode_entries,
    decode_table,
    encode_table,
    read_values,
    write_values,
)
from tests.unit.protocols.amqp091.traces import traces

MECHANISMS: Final = ("PLAIN", "AMQPLAIN", "EXTERNAL", "other")


def _kind(message: str) -> str:
    """A text without what is only this input's."""
    return re.sub(r"<<.*|\d+", "", message)


def _answer(error: HardError) -> Hashable:
    assert len(reply_text(error).encode()) <= 255
    return int(error.code), error.class_id if error.code == 502 else 0, _kind(error.text)


def fuzz_method(data: bytes) -> Hashable:
    """The payload of a method frame."""
    try:
        method = decode(data)
    except HardError as error:
        return _answer(error)
    # Bytes, because a NaN is not equal to itself.
    raw = encode(method)
    assert encode(decode(raw)) == raw
    return type(method).__name__


def fuzz_table(data: bytes) -> Hashable:
    """A table with its length, and the same bytes without one."""
    try:
        raw = encode_table(decode_table(data))
        assert encode_table(decode_table(raw)) == raw
    except FieldTableError as error:
        if "length" not in str(error):
            return _kind(str(error))
    try:
        entries = read_values(data)
        lenient = encode_table(decode_entries(data, lenient=True))
    except FieldTableError as error:
        return _kind(str(error))
    assert len(write_values(entries)) == len(data)
    assert encode_table(decode_entries(lenient[4:], lenient=True)) == lenient
    return tuple(sorted({value.tag for _, value in entries}))


def fuzz_header(data: bytes) -> Hashable:
    """The payload of a header frame, and its message in and out of a queue."""
    try:
        size, raw = split_header(data)
        properties = decode_properties(raw)
    except HardError as error:
        return _answer(error)
    assert 0 <= size < 1 << 64
    again = encode_properties(properties)
    assert encode_properties(decode_properties(again)) == again
    block = to_block(raw, "e", "u")
    found = from_block(block)
    assert len(found) == len(raw)
    assert from_block(to_block(found, "e", "u")) == found
    assert address_of(block, b"k") == (b"e", b"k")
    header = frames_of_content(1, raw, b"", 4096)[0]
    assert split_header(header[7:-1]) == (0, raw)
    return tuple(name for name, value in properties._asdict().items() if value is not None)


def fuzz_headers(data: bytes) -> Hashable:
    """A table whose length is right, as a message's headers, in and out of a queue."""
    try:
        block = to_block(b"\x20\0" + len(data).to_bytes(4, "big") + data, "e", "u")
    except HardError as error:
        return _answer(error)
    found = from_block(block, extra={"x-delivery-count": 1})
    headers = decode_properties(found).headers or {}
    assert headers.pop("x-delivery-count") == 1
    own = block_headers(block)
    own.pop("x-delivery-count", None)
    assert repr(headers) == repr(own)
    return tuple(sorted({type(value).__name__ for value in headers.values()}))


def fuzz_block(data: bytes) -> Hashable:
    """A block from a damaged disk or of another protocol, as an AMQP consumer gets it."""
    try:
        found = from_block(data, extra={"x-delivery-count": 1})
    except PropertyError as error:
        return _kind(str(error))
    properties = decode_properties(found)
    assert (properties.headers or {})["x-delivery-count"] == 1
    offset, at = stream_properties(data)
    assert decode_properties(offset[:at] + b"\x7f" * 8 + offset[at + 8 :])
    block_headers(data)
    exchange, key = address_of(data, b"a/" * 200)
    assert len(key) <= 255
    return exchange == b"amq.topic", tuple(
        name for name, value in properties._asdict().items() if value is not None
    )


def fuzz_sasl(data: bytes) -> Hashable:
    """Choice of the mechanism, then the response."""
    if not data:
        return "short"
    mechanism = MECHANISMS[data[0] % len(MECHANISMS)]
    try:
        found = parse(mechanism, data[1:])
    except HardError as error:
        return mechanism, *_answer(error)  # type: ignore[misc] # a tuple, by its making
    return mechanism, bool(found.user), bool(found.password), bool(found.authorization_id)


_WORDS: Final = {**vars(methods), "Decimal": Decimal, "Timestamp": Timestamp, "Value": Value}
_SINGLE: Final = [raw for _, _, raw in traces("tables.txt", _WORDS)]
TABLES: Final = [*_SINGLE, *map(bytes.__add__, _SINGLE, _SINGLE[1:]), b"".join(_SINGLE)]
_SHORT: Final = (
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


def _having(name: str, **properties: Any) -> BasicProperties:
    return BasicProperties(f"text/{name}", **properties)


HEADERS: Final = [
    frames_of_content(1, encode_properties(properties), b"x" * 7, 0)[0][7:-1]
    for properties in (
        BasicProperties(),
        BasicProperties("text/plain", "gzip", {"a": 1, "b": ["c", {"d": None}]}, 2, 9, "c", "r"),
        BasicProperties(expiration="60000", message_id="m", timestamp=Timestamp(5), type="t"),
        BasicProperties(headers={}, user_id="guest", app_id="a", cluster_id="c"),
        *(BasicProperties(headers=decode_entries(raw)) for raw in TABLES),
        *(_having(name, **{name: "value"}) for name in _SHORT),
    )
]
BLOCKS: Final = [
    *(to_block(raw[12:], "exchange", "user") for raw in HEADERS),
    encode_block(
        [
            Item(PropertyKind.PAYLOAD_FORMAT, 1),
            Item(PropertyKind.CONTENT_TYPE, b"c"),
            Item(PropertyKind.REPLY_TO, b"a/b"),
            Item(PropertyKind.CORRELATION, b"\xff"),
            Item(PropertyKind.HEADER, text(b"v"), b"n"),
            Item(PropertyKind.PUBLISHER, b"me"),
            Item(PropertyKind.PROTOCOL, 1),
        ]
    ),
    encode_block(
        [Item(PropertyKind.HEADER, text(b"v"), b"n" * 256), Item(PropertyKind.REPLY_TO, b"r" * 200)]
    ),
    encode_block(
        [
            Item(PropertyKind.DEAD_REASON, b"r"),
            Item(PropertyKind.DEAD_QUEUE, b"q"),
            Item(PropertyKind.DEAD_OFFSET, 1),
            Item(PropertyKind.DEAD_ATTEMPTS, 1),
            Item(PropertyKind.DEAD_TIME, 1),
            Item(PropertyKind.DEAD_TRANSFER, b"t"),
        ]
    ),
]

TARGETS: Final[dict[str, tuple[Callable[[bytes], Hashable], list[bytes]]]] = {
    "method": (fuzz_method, [raw for _, _, raw in traces("methods.txt", _WORDS)]),
    "table": (fuzz_table, [*TABLES, *(len(raw).to_bytes(4, "big") + raw for raw in TABLES)]),
    "header": (fuzz_header, HEADERS),
    "headers": (fuzz_headers, TABLES),
    "block": (fuzz_block, BLOCKS),
    "sasl": (
        fuzz_sasl,
        [
            b"\0\0guest\0guest",
            b"\1\5LOGINS\0\0\0\5guest\10PASSWORDS\0\0\0\5guest",
            b"\2somebody",
            b"\3",
        ],
    ),
}
