"""AMQP 0.9.1 on the wire, as a client sees it: every frame is kept, nothing is interpreted away.

Independent of the broker's codec on purpose: two readings of the specification are held against each other. The
table of methods is the specification's (with RabbitMQ's extensions), in its order of fields. Sources: AMQP 0.9.1
specification sections 2.3.5 and 4.2, its XML; RabbitMQ's list of errata for the types of table fields.
"""

from __future__ import annotations

import re
import struct
from typing import Any, NamedTuple

FRAME_END = 0xCE
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

SPECIFICATION = """
10.10 connection.start version_major:octet version_minor:octet server_properties:table mechanisms:longstr locales:longstr
10.11 connection.start-ok client_properties:table mechanism:shortstr response:longstr locale:shortstr
10.20 connection.secure challenge:longstr
10.21 connection.secure-ok response:longstr
10.30 connection.tune channel_max:short frame_max:long heartbeat:short
10.31 connection.tune-ok channel_max:short frame_max:long heartbeat:short
10.40 connection.open virtual_host:shortstr reserved_1:shortstr reserved_2:bit
10.41 connection.open-ok reserved_1:shortstr
10.50 connection.close reply_code:short reply_text:shortstr class_id:short method_id:short
10.51 connection.close-ok
10.60 connection.blocked reason:shortstr
10.61 connection.unblocked
10.70 connection.update-secret new_secret:longstr reason:shortstr
10.71 connection.update-secret-ok
20.10 channel.open reserved_1:shortstr
20.11 channel.open-ok reserved_1:longstr
20.20 channel.flow active:bit
20.21 channel.flow-ok active:bit
20.40 channel.close reply_code:short reply_text:shortstr class_id:short method_id:short
20.41 channel.close-ok
30.10 access.request realm:shortstr exclusive:bit passive:bit active:bit write:bit read:bit
30.11 access.request-ok ticket:short
40.10 exchange.declare ticket:short exchange:shortstr type:shortstr passive:bit durable:bit auto_delete:bit internal:bit nowait:bit arguments:table
40.11 exchange.declare-ok
40.20 exchange.delete ticket:short exchange:shortstr if_unused:bit nowait:bit
40.21 exchange.delete-ok
40.30 exchange.bind ticket:short destination:shortstr source:shortstr routing_key:shortstr nowait:bit arguments:table
40.31 exchange.bind-ok
40.40 exchange.unbind ticket:short destination:shortstr source:shortstr routing_key:shortstr nowait:bit arguments:table
40.51 exchange.unbind-ok
50.10 queue.declare ticket:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit nowait:bit arguments:table
50.11 queue.declare-ok queue:shortstr message_count:long consumer_count:long
50.20 queue.bind ticket:short queue:shortstr exchange:shortstr routing_key:shortstr nowait:bit arguments:table
50.21 queue.bind-ok
50.30 queue.purge ticket:short queue:shortstr nowait:bit
50.31 queue.purge-ok message_count:long
50.40 queue.delete ticket:short queue:shortstr if_unused:bit if_empty:bit nowait:bit
50.41 queue.delete-ok message_count:long
50.50 queue.unbind ticket:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table
50.51 queue.unbind-ok
60.10 basic.qos prefetch_size:long prefetch_count:short global:bit
60.11 basic.qos-ok
60.20 basic.consume ticket:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit exclusive:bit nowait:bit arguments:table
60.21 basic.consume-ok consumer_tag:shortstr
60.30 basic.cancel consumer_tag:shortstr nowait:bit
60.31 basic.cancel-ok consumer_tag:shortstr
60.40 basic.publish ticket:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit
60.50 basic.return reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr
60.60 basic.deliver consumer_tag:shortstr delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr
60.70 basic.get ticket:short queue:shortstr no_ack:bit
60.71 basic.get-ok delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr message_count:long
60.72 basic.get-empty reserved_1:shortstr
60.80 basic.ack delivery_tag:longlong multiple:bit
60.90 basic.reject delivery_tag:longlong requeue:bit
60.100 basic.recover-async requeue:bit
60.110 basic.recover requeue:bit
60.111 basic.recover-ok
60.120 basic.nack delivery_tag:longlong multiple:bit requeue:bit
85.10 confirm.select nowait:bit
85.11 confirm.select-ok
90.10 tx.select
90.11 tx.select-ok
90.20 tx.commit
90.21 tx.commit-ok
90.30 tx.rollback
90.31 tx.rollback-ok
"""

PROPERTIES = (
    ("content_type", "shortstr"),
    ("content_encoding", "shortstr"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "shortstr"),
    ("reply_to", "shortstr"),
    ("expiration", "shortstr"),
    ("message_id", "shortstr"),
    ("timestamp", "longlong"),
    ("type", "shortstr"),
    ("user_id", "shortstr"),
    ("app_id", "shortstr"),
    ("cluster_id", "shortstr"),
)
"""The content properties of class basic, from flag bit 15 down."""

