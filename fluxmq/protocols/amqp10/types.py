"""AMQP 1.0's types as Python values.

The natural value of each type where there is one: None, bool, int (long), float (double), str
(string), bytes (binary), list, dict (map). The others are small classes below, derived
from the natural value, so that a decoded value is encoded as the type that it came as.

Source: OASIS AMQP 1.0 part 1, section 1.6.
"""

from __future__ import annotations

from typing import Final


class Symbol(str):
    """ASCII text from a constrained domain (1.6.21)."""

    __slots__ = ()


class UByte(int):
    """An unsigned integer of 8 bits (1.6.3)."""

    __slots__ = ()


class UShort(int):
    """An unsigned integer of 16 bits (1.6.4)."""

    __slots__ = ()


class UInt(int):
    """An unsigned integer of 32 bits (1.6.5)."""

    __slots__ = ()


class ULong(int):
    """An unsigned integer of 64 bits (1.6.6)."""

    __slots__ = ()


class Byte(int):
    """A signed integer of 8 bits (1.6.7)."""

    __slots__ = ()


class Short(int):
    """A signed integer of 16 bits (1.6.8)."""

    __slots__ = ()


class Int(int):
    """A signed integer of 32 bits (1.6.9)."""

    __slots__ = ()


class Float(float):
    """A binary floating point number of 32 bits (1.6.11). A NaN stays one, its bits may not."""

    __slots__ = ()


class DecimalBits(bytes):
    """A decimal floating point number as its 4, 8 or 16 bytes (1.6.13 to 1.6.15)."""

    __slots__ = ()


class Uuid(bytes):
    """A universally unique identifier, 16 bytes (1.6.18)."""

    __slots__ = ()


class Char(str):
    """One Unicode character (1.6.16)."""

    __slots__ = ()


class Milliseconds(int):
    """A timestamp: milliseconds since the epoch, signed (1.6.17)."""

    __slots__ = ()


class Described:
    """A value with a descriptor, which names its meaning (1.3)."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Described)
            and self.descriptor == other.descriptor
            and self.value == other.value
        )

    def __hash__(self) -> int:
        return hash((repr(self.descriptor), repr(self.value)))

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


class Array:
    """Values of one type (1.6.24).

    ``code``: the constructor that encodes them, a widest form of its type. ``descriptor``: of each
    value, None for none. ``items``: the values, without the descriptor.
    """

    __slots__ = ("code", "descriptor", "items")

    def __init__(self, code: int, items: list[object], descriptor: object = None) -> None:
        self.code = code
        self.items = items
        self.descriptor = descriptor

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Array)
            and self.code == other.code
            and self.descriptor == other.descriptor
            and self.items == other.items
        )

    def __hash__(self) -> int:
        return hash((self.code, repr(self.items)))

    def __repr__(self) -> str:
        return f"Array({self.code:#x}, {self.items!r}, {self.descriptor!r})"


SYMBOL_CODE: Final = 0xB3
"""Constructor of long symbols, which arrays of capabilities have."""


def symbols(*names: str) -> Array:
    """Return an array of symbols."""
    return Array(SYMBOL_CODE, [Symbol(name) for name in names])
