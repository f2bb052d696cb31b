"""Field tables: every type's bytes, what is refused, and the limits."""

from __future__ import annotations

import struct
from decimal import Decimal

import pytest

from fluxmq.model.properties import DEPTH_MAX, ITEMS_MAX, Timestamp, Value
from fluxmq.protocols.amqp091.tables import (
    ENTRIES_MAX,
    TABLE_DEPTH_MAX,
    FieldTableError,
    decode_entries,
    decode_table,
    encode_table,
    plain,
    read_values,
    typed,
    write_values,
)
from tests.unit.protocols.amqp091.traces import traces

TRACES = list(traces("tables.txt", {"Decimal": Decimal, "Timestamp": Timestamp, "Value": Value}))


def _plain(value: object) -> object:
    """What is read of a table that was written with this."""
    if isinstance(value, Value):
        return plain(value)
    return (
        {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value
    )


@pytest.mark.parametrize(("text", "value", "raw"), TRACES, ids=[each[0] for each in TRACES])
def test_traces(text: str, value: object, raw: bytes) -> None:
    assert isinstance(value, dict), text
    whole = struct.pack(">I", len(raw)) + raw
    assert encode_table(value) == whole
    assert decode_table(whole) == _plain(value)
    assert decode_entries(raw) == _plain(value)
    assert write_values(read_values(raw)) == raw


def test_every_type_is_traced() -> None:
    letters = {read_values(raw)[0][1].tag for _, _, raw in TRACES if raw}
    assert letters == set("tbBsuIilfdDTVSxAF")


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        pytest.param(b"\x01at\x07", True, id="any octet but 0 is true"),
        pytest.param(b"\x01aL" + b"\xff" * 8, -1, id="L is l"),
        pytest.param(b"\x01aS\0\0\0\x01\xff", b"\xff", id="text that is none"),
        pytest.param(b"\x01aV\x01at\x00", False, id="the last of one name counts"),
        pytest.param(b"\x01aD\x00\xff\xff\xff\xff", Decimal(-1), id="decimals are signed"),
    ],
)
def test_read_as_rabbitmq_does(raw: bytes, value: object) -> None:
    found = decode_entries(raw)
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


def test_types_of_what_is_read() -> None:
    found = decode_entries(b"\x01aT" + bytes(8) + b"\x01bI" + bytes(4) + b"\x01ct\x01")
    assert [type(value) for value in found.values()] == [Timestamp, int, bool]


def test_doubled_names_stay_where_types_do() -> None:
    raw = b"\x01aV\x01at\x01"
    assert read_values(raw) == ((b"a", Value("V", None)), (b"a", Value("t", True)))
    assert write_values(read_values(raw)) == raw


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x01", "name"),
        (b"\x05ab", "name"),
        (b"\x01a", "name"),
        (b"\x01aU\0\0", "not known"),
        (b"\x01a\xff", "not known"),
        (b"\x01at", "end inside a value"),
        (b"\x01ab", "end inside a value"),
        (b"\x01aI\0\0\0", "end inside a value"),
        (b"\x01aT\0\0\0\0", "end inside a value"),
        (b"\x01aD\0\0\0\0", "end inside a value"),
        (b"\x01aS\0\0\0", "length"),
        (b"\x01aS\0\0\0\x02b", "past the end"),
        (b"\x01ax\xff\xff\xff\xff", "past the end"),
        (b"\x01aF\0\0\0\x02\x01b\x01cV", "name"),
        (b"\x01aA\0\0\0\x01I\0\0\0\0", "end inside a value"),
        (b"\x01\xffV", "not UTF-8"),
        (b"\x01aF\0\0\0\x03\x01\xffV", "not UTF-8"),
    ],
)
def test_what_is_no_table(raw: bytes, text: str) -> None:
    with pytest.raises(FieldTableError, match=text):
        decode_entries(raw)


@pytest.mark.parametrize("raw", [b"", b"\0\0\0", b"\0\0\0\x01", b"\0\0\0\0\0"])
def test_a_length_that_is_not_the_tables(raw: bytes) -> None:
    with pytest.raises(FieldTableError, match="length"):
        decode_table(raw)


def test_lenient_names_go_back_as_they_came() -> None:
    raw = b"\x01\xffF\0\0\0\x03\x01\xfeV"
    found = decode_entries(raw, lenient=True)
    assert found == {"\udcff": {"\udcfe": None}}
    assert encode_table(found)[4:] == raw


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1 << 63, "cannot hold"),
        (-(1 << 63) - 1, "cannot hold"),
        (Timestamp(-1), "cannot hold"),
        (Value("B", 256), "cannot hold"),
        (Value("f", 1e300), "cannot hold"),
        (Decimal("NaN"), "32 bits"),
        (Decimal("Infinity"), "32 bits"),
        (Decimal("1e-256"), "32 bits"),
        (Decimal("1e99"), "32 bits"),
        (Decimal(1 << 31), "cannot hold"),
        ("\ud800", "UTF-8"),
        ({"n" * 256: 1}, "255"),
        (NotImplemented, "type NotImplementedType"),
        ({1, 2}, "type set"),
    ],
    ids=repr,
)
def test_what_no_field_holds(value: object, text: str) -> None:
    with pytest.raises(FieldTableError, match=text):
        encode_table({"a": value})


def test_a_name_is_a_short_string() -> None:
    assert decode_table(encode_table({"n" * 255: 1})) == {"n" * 255: 1}
    with pytest.raises(FieldTableError, match="255"):
        encode_table({"n" * 256: 1})
    with pytest.raises(FieldTableError, match="255"):
        write_values([(b"n" * 256, Value("V", None))])


def test_integers_of_one_width() -> None:
    value = typed({"a": [1, True, Timestamp(2)]}, integers="l")
    assert value == Value(
        "F",
        ((b"a", Value("A", (Value("l", 1), Value("t", True), Value("T", 2)))),),
    )


def _nested(depth: int) -> bytes:
    raw = b""
    for _ in range(depth):
        raw = b"A" + struct.pack(">I", len(raw)) + raw
    return b"\x01a" + raw


def test_depth() -> None:
    deepest = _nested(TABLE_DEPTH_MAX)
    assert encode_table(decode_entries(deepest))[4:] == deepest
    with pytest.raises(FieldTableError, match="deep"):
        decode_entries(_nested(TABLE_DEPTH_MAX + 1))
    value: object = []
    for _ in range(TABLE_DEPTH_MAX):
        value = [value]
    with pytest.raises(FieldTableError, match="deep"):
        encode_table({"a": value})
    with pytest.raises(FieldTableError, match="deep"):
        encode_table({"a": [value] * 2})


def test_values() -> None:
    assert len(read_values(b"\x00V" * ENTRIES_MAX)) == ENTRIES_MAX
    with pytest.raises(FieldTableError, match="more values"):
        decode_entries(b"\x00V" * (ENTRIES_MAX + 1))
    with pytest.raises(FieldTableError, match="more values"):
        decode_entries(b"\x00A" + struct.pack(">I", ENTRIES_MAX) + b"V" * ENTRIES_MAX)


def test_what_a_table_may_hold_fits_a_block() -> None:
    assert 2 * ENTRIES_MAX + 32 < ITEMS_MAX
    assert TABLE_DEPTH_MAX <= DEPTH_MAX
