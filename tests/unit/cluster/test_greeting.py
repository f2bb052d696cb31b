"""Greetings come back as they were; what is none, or of another version, is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.cluster import greeting
from fluxmq.cluster.connection import StreamHello
from fluxmq.cluster.errors import MalformedStream
from tests.protobuf.cluster_pb2 import Greeting

HELLO = StreamHello("node1", 3, 8, (1 << 63) - 1, "group:orders")


def test_a_greeting_comes_back_as_it_was() -> None:
    others: dict[str, Any] = {"shard": -1, "workers": 0, "epoch": 0, "tells_time": True}
    others["combines"] = True
    for hello in (HELLO, HELLO._replace(**others)):
        assert greeting.from_metadata([("user-agent", "x"), *greeting.as_metadata(hello)]) == hello


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": greeting.VERSION + 1}, f"version {greeting.VERSION + 1}"),
        ({"version": 0}, "version 0"),
        ({"node": ""}, "an invalid name"),
        ({"node": "n" * 257}, "an invalid name"),
        ({"purpose": "p" * 257}, "an invalid name"),
    ],
)
def test_other_greetings_are_refused(change: dict[str, Any], problem: str) -> None:
    fields: dict[str, Any] = {"version": greeting.VERSION, "node": "node1", "purpose": "shard"}
    sent = Greeting(**{**fields, **change})
    with pytest.raises(MalformedStream, match=problem):
        greeting.from_metadata([(greeting.KEY, sent.SerializeToString())])


def test_none_is_refused_and_so_are_two() -> None:
    for metadata in (None, [], [(greeting.KEY, "text")], greeting.as_metadata(HELLO) * 2):
        with pytest.raises(MalformedStream, match="greeting is missing"):
            greeting.from_metadata(metadata)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_greeting_or_refused(data: bytes) -> None:
    try:
        found = greeting.from_metadata([(greeting.KEY, data)])
    except MalformedStream:
        return
    assert found.node
