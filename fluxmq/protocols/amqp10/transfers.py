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
_FIELDS_MIN: Final = 4
_FIELDS_MAX: Final = 11
_NOTHING: Final = frozenset(b"\x40\x42")


def read_transfer(data: bytes) -> tuple[TransferFrame, int] | None:
    """Return a transfer and where it ends; None for anything but its usual form: a short list with
    handle, delivery-id, delivery-tag, message-format, and perhaps settled and more."""
    if not data.startswith(_START) or len(data) < 6:
        return None
    end = 5 + data[4]
    count = data[5]
    if end > len(data) or not _FIELDS_MIN <= count <= _FIELDS_MAX:
        return None
    numbers: list[int | None] = []
    tag: bytes | None = None
    at = 6
    try:
        for index in range(_FIELDS_MIN):
            code = data[at]
            if index == 2:
                if code == 0xA0:
                    stop = at + 2 + data[at + 1]
                    tag = data[at + 2 : stop]
                    at = stop
                    continue
                if code != 0x40:
                    return None
                at += 1
            elif code == 0x43:
                numbers.append(0)
                at += 1
            elif code == 0x52:
                numbers.append(data[at + 1])
                at += 2
            elif code == 0x70:
                numbers.append(int.from_bytes(data[at + 1 : at + 5], "big"))
                at += 5
            elif code == 0x40 and index:
                numbers.append(None)
                at += 1
            else:
                return None
        settled: bool | None = None
        more = False
        if count > _FIELDS_MIN:
            settled = _FLAGS[data[at]]
            at += 1
        if count > _FIELDS_MIN + 1:
            more = _FLAGS[data[at]] or False
            at += 1
    except (IndexError, KeyError):
        return None
    rest = data[at:end]
    if at > end or len(rest) != max(count - _FIELDS_MIN - 2, 0):
        return None
    if rest and not _NOTHING.issuperset(rest):
        return None
    handle = numbers[0]
    assert handle is not None
    return TransferFrame(handle, numbers[1], tag, numbers[2], settled, more), end