INTEGERS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q"}
TABLE_INTEGERS = {
    "b": ">b",
    "B": ">B",
    "s": ">h",
    "u": ">H",
    "I": ">i",
    "i": ">I",
    "l": ">q",
    "f": ">f",
    "d": ">d",
    "T": ">Q",
}
"""Table fields of fixed size by their letter."""


class Shape(NamedTuple):
    """One method: its numbers, its name, its fields as (name, type)."""

    numbers: tuple[int, int]
    name: str
    fields: tuple[tuple[str, str], ...]


def _shapes() -> list[Shape]:
    found = []
    for line in SPECIFICATION.strip().splitlines():
        numbers, name, *fields = line.split()
        first, _, second = numbers.partition(".")
        pairs = tuple(tuple(field.split(":")) for field in fields)
        found.append(Shape((int(first), int(second)), name, pairs))  # type: ignore[arg-type]
    return found


BY_NAME = {shape.name: shape for shape in _shapes()}
BY_NUMBERS = {shape.numbers: shape for shape in _shapes()}


class Typed(NamedTuple):
    """A table value whose field type is named: what plain values cannot say."""

    letter: str
    value: Any


class Frame(NamedTuple):
    """One frame as it came."""

    kind: int
    channel: int
    payload: bytes


class Method(NamedTuple):
    """A method as it came."""

    name: str
    fields: dict[str, Any]


def shortstr(value: str | bytes) -> bytes:
    """A short string; bytes need not be UTF-8."""
    encoded = value.encode() if isinstance(value, str) else value
    return bytes([len(encoded)]) + encoded


def longstr(value: str | bytes) -> bytes:
    """A long string."""
    encoded = value.encode() if isinstance(value, str) else value
    return struct.pack(">I", len(encoded)) + encoded


def table(value: dict[str, Any]) -> bytes:
    """A field table."""
    return longstr(b"".join(shortstr(name) + field(each) for name, each in value.items()))


def field(value: Any) -> bytes:
    """A table value with its letter: as usual clients choose it, or as ``Typed`` says."""
    if isinstance(value, Typed):
        if value.letter in TABLE_INTEGERS:
            return value.letter.encode() + struct.pack(TABLE_INTEGERS[value.letter], value.value)
        if value.letter in "Sx":
            return value.letter.encode() + longstr(value.value)
        raise ValueError(f"no way to write a field {value.letter!r}")
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t" + bytes([value])
    if isinstance(value, int):
        fits = -(2**31) <= value < 2**31
        return b"I" + struct.pack(">i", value) if fits else b"l" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"S" + longstr(value)
    if isinstance(value, list):
        return b"A" + longstr(b"".join(map(field, value)))
    if isinstance(value, dict):
        return b"F" + table(value)
    raise TypeError(f"no table field for {type(value).__name__}")


class Reader:
    """Takes fields off a payload."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        """The next bytes; ``ValueError`` where there are fewer."""
        if self.at + size > len(self.data):
            raise ValueError("a payload ends within a field")
        self.at += size
        return self.data[self.at - size : self.at]

    def integer(self, form: str) -> Any:
        """One value of fixed size."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self, form: str) -> str:
        """A string; what is not UTF-8 is shown escaped."""
        return self.take(self.integer(form)).decode(errors="backslashreplace")

    def table(self) -> dict[str, Any]:
        """A field table."""
        inner = Reader(self.take(self.integer(">I")))
        found = {}
        while inner.at < len(inner.data):
            name = inner.string(">B")
            found[name] = inner.value()
        return found

    def value(self) -> Any:
        """One table value."""
        letter = self.take(1).decode("latin-1")
        if letter == "t":
            return bool(self.integer(">B"))
        if letter in TABLE_INTEGERS:
            return self.integer(TABLE_INTEGERS[letter])
        if letter in "Sx":
            return self.string(">I")
        if letter == "F":
            return self.table()
        if letter == "V":
            return None
        if letter == "D":
            scale = self.integer(">B")
            return f"{self.integer('>i')}e-{scale}"
        if letter == "A":
            inner = Reader(self.take(self.integer(">I")))
            found = []
            while inner.at < len(inner.data):
                found.append(inner.value())
            return found
        raise ValueError(f"a table has a field of type {letter!r}")


