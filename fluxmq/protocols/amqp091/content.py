"""Content of AMQP 0.9.1: the header frame, a message's properties, and its frames.

Properties travel as two bytes of flags and then those present, in the order of the fields below.
Text is UTF-8 by convention only: other bytes become surrogate escapes, and are written back
unchanged.

Source: AMQP 0-9-1 sections 1.4.6 (properties of class basic), 2.3.5.2 and 4.2.6 (content framing).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.constants import (
    CLASS_BASIC,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    METHOD_PUBLISH,
    SHORT_STRING_BYTES_MAX,
    ReplyCode,
)
from fluxmq.protocols.amqp091.errors import HardError, unknown_frame
from fluxmq.protocols.amqp091.tables import FieldTableError, Table, decode_entries, encode_table

NO_PROPERTIES: Final = b"\0\0"
"""Properties of a message without any: flags, all clear."""


class BasicProperties(NamedTuple):
    """A message's properties; None for an absent one. `timestamp` is in seconds, `expiration`
    milliseconds as text."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: Timestamp | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


HEADERS: Final = BasicProperties._fields.index("headers")
TIMESTAMP: Final = BasicProperties._fields.index("timestamp")

_WIDTHS: Final = {
    BasicProperties._fields.index("delivery_mode"): 1,
    BasicProperties._fields.index("priority"): 1,
    TIMESTAMP: 8,
}
"""Numeric properties, with their bytes; except the headers all others are short strings."""

_HEADER: Final = struct.Struct(">HHQ")
_FRAME: Final = struct.Struct(">BHI")
_FLAGS: Final = struct.Struct(">H")
_LENGTH: Final = struct.Struct(">I")
_FIRST: Final = 0x8000
_UNUSED: Final = 0x0003
"""Flags without a property: one is free, the last announces more flags, which class basic does not
have."""

_END: Final = bytes((FRAME_END,))


# --- the header frame ---


def split_header(payload: bytes) -> tuple[int, bytes]:
    """Return the body size and the encoded properties of a content header's payload.

    Raises `HardError`: 501 if it is too short, 505 if it is not of class basic or has a weight.
    """
    if len(payload) < _HEADER.size:
        raise unknown_frame(FRAME_HEADER, payload)
    class_id, weight, size = _HEADER.unpack_from(payload)
    if class_id != CLASS_BASIC:
        raise unexpected(f"one for class {class_id}")
    if weight:
        raise unexpected("non content header frame")
    return size, payload[_HEADER.size :]


def unexpected(found: str) -> HardError:
    """Return the error for another frame where a content header is due (505), in RabbitMQ's
    words."""
    text = f"expected content header for class {CLASS_BASIC}, got {found} instead"
    return HardError(ReplyCode.UNEXPECTED_FRAME, text, CLASS_BASIC, METHOD_PUBLISH)


def frames_of_content(
    channel: int, properties: bytes, body: bytes | memoryview, frame_max: int
) -> list[bytes]:
    """Return header and body frames, each at most `frame_max` bytes unless that is 0.

    The header is one frame whatever its size: the specification has no other form.
    """
    size = len(body)
    frames = [
        b"".join(
            (
                _FRAME.pack(FRAME_HEADER, channel, _HEADER.size + len(properties)),
                _HEADER.pack(CLASS_BASIC, 0, size),
                properties,
                _END,
            )
        )
    ]
    step = frame_max - FRAME_OVERHEAD if frame_max else max(size, 1)
    view = memoryview(body)
    for at in range(0, size, step):
        piece = view[at : at + step]
        frames.append(b"".join((_FRAME.pack(FRAME_BODY, channel, len(piece)), piece, _END)))
    return frames


# --- properties ---


def decode_properties(raw: bytes) -> BasicProperties:
    """Decode the properties that follow the body size. Raises `HardError` (502) if they are
    malformed."""
    values: list[object] = []
    for index, content in enumerate(read_fields(raw)):
        if content is None:
            values.append(None)
        elif index == HEADERS:
            values.append(headers_of(content))
        elif index == TIMESTAMP:
            values.append(Timestamp(int.from_bytes(content, "big")))
        elif index in _WIDTHS:
            values.append(content[0])
        else:
            values.append(content.decode("utf-8", "surrogateescape"))
    return BasicProperties(*values)  # type: ignore[arg-type]  # in the order of the fields


def headers_of(content: bytes) -> Table:
    """Return headers as plain values, from a table without its length. Raises `HardError` (502)."""
    try:
        return decode_entries(content, lenient=True)
    except FieldTableError as error:
        raise malformed(f"headers: {error}") from None


def encode_properties(properties: BasicProperties) -> bytes:
    """Encode properties, to follow the body size. Raises `ValueError` for an unsuitable value."""
    fields: list[bytes | None] = []
    for index, value in enumerate(properties):
        if value is None:
            fields.append(None)
        elif isinstance(value, dict):
            fields.append(encode_table(value)[_LENGTH.size :])
        elif isinstance(value, int):
            try:
                fields.append(value.to_bytes(_WIDTHS[index], "big"))
            except OverflowError:
                raise ValueError(f"{BasicProperties._fields[index]} out of range") from None
        else:
            fields.append(value.encode("utf-8", "surrogateescape"))
    return write_fields(fields)


def read_fields(raw: bytes) -> list[bytes | None]:
    """Return each property's raw content, in the order of `BasicProperties`, without lengths; None
    if absent.

    Raises `HardError` (502) for unknown flags and for too few or too many bytes.
    """
    if len(raw) < _FLAGS.size:
        raise malformed("no flags")
    flags = _FLAGS.unpack_from(raw)[0]
    if flags & _UNUSED:
        raise malformed("flags that stand for no property")
    fields: list[bytes | None] = [None] * len(BasicProperties._fields)
    at, end = _FLAGS.size, len(raw)
    for index in range(len(fields)):
        if not flags & _FIRST >> index:
            continue
        width = _WIDTHS.get(index)
        if width is not None:
            stop = at + width
        elif index == HEADERS:
            if at + _LENGTH.size > end:
                raise malformed("the end inside a property")
            stop = at + _LENGTH.size + _LENGTH.unpack_from(raw, at)[0]
            at += _LENGTH.size
        else:
            if at >= end:
                raise malformed("the end inside a property")
            stop = at + 1 + raw[at]
            at += 1
        if stop > end:
            raise malformed("the end inside a property")
        fields[index] = raw[at:stop]
        at = stop
    if at != end:
        raise malformed("bytes behind the last property")
    return fields


def write_fields(fields: Sequence[bytes | None]) -> bytes:
    """Encode raw contents, the inverse of `read_fields`. Raises `ValueError` for a too long short
    string."""
    flags = 0
    out = [b""]
    for index, content in enumerate(fields):
        if content is None:
            continue
        flags |= _FIRST >> index
        if index == HEADERS:
            out.append(_LENGTH.pack(len(content)))
        elif index not in _WIDTHS:
            if len(content) > SHORT_STRING_BYTES_MAX:
                raise ValueError(f"{BasicProperties._fields[index]} of more than 255 bytes")
            out.append(bytes((len(content),)))
        out.append(content)
    out[0] = _FLAGS.pack(flags)
    return b"".join(out)


def malformed(text: str) -> HardError:
    """Return the error for malformed properties; RabbitMQ has only 541 for them."""
    return HardError(
        ReplyCode.SYNTAX_ERROR, f"malformed content properties: {text}", CLASS_BASIC, METHOD_PUBLISH
    )
