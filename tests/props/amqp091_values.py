"""Strategies for AMQP 0.9.1: field tables, methods, properties."""

from __future__ import annotations

from decimal import Decimal
from typing import cast

from hypothesis import strategies as st

from fluxmq.model.properties import Timestamp, Value
from fluxmq.protocols.amqp091.content import BasicProperties
from fluxmq.protocols.amqp091.methods import LAYOUTS, Method

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
TIMESTAMPS = st.integers(0, (1 << 64) - 1).map(Timestamp)
DECIMALS = st.builds(
    lambda unscaled, scale: Decimal(unscaled).scaleb(-scale),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(0, 255),
)
SCALARS = (
    st.none()
    | st.booleans()
    | INTEGERS
    | st.floats(allow_nan=False)
    | DECIMALS
    | TEXT
    | st.binary(max_size=20)
    | TIMESTAMPS
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
TABLES = st.dictionaries(TEXT, VALUES, max_size=6)

_RANGES = {"b": 8, "s": 16, "I": 32, "l": 64}
TYPED_SCALARS = (
    st.one_of(
        [
            st.builds(Value, st.just(tag), st.integers(-(1 << bits - 1), (1 << bits - 1) - 1))
            for tag, bits in _RANGES.items()
        ]
    )
    | st.one_of(
        [
            st.builds(Value, st.just(tag), st.integers(0, (1 << bits) - 1))
            for tag, bits in {"B": 8, "u": 16, "i": 32, "T": 64}.items()
        ]
    )
    | st.builds(Value, st.just("t"), st.booleans())
    | st.just(Value("V", None))
    | st.builds(Value, st.sampled_from("Sx"), st.binary(max_size=12))
    | st.builds(Value, st.just("d"), st.floats(allow_nan=False))
    | st.builds(Value, st.just("f"), st.floats(allow_nan=False, width=32))
    | st.builds(
        Value,
        st.just("D"),
        st.tuples(st.integers(0, 255), st.integers(-(1 << 31), (1 << 31) - 1)),
    )
)
NAMES = st.binary(max_size=12)
TYPED = st.recursive(
    TYPED_SCALARS,
    lambda inner: (
        st.builds(Value, st.just("A"), st.lists(inner, max_size=4).map(tuple))
        | st.builds(Value, st.just("F"), st.lists(st.tuples(NAMES, inner), max_size=4).map(tuple))
    ),
    max_leaves=12,
)
"""Typed values of every type."""

_FIELDS: dict[str, st.SearchStrategy[object]] = {
    "B": st.integers(0, 255),
    "H": st.integers(0, 65_535),
    "I": st.integers(0, (1 << 32) - 1),
    "Q": st.integers(0, (1 << 64) - 1),
    "s": TEXT,
    "S": st.binary(max_size=40),
    "F": TABLES,
    "?": st.booleans(),
}


def _method(layout: tuple[int, int, type[Method], str]) -> st.SearchStrategy[Method]:
    _, _, make, codes = layout
    fields = [_FIELDS[code] for code in codes.split() if code[0] != "-"]
    return cast("st.SearchStrategy[Method]", st.builds(make, *fields))


METHODS = st.one_of([_method(layout) for layout in LAYOUTS])
"""Every method, with every value of every field."""


def _maybe(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


PROPERTIES = st.builds(
    BasicProperties,
    **{
        name: _maybe(
            {
                "headers": TABLES,
                "delivery_mode": _FIELDS["B"],
                "priority": _FIELDS["B"],
                "timestamp": TIMESTAMPS,
            }.get(name, TEXT)
        )
        for name in BasicProperties._fields
    },
)
