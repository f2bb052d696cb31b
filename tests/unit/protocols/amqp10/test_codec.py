"""The codec of AMQP 1.0 on hostile values: keys of maps, arrays of values without bytes."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp10.codec import EMPTY_ITEMS_MAX, MalformedError, decode_whole, encode
from fluxmq.protocols.amqp10.types import Array, Described


def _listed(items: list[bytes]) -> bytes:
    """A list of encoded values."""
    content = len(items).to_bytes(4, "big") + b"".join(items)
    return b"\xd0" + len(content).to_bytes(4, "big") + content


def test_a_described_key_with_a_list_as_descriptor() -> None:
    raw = b"\xc1\x05\x02\x00\x45\x40\x41"
    found = decode_whole(raw)
    assert found == {Described([], None): True}
    assert encode(found) == raw


def test_values_without_bytes_are_counted_over_all_arrays_of_a_value() -> None:
    one = b"\xe0\x02\x80\x45"  # 128 empty lists
    assert EMPTY_ITEMS_MAX == 256
    assert [len(each.items) for each in decode_whole(_listed([one, one]))] == [128, 128]
    for more in (one, b"\xe0\x02\x01\x40"):
        with pytest.raises(MalformedError, match="without bytes"):
            decode_whole(_listed([one, one, more]))
    assert len(decode_whole(_listed([b"\x40"] * 1000))) == 1000


@pytest.mark.parametrize("constructor", [b"\x00\x40\x00", b"\x01", b"\x57", b"\xa2", b"\xc2"])
def test_an_empty_array_of_an_unknown_type(constructor: bytes) -> None:
    with pytest.raises(MalformedError, match="unknown constructor"):
        decode_whole(b"\xe0" + bytes((1 + len(constructor),)) + b"\0" + constructor)
    assert decode_whole(b"\xe0\x02\0\xa1") == Array(0xB1, [])
