"""Messages between nodes are encoded as protobuf's own library does, and read as it reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.cluster import greeting
from fluxmq.cluster.connection import StreamHello
from fluxmq.cluster.errors import MalformedStream
from fluxmq.cluster.protobuf import bytes_field, bytes_of, fields, number_field, number_of
from tests.protobuf.cluster_pb2 import Answer, Greeting, Message, Question

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
HELLOS = st.builds(
    StreamHello,
    names,
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    names | st.just(""),
    st.booleans(),
)


@given(HELLOS)
def test_greetings_are_those_of_the_library(hello: StreamHello) -> None:
    ((_, sent),) = greeting.as_metadata(hello)
    assert sent == Greeting(version=greeting.VERSION, **hello._asdict()).SerializeToString()
    assert greeting.from_metadata([(greeting.KEY, sent)]) == hello


@given(names | st.just(""), st.binary(max_size=300))
def test_questions_and_answers_are_those_of_the_library(name: str, body: bytes) -> None:
    question = bytes_field(1, name.encode()) + bytes_field(2, body)
    assert question == Question(name=name, body=body).SerializeToString()
    assert (bytes_of(question, 1).decode(), bytes_of(question, 2)) == (name, body)
    answer = bytes_field(1, body)
    assert answer == Answer(body=body).SerializeToString()
    assert bytes_of(answer, 1) == body


# Keys and values as they come on the wire, so that most of what is drawn is a message, or nearly.
fragments = st.sampled_from(
    [
        *(number_field(number, 1 << size) for number in (1, 3, 200) for size in (0, 31, 40, 63)),
        *(bytes_field(number, bytes(size)) for number in (1, 2, 200) for size in (1, 130)),
        b"\x08" + b"\xff" * 9 + b"\x01",
        b"\x08" + b"\xff" * 10,
        b"\x09" + bytes(8),
        b"\x0d" + bytes(4),
        b"\x0b\x0a\x01x\x0c",
        b"\x0b",
        b"\x0c",
        b"\x0e",
        b"\x00",
        b"\x0a\x05",
    ]
)


def of_library(read: Callable[[bytes], object], data: bytes) -> object:
    """What the library makes of bytes; None when it refuses them."""
    try:
        return read(data)
    except DecodeError:
        return None


@given(st.lists(fragments, max_size=4).map(b"".join) | st.binary(max_size=40))
def test_any_bytes_are_read_as_by_the_library(data: bytes) -> None:
    expected = of_library(Message.FromString, data)
    try:
        found = Message(
            frames=[
                value for number, value in fields(data) if number == 1 and type(value) is bytes
            ],
            piece=bytes_of(data, 2),
            last=number_of(data, 3) != 0,
        )
    except ValueError:
        assert expected is None
    else:
        assert isinstance(expected, Message)
        assert (list(found.frames), found.piece, found.last) == (
            list(expected.frames),
            expected.piece,
            expected.last,
        )


@given(st.binary(max_size=60))
def test_any_bytes_are_a_greeting_only_where_they_are_one_for_the_library(data: bytes) -> None:
    data = number_field(1, greeting.VERSION) + bytes_field(2, b"n") + data
    expected = of_library(Greeting.FromString, data)
    try:
        hello = greeting.from_metadata([(greeting.KEY, data)])
    except MalformedStream as problem:
        if "not one" in str(problem):
            assert expected is None
    else:
        assert isinstance(expected, Greeting)
        assert hello == StreamHello(*(getattr(expected, name) for name in StreamHello._fields))


@pytest.mark.parametrize(
    "data",
    [b"\x00\x00", b"\x0a\x05abc", b"\x0b", b"\x0c", b"\x0b\x14", b"\x0e", b"\x08\x80", b"\x0d\x00"],
)
def test_fields_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(fields(data))
