"""The transfer as clients write it, read without the general decoder: the one performative that comes
with every message.

Any other form of it, and any that is wrong, is left to `fluxmq.protocols.amqp10.performatives.read`,
which tells both alike.

Source: OASIS AMQP 1.0 part 2, section 2.7.5.
"""

from __future__ import annotations

from typing import Final

from fluxmq.protocols.amqp10.performatives import TransferFrame

_START: Final = b"\x00\x53\x14\xc0"
_FLAGS: Final = {0x40: None, 0x41: True, 0x42: False}
_CONSTANTS: Final = {0x40: None, 0x43: 0}
_NO_TAG: Final = {0x40: None}
_FIELDS_MIN: Final = 4
_FIELDS_MAX: Final = 11
_NOTHING: Final = frozenset(b"\x40\x42")
_NO_STATE: Final = b"\x40\x40"
"""The fields rcv-settle-mode and state, which are no booleans."""


def read_transfer(data: bytes) -> tuple[TransferFrame, int] | None:
    """Return a transfer and where it ends; None for anything but its usual form: a short list with
    handle, delivery-id, delivery-tag, message-format, and perhaps settled and more."""
    if not data.startswith(_START) or len(data) < 6:
        return None
    end = 5 + data[4]
    count = data[5]
    if end > len(data) or not _FIELDS_MIN <= count <= _FIELDS_MAX:
        return None
    try:
        handle, at = _number(data, 6)
        delivery, at = _number(data, at)
        tag, at = _tag(data, at)
        form, at = _number(data, at)
        settled = _FLAGS[data[at]] if count > _FIELDS_MIN else None
        more = count > _FIELDS_MIN + 1 and _FLAGS[data[at + 1]]
    except (IndexError, KeyError):
        return None
    at += min(count - _FIELDS_MIN, 2)
    rest = data[at:end]
    whole = at <= end and len(rest) == max(count - _FIELDS_MIN - 2, 0)
    usual = _NO_STATE.startswith(rest[:2]) and _NOTHING.issuperset(rest)
    if handle is None or not whole or not usual:
        return None
    return TransferFrame(handle, delivery, tag, form, settled, more or False), end


def _number(data: bytes, at: int) -> tuple[int | None, int]:
    """Return a uint or null, and where it ends. Raises KeyError for others."""
    code = data[at]
    if code == 0x52:
        return data[at + 1], at + 2
    if code == 0x70:
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    return _CONSTANTS[code], at + 1


def _tag(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return a short binary or null, and where it ends. Raises KeyError for others."""
    if data[at] != 0xA0:
        return _NO_TAG[data[at]], at + 1
    stop = at + 2 + data[at + 1]
    return data[at + 2 : stop], stop
