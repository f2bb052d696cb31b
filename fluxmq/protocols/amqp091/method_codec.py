"""Methods of AMQP 0.9.1 as bytes, decoded and encoded by the table of their fields.

A method frame's payload is class and method as two bytes each, then the fields; adjacent bits share
a byte, the first the lowest. Undecodable methods are refused as in RabbitMQ, with 501. Where
RabbitMQ drops the connection without an answer, there is one: 501 for a short string that is not
UTF-8, 502 for a malformed field table, 540 for an unknown method.

Source: AMQP 0-9-1 sections 1.4, 2.3.5.1 and 4.2.4 to 4.2.5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn, cast

from fluxmq.protocols.amqp091.constants import (
    FRAME_END,
    FRAME_METHOD,
    SHORT_STRING_BYTES_MAX,
    ReplyCode,
)
from fluxmq.protocols.amqp091.errors import HardError, octets, unknown_frame
from fluxmq.protocols.amqp091.methods import LAYOUTS, BasicAck, Method
from fluxmq.protocols.amqp091.tables import FieldTableError, Table, decode_entries, encode_table

_HEAD: Final = struct.Struct(">HH")
_FRAME: Final = struct.Struct(">BHI")
_ACKNOWLEDGEMENT: Final = struct.Struct(">BHIHHQBB")
_END: Final = bytes((FRAME_END,))
_FIXED: Final = {
    "B": struct.Struct(">B"),
    "H": struct.Struct(">H"),
    "I": struct.Struct(">I"),
    "Q": struct.Struct(">Q"),
}
_NOTHING: Final[dict[str, object]] = {"H": 0, "s": "", "S": b"", "?": False}
"""Values written for reserved fields."""


class _Layout(NamedTuple):
    """Wire layout of one method. `fields`: code, and whether it is reserved."""

    head: bytes
    make: Callable[..., Method]
    fields: tuple[tuple[str, bool], ...]


def _layouts() -> dict[type, _Layout]:
    return {
        make: _Layout(
            _HEAD.pack(class_id, method_id),
            cast("Callable[..., Method]", make),
            tuple((code[-1], code[0] == "-") for code in fields.split()),
        )
        for class_id, method_id, make, fields in LAYOUTS
    }


_BY_TYPE: Final = _layouts()
_BY_HEAD: Final = {layout.head: layout for layout in _BY_TYPE.values()}


def ids(method: Method | type[Method]) -> tuple[int, int]:
    """Return class and method number, for close methods."""
    kind = method if isinstance(method, type) else type(method)
    class_id, method_id = _HEAD.unpack(_BY_TYPE[kind].head)
    return class_id, method_id


# --- reading ---


def decode(payload: bytes) -> Method:
    """Decode the method in a method frame's payload, whichever end sent it.

    Raises `HardError`: 501 for too few or too many bytes and for short strings that are not UTF-8,
    502 for a malformed field table, 540 for an unknown method.
    """
    layout = _BY_HEAD.get(payload[:4])
    if layout is None:
        if len(payload) < _HEAD.size:
            raise unknown_frame(FRAME_METHOD, payload)
        class_id, method_id = _HEAD.unpack_from(payload)
        text = f"unknown method {method_id} of class {class_id}"
        raise HardError(ReplyCode.NOT_IMPLEMENTED, text, class_id, method_id)
    if not layout.fields and len(payload) == _HEAD.size:
        return layout.make()
    try:
        return layout.make(*_read_fields(payload, layout.fields))
    except (IndexError, struct.error):
        _refuse(payload, ReplyCode.FRAME_ERROR, f"cannot decode {octets(payload[4:])}")
    except UnicodeDecodeError:
        _refuse(payload, ReplyCode.FRAME_ERROR, "Malformed UTF-8 in shortstr")
    except FieldTableError as error:
        _refuse(payload, ReplyCode.SYNTAX_ERROR, f"malformed field table: {error}")


def _refuse(payload: bytes, code: ReplyCode, text: str) -> NoReturn:
    raise HardError(code, text, *_HEAD.unpack_from(payload)) from None


def _read_fields(payload: bytes, fields: tuple[tuple[str, bool], ...]) -> list[object]:
    """Return the values of all fields that are not reserved. Raises `IndexError` or `struct.error`
    if they do not fit."""
    values: list[object] = []
    at = _HEAD.size
    octet = bit = 0
    for code, reserved in fields:
        value: object
        if code == "?":
            if bit & 0xFF == 0:
                octet, bit = payload[at], 1
                at += 1
            value = octet & bit != 0
            bit <<= 1
        else:
            bit = 0
            value, at = _read_field(payload, at, code)
        if not reserved:
            values.append(value)
    if at != len(payload):
        raise IndexError("bytes behind the fields")
    return values


def _read_field(payload: bytes, at: int, code: str) -> tuple[object, int]:
    """Return a field other than a bit, and the start of the next one."""
    fixed = _FIXED.get(code)
    if fixed is not None:
        return fixed.unpack_from(payload, at)[0], at + fixed.size
    if code == "s":
        start = at + 1
        stop = start + payload[at]
    else:
        start = at + 4
        stop = start + int(_FIXED["I"].unpack_from(payload, at)[0])
    if stop > len(payload):
        raise IndexError("the end inside a field")
    content = payload[start:stop]
    if code == "s":
        return content.decode(), stop
    return decode_entries(content) if code == "F" else content, stop


# --- writing ---


def encode(method: Method) -> bytes:
    """Encode a method frame's payload. Raises `ValueError` for a value that its field cannot
    hold."""
    layout = _BY_TYPE[type(method)]
    if not layout.fields:
        return layout.head
    out = bytearray(layout.head)
    values = iter(cast("tuple[object, ...]", method))
    bit = 0
    for code, reserved in layout.fields:
        value = _NOTHING[code] if reserved else next(values)
        if code == "?":
            if bit & 0xFF == 0:
                out.append(0)
                bit = 1
            if value:
                out[-1] |= bit
            bit <<= 1
        else:
            bit = 0
            _put_field(out, code, value)
    return bytes(out)


def _put_field(out: bytearray, code: str, value: object) -> None:
    fixed = _FIXED.get(code)
    if fixed is not None:
        try:
            out += fixed.pack(value)
        except struct.error as error:
            raise ValueError(f"a number that its field cannot hold: {error}") from None
    elif code == "s":
        raw = cast("str", value).encode()
        if len(raw) > SHORT_STRING_BYTES_MAX:
            raise ValueError("a short string of more than 255 bytes")
        out.append(len(raw))
        out += raw
    elif code == "S":
        content = cast("bytes", value)
        out += _FIXED["I"].pack(len(content))
        out += content
    else:
        out += encode_table(cast("Table", value))


def frame(channel: int, method: Method) -> bytes:
    """Encode a whole method frame. Raises `ValueError` for a value that its field cannot hold."""
    if type(method) is BasicAck:
        return _ACKNOWLEDGEMENT.pack(
            FRAME_METHOD, channel, 13, 60, 80, method.delivery_tag, method.multiple, FRAME_END
        )
    payload = encode(method)
    return _FRAME.pack(FRAME_METHOD, channel, len(payload)) + payload + _END
