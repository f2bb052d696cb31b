"""The codec of AMQP 1.0 against itself and against Proton, a second reader and writer."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.amqp10.codec import MalformedError, decode, decode_whole, encode, skip
from tests.props.amqp10_values import VALUES, to_proton


@given(VALUES)
def test_a_value_is_decoded_as_it_was_encoded(value: Any) -> None:
    raw = encode(value)
    found, at = decode(raw)
    assert (found, at) == (value, len(raw))
    assert type(found) is type(value)
    assert skip(raw, 0, len(raw)) == len(raw)


@given(VALUES)
def test_proton_reads_what_is_encoded(value: Any) -> None:
    data = proton.Data()
    raw = encode(value)
    assert data.decode(raw) == len(raw)
    data.next()
    assert data.get_object() == to_proton(value)


@given(VALUES)
def test_what_proton_writes_is_decoded(value: Any) -> None:
    data = proton.Data()
    data.put_object(to_proton(value))
    assert decode_whole(bytes(data.encode())) == value


@given(VALUES, st.integers(0, 400))
def test_a_part_of_a_value_is_malformed(value: Any, cut: int) -> None:
    raw = encode(value)
    part = raw[: cut % len(raw)]
    with pytest.raises(MalformedError):
        decode(part)
    with pytest.raises(MalformedError):
        skip(part, 0, len(part))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_malformed(raw: bytes) -> None:
    with suppress(MalformedError):
        value, at = decode(raw)
        assert at <= len(raw)
        assert skip(raw, 0, len(raw)) == at
        with suppress(ValueError):  # what only arrays of foreign types cannot
            assert repr(decode_whole(encode(value))) == repr(value)
