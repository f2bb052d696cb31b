"""The AMQP 0.9.1 codec: what is written is read back, and nothing but its own errors comes of garbage."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pamqp.frame
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.base import Frame

from fluxmq.model.properties import Value
from fluxmq.model.properties import decode as decode_block
from fluxmq.protocols.amqp091.constants import FRAME_OVERHEAD
from fluxmq.protocols.amqp091.content import (
    BasicProperties,
    decode_properties,
    encode_properties,
    frames_of_content,
    split_header,
)
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.message_properties import (
    address_of,
    block_headers,
    from_block,
    stream_properties,
    to_block,
)
from fluxmq.protocols.amqp091.method_codec import decode, encode, frame
from fluxmq.protocols.amqp091.methods import Method
from fluxmq.protocols.amqp091.sasl import parse
from fluxmq.protocols.amqp091.tables import (
    FieldTableError,
    Table,
    decode_entries,
    decode_table,
    encode_table,
    read_values,
    write_values,
)
from tests.props.amqp091_values import METHODS, NAMES, PROPERTIES, TABLES, TEXT, TYPED

NAMES_OF_PAMQP = {"nowait": "no_wait", "exchange_type": "type"}


@given(METHODS, st.integers(0, 65_535))
def test_methods(method: Method, channel: int) -> None:
    event(type(method).__name__)
    payload = encode(method)
    found = decode(payload)
    assert type(found) is type(method)
    assert found == method
    whole = struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"
    assert frame(channel, method) == whole


@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")
@given(METHODS, st.integers(0, 65_535))
def test_another_reader(method: Any, channel: int) -> None:
    """pamqp reads what we write. Tables are left empty: it reads some values as others."""
    tables: dict[str, Table] = {
        key: {} for key, value in method._asdict().items() if isinstance(value, dict)
    }
    method = method._replace(**tables)
    written = frame(channel, method)
    if int.from_bytes(written[7:11], "big") not in commands.INDEX_MAPPING:
        return
    size, number, theirs = pamqp.frame.unmarshal(written)
    assert (size, number) == (len(written), channel)
    assert isinstance(theirs, Frame)
    found = {NAMES_OF_PAMQP.get(key, key): value for key, value in theirs}
    for key, value in method._asdict().items():
        other = found[key]
        if isinstance(value, bytes) and isinstance(other, str):
            other = other.encode()
        if isinstance(other, int) and other < 0:
            other += 1 << 64  # it takes a long long for signed
        assert other == value, key


@given(TABLES)
def test_tables(table: dict[str, object]) -> None:
    found = decode_table(encode_table(table))
    assert found == table
    assert list(found) == list(table)
    assert [type(each) for each in found.values()] == [type(each) for each in table.values()]


@given(st.lists(st.tuples(NAMES, TYPED), max_size=6))
def test_every_field_type(entries: list[tuple[bytes, Value]]) -> None:
    raw = write_values(entries)
    assert read_values(raw) == tuple(entries)
    # As plain values, whatever could be read can be written.
    plain = decode_entries(raw, lenient=True)
    assert decode_entries(encode_table(plain)[4:], lenient=True) == plain


@given(PROPERTIES, TEXT, TEXT)
def test_properties_and_blocks(properties: BasicProperties, exchange: str, user: str) -> None:
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    block = to_block(raw, exchange, user)
    assert from_block(block) == raw
    assert address_of(block, b"k") == (exchange.encode(), b"k")
    assert block_headers(block) == (properties.headers or {})
    offset, at = stream_properties(block)
    assert offset[at - 9 : at + 8] == b"m-offsetl" + bytes(8)
    assert decode_properties(offset).headers == {
        **{k: v for k, v in (properties.headers or {}).items() if k != "x-stream-offset"},
        "x-stream-offset": 0,
    }


@given(st.lists(st.tuples(NAMES, TYPED), min_size=1, max_size=6))
def test_headers_of_every_type_come_out_the_same(entries: list[tuple[bytes, Value]]) -> None:
    table = write_values(entries)
    raw = b"\x20\x00" + struct.pack(">I", len(table)) + table
    block = to_block(raw, "e", "u")
    assert from_block(block) == raw
    assert decode_block(block)


@given(st.binary(max_size=300), st.integers(0, 64), st.binary(max_size=20))
def test_frames_of_content(body: bytes, step: int, properties: bytes) -> None:
    frame_max = step + FRAME_OVERHEAD if step else 0
    header, *bodies = frames_of_content(3, properties, body, frame_max)
    assert split_header(header[7:-1]) == (len(body), properties)
    assert b"".join(each[7:-1] for each in bodies) == body
    for each in (header, *bodies):
        assert struct.unpack(">HI", each[1:7]) == (3, len(each) - FRAME_OVERHEAD)
        assert each[-1] == 0xCE
    assert all(len(each) == frame_max for each in bodies[:-1])


@given(METHODS, st.data())
def test_methods_of_damaged_bytes(method: Method, data: st.DataObject) -> None:
    raw = bytearray(encode(method))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(HardError):
        decode(bytes(raw))


@given(st.binary(max_size=60))
def test_garbage(raw: bytes) -> None:
    for read in (decode, split_header, decode_properties):
        with contextlib.suppress(HardError):
            read(raw)
    for mechanism in ("PLAIN", "AMQPLAIN", "EXTERNAL"):
        with contextlib.suppress(HardError):
            parse(mechanism, raw)
    for read_table in (decode_table, decode_entries):
        with contextlib.suppress(FieldTableError):
            read_table(raw)