def arguments(shape: Shape, given: dict[str, Any]) -> bytes:
    """A method's fields; those not given are zero or empty, bits share octets."""
    if unknown := set(given) - {name for name, _ in shape.fields}:
        raise ValueError(f"{shape.name} has no {', '.join(sorted(unknown))}")
    written = b""
    bits: list[bool] = []
    for name, kind in shape.fields:
        value = given.get(name)
        if kind == "bit":
            bits.append(bool(value))
            continue
        written += _octets(bits)
        bits = []
        if kind in INTEGERS:
            written += struct.pack(INTEGERS[kind], value or 0)
        elif kind == "table":
            written += table(value or {})
        else:
            text = value if isinstance(value, bytes) else str("" if value is None else value)
            written += (shortstr if kind == "shortstr" else longstr)(text)
    return written + _octets(bits)


def _octets(bits: list[bool]) -> bytes:
    return bytes([sum(bit << place for place, bit in enumerate(bits))]) if bits else b""


def frame(kind: int, channel: int, payload: bytes, end: int = FRAME_END) -> bytes:
    """One frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


def method(channel: int, name: str, given: dict[str, Any] | None = None) -> bytes:
    """One method frame."""
    shape = BY_NAME[name]
    return frame(
        METHOD, channel, struct.pack(">HH", *shape.numbers) + arguments(shape, given or {})
    )


def properties(given: dict[str, Any]) -> bytes:
    """Property flags and the properties themselves."""
    flags, written = 0, b""
    for place, (name, kind) in enumerate(PROPERTIES):
        if name not in given:
            continue
        flags |= 1 << (15 - place)
        value = given[name]
        if kind in INTEGERS:
            written += struct.pack(INTEGERS[kind], value)
        else:
            written += table(value) if kind == "table" else shortstr(value)
    if unknown := set(given) - {name for name, _ in PROPERTIES}:
        raise ValueError(f"no such properties: {', '.join(sorted(unknown))}")
    return struct.pack(">H", flags) + written


def header(channel: int, size: int, given: dict[str, Any], class_id: int = 60) -> bytes:
    """A content header frame."""
    return frame(HEADER, channel, struct.pack(">HHQ", class_id, 0, size) + properties(given))


def content(channel: int, given: dict[str, Any], body: bytes, frame_max: int) -> bytes:
    """Header and body frames of one message."""
    written = header(channel, len(body), given)
    step = frame_max - 8
    for at in range(0, len(body), step):
        written += frame(BODY, channel, body[at : at + step])
    return written


def read_method(payload: bytes) -> Method:
    """A method frame's payload. ``ValueError`` where it is not one, or has bytes behind its fields."""
    reader = Reader(payload)
    numbers = reader.integer(">H"), reader.integer(">H")
    shape = BY_NUMBERS.get(numbers)
    if shape is None:
        raise ValueError(f"no method {numbers[0]}.{numbers[1]}")
    found: dict[str, Any] = {}
    octet, place = 0, 8
    for name, kind in shape.fields:
        if kind == "bit":
            if place == 8:
                octet, place = reader.integer(">B"), 0
            found[name] = bool(octet >> place & 1)
            place += 1
            continue
        place = 8
        if kind in INTEGERS:
            found[name] = reader.integer(INTEGERS[kind])
        elif kind == "table":
            found[name] = reader.table()
        else:
            found[name] = reader.string(">B" if kind == "shortstr" else ">I")
    if reader.at != len(payload):
        raise ValueError(f"{shape.name} has {len(payload) - reader.at} bytes too many")
    return Method(shape.name, found)


def read_header(payload: bytes) -> tuple[int, dict[str, Any]]:
    """Body size and properties of a content header."""
    reader = Reader(payload)
    reader.take(4)
    size = reader.integer(">Q")
    flags = reader.integer(">H")
    found: dict[str, Any] = {}
    for place, (name, kind) in enumerate(PROPERTIES):
        if not flags >> (15 - place) & 1:
            continue
        if kind in INTEGERS:
            found[name] = reader.integer(INTEGERS[kind])
        else:
            found[name] = reader.table() if kind == "table" else reader.string(">B")
    return size, found


GENERATED = (
    # Which of the two RabbitMQ says depends on who is first.
    (re.compile(r"(vhost '[^']*') is (down|deleted)(?! or inaccessible)"), r"\1 is gone"),
    (re.compile(r"amq\.gen-[A-Za-z0-9_-]+"), "amq.gen-*"),
    (re.compile(r"amq\.ctag-[A-Za-z0-9_-]+"), "amq.ctag-*"),
    (re.compile(r"amq\.rabbitmq\.reply-to\.[^\s'\",}]+"), "amq.rabbitmq.reply-to.*"),
)
"""Names a broker makes up, and what stands for them in an outcome."""


def plain(text: str) -> str:
    """A text with names that a broker made up replaced."""
    for pattern, shown in GENERATED:
        text = pattern.sub(shown, text)
    return text
