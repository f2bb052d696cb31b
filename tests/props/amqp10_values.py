"""Strategies for AMQP 1.0: values of every type, and the same in Proton's classes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
from hypothesis import strategies as st

from fluxmq.protocols.amqp10.types import (
    Array,
    Byte,
    Char,
    DecimalBits,
    Described,
    Float,
    Int,
    Milliseconds,
    Short,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
UUIDS = st.binary(min_size=16, max_size=16).map(Uuid)
SYMBOLS = st.text(st.characters(max_codepoint=127), max_size=40).map(Symbol)


def _numbers(kind: Any, bits: int, signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return (st.integers(low, high) | st.integers(max(low, -200), min(high, 300))).map(kind)


INTEGERS = (
    _numbers(UByte, 8, False)
    | _numbers(UShort, 16, False)
    | _numbers(UInt, 32, False)
    | _numbers(ULong, 64, False)
    | _numbers(Byte, 8, True)
    | _numbers(Short, 16, True)
    | _numbers(Int, 32, True)
    | _numbers(int, 64, True)
    | _numbers(Milliseconds, 64, True)
)
SCALARS = (
    st.none()
    | st.booleans()
    | INTEGERS
    | st.floats(allow_nan=False)
    | st.floats(allow_nan=False, width=32).map(Float)
    | st.characters(exclude_categories=["Cs"]).map(Char)
    | st.binary(min_size=4, max_size=4).map(DecimalBits)
    | st.binary(min_size=8, max_size=8).map(DecimalBits)
    | st.binary(min_size=16, max_size=16).map(DecimalBits)
    | UUIDS
    | TEXT
    | SYMBOLS
    | st.binary(max_size=300)
)
ARRAYS = (
    st.lists(SYMBOLS, max_size=6).map(lambda items: Array(0xB3, list(items)))
    | st.lists(TEXT, max_size=6).map(lambda items: Array(0xB1, list(items)))
    | st.lists(_numbers(ULong, 64, False), max_size=6).map(lambda items: Array(0x80, items))
    | st.lists(_numbers(int, 64, True), max_size=6).map(lambda items: Array(0x81, items))
    | st.lists(st.booleans(), max_size=6).map(lambda items: Array(0x56, list(items)))
    | st.lists(UUIDS, max_size=6).map(lambda items: Array(0x98, list(items)))
)
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT | SYMBOLS, inner, max_size=4)
        # Proton does not read a description directly inside another.
        | st.builds(
            Described, SYMBOLS | _numbers(ULong, 64, False), SCALARS | st.lists(inner, max_size=3)
        )
    ),
    max_leaves=12,
)

_PROTON = {
    UByte: proton.ubyte,
    UShort: proton.ushort,
    UInt: proton.uint,
    ULong: proton.ulong,
    Byte: proton.byte,
    Short: proton.short,
    Int: proton.int32,
    Milliseconds: proton.timestamp,
    Float: proton.float32,
    Char: proton.char,
    Symbol: proton.symbol,
}
_PROTON_TYPES: dict[int, tuple[Any, Any]] = {
    0xB3: (proton.Data.SYMBOL, proton.symbol),
    0xB1: (proton.Data.STRING, str),
    0x80: (proton.Data.ULONG, proton.ulong),
    0x81: (proton.Data.LONG, int),
    0x56: (proton.Data.BOOL, bool),
    0x98: (proton.Data.UUID, lambda value: UUID(bytes=bytes(value))),
}


def to_proton(value: Any) -> Any:
    """Return the value as Proton's classes have it."""
    if isinstance(value, DecimalBits):
        if len(value) == 4:
            return proton.decimal32(int.from_bytes(value, "big"))
        if len(value) == 8:
            return proton.decimal64(int.from_bytes(value, "big"))
        return proton.decimal128(bytes(value))
    if isinstance(value, Uuid):
        return UUID(bytes=bytes(value))
    if isinstance(value, Described):
        return proton.Described(to_proton(value.descriptor), to_proton(value.value))
    if isinstance(value, Array):
        kind, made = _PROTON_TYPES[value.code]
        undescribed: Any = proton.UNDESCRIBED
        return proton.Array(undescribed, kind, *map(made, value.items))
    if isinstance(value, list):
        return [to_proton(each) for each in value]
    if isinstance(value, dict):
        return {to_proton(key): to_proton(each) for key, each in value.items()}
    made_of = _PROTON.get(type(value))
    return value if made_of is None else made_of(value)
