"""Values of arguments: to msgpack and back, one form of bytes, names of types."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.properties import Timestamp
from fluxmq.routing.topology.values import (
    canonical,
    described,
    pack_value,
    same,
    shown,
    type_name,
    unpack_value,
)

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.integers(0, 1 << 40).map(Timestamp),
    _TEXT,
    st.binary(max_size=5),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


def typed(value: Any) -> Any:
    """A value with the types that ``==`` does not see."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value), value


@given(_VALUES)
def test_values_come_back_with_their_types(value: Any) -> None:
    packed = msgpack.unpackb(msgpack.packb(pack_value(value)))
    assert typed(unpack_value(packed)) == typed(value)


@given(st.dictionaries(_TEXT, _VALUES, max_size=4))
def test_order_makes_no_other_bytes(table: dict[str, Any]) -> None:
    assert canonical(dict(reversed(table.items()))) == canonical(table)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (1, "1"),
        ("a", b"a"),
        (5, Timestamp(5)),
        ([1], [True]),
        ({"a": 1}, {"a": 1.0}),
    ],
)
def test_what_python_or_people_take_for_equal(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert canonical({"x": one}) != canonical({"x": other})
    assert same(one, one)


@pytest.mark.parametrize(
    "packed",
    [
        [],
        ["x"],
        ["t"],
        ["t", "5"],
        ["t", True],
        ["d", "five"],
        ["d", 5],
        ["d", "1", "2"],
        {1: 2},
        {"a": [1]},
        object(),
    ],
)
def test_what_is_no_value(packed: Any) -> None:
    with pytest.raises(ValueError, match="arguments"):
        unpack_value(packed)


@pytest.mark.parametrize(
    "value", [1 << 64, -(1 << 63) - 1, object(), {1: 2}, "\ud800", {"\ud800": 1}]
)
def test_what_cannot_be_packed(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - some are the codec's own
        pack_value(value)


def test_depth_is_bounded_both_ways() -> None:
    nested: Any = 1
    for _ in range(70):
        nested = [nested]
    with pytest.raises(ValueError, match="deeply"):
        pack_value(nested)
    packed: Any = 1
    for _ in range(70):
        packed = ["l", packed]
    with pytest.raises(ValueError, match="deeply"):
        unpack_value(packed)


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (None, "void", "None"),
        (True, "bool", "true"),
        (False, "bool", "false"),
        (5, "signedint", "5"),
        (1 << 31, "long", "2147483648"),
        (-(1 << 31), "signedint", "-2147483648"),
        (1.5, "double", "1.5"),
        (Decimal("1.5"), "decimal", "1.5"),
        (Timestamp(5), "timestamp", "5"),
        ("a", "longstr", "a"),
        (b"\xff", "longstr", "\ufffd"),
        ([1], "array", "[1]"),
        ({}, "table", "{}"),
    ],
)
def test_names_of_types_and_texts(value: Any, name: str, text: str) -> None:
    assert type_name(value) == name
    assert shown(value) == text
    assert described(value, missing=False) == f"the value '{text}' of type '{name}'"
    assert described(value, missing=True) == "none"
