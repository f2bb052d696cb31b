"""The data types of MQTT 5 section 1.5 at their edges."""

from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.protocols.mqtt import wire
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason


def reader(data: bytes) -> wire.Reader:
    return wire.Reader(data, 0, len(data))


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
        (268_435_455, "ffffff7f"),
    ],
)
def test_variable_integers_of_table_1_1(value: int, raw: str) -> None:
    data = bytes.fromhex(raw)
    assert wire.write_variable_integer(value) == data
    assert wire.decode_length(data, 0) == (value, len(data))
    assert wire.decode_length(memoryview(b"x" + data + b"yz"), 1) == (value, 1 + len(data))
    for cut in range(len(data)):
        assert wire.decode_length(data[:cut], 0) is None


@pytest.mark.parametrize("raw", ["ffffffff", "80808080", "8080808001", "ffffffff7f"])
def test_a_fifth_byte_is_malformed_as_soon_as_the_fourth_asks_for_it(raw: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        wire.decode_length(bytes.fromhex(raw), 0)
    assert caught.value.reason == Reason.MALFORMED_PACKET


@pytest.mark.parametrize("raw", ["8000", "808000", "ff00", "80808000"])
def test_padded_integers_are_malformed_unless_the_version_lets_them(raw: str) -> None:
    """[MQTT-1.5.5-1]"""
    data = bytes.fromhex(raw)
    with pytest.raises(ProtocolError):
        wire.decode_length(data, 0)
    found = wire.decode_length(data, 0, minimal=False)
    assert found == (0x7F if raw == "ff00" else 0, len(data))


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"a\0b", id="[MQTT-1.5.4-2] U+0000"),
        pytest.param(b"\xed\xa0\x80", id="[MQTT-1.5.4-1] surrogate"),
        pytest.param(b"\xed\xbf\xbf", id="[MQTT-1.5.4-1] low surrogate"),
        pytest.param(b"\xc0\x80", id="overlong U+0000"),
        pytest.param(b"\xf5\x80\x80\x80", id="beyond U+10FFFF"),
        pytest.param(b"\xff", id="never a byte of UTF-8"),
        pytest.param(b"\xe2\x82", id="cut short"),
    ],
)
def test_ill_formed_strings(raw: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        reader(wire.write_binary(raw)).string()
    assert caught.value.reason == Reason.MALFORMED_PACKET
    assert raw not in caught.value.text.encode()


@pytest.mark.parametrize("text", ["", "a", "\ufeffmark", "\U0010ffff", "\ufffe\x01", "é/漢"])
def test_strings_are_kept_as_they_are(text: str) -> None:
    """[MQTT-1.5.4-3]: U+FEFF is a character like others; non-characters may be accepted."""
    assert reader(wire.write_string(text)).string() == text


def test_every_field_ends_at_the_readers_end() -> None:
    for method in (
        wire.Reader.byte,
        wire.Reader.two_byte_integer,
        wire.Reader.four_byte_integer,
        wire.Reader.variable_integer,
        wire.Reader.binary,
        wire.Reader.string,
        wire.Reader.string_pair,
    ):
        with pytest.raises(ProtocolError):
            method(wire.Reader(b"\x00\x01ab", 0, 0))
    with pytest.raises(ProtocolError):
        wire.Reader(b"\x00\x03abc", 0, 4).binary()
    with pytest.raises(ProtocolError):
        reader(b"abc").part(4)
    with pytest.raises(ProtocolError):
        reader(b"a").finish()


def test_parts_and_rest() -> None:
    whole = reader(b"abcdef")
    part = whole.part(2)
    assert part.rest() == b"ab"
    assert whole.remaining == 4
    assert whole.rest() == b"cdef"
    whole.finish()


@pytest.mark.parametrize(
    ("write", "value"),
    [
        (wire.write_variable_integer, -1),
        (wire.write_variable_integer, wire.VARIABLE_INTEGER_MAX + 1),
        (wire.write_two_byte_integer, 65_536),
        (wire.write_two_byte_integer, -1),
        (wire.write_four_byte_integer, 1 << 32),
        (wire.write_binary, bytes(wire.FIELD_BYTES_MAX + 1)),
        (wire.write_string, "a\0"),
        (wire.write_string, "\ud800"),
        (wire.write_string, "x" * (wire.FIELD_BYTES_MAX + 1)),
        (wire.write_string_pair, ("a", "\0")),
    ],
)
def test_what_does_not_fit_is_not_written(write: Callable[[Any], object], value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any message: the caller is at fault
        write(value)
