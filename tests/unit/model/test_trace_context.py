"""Trace contexts are read as the W3C's recommendation says, and invalid ones are none."""

from __future__ import annotations

import pytest

from fluxmq.model.properties import Item, PropertyKind, Value, encode, text
from fluxmq.model.trace_context import (
    PARENT_BYTES_MAX,
    STATE_BYTES_MAX,
    TraceContext,
    context_of_block,
    parse_context,
)

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
SPAN = 0x00F067AA0BA902B7
PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def header(name: bytes, value: bytes | Value) -> Item:
    return Item(PropertyKind.HEADER, text(value) if isinstance(value, bytes) else value, name)


def test_a_context_of_today() -> None:
    assert parse_context(PARENT, b"a=1,b=2") == TraceContext(TRACE, SPAN, 1, "a=1,b=2")


@pytest.mark.parametrize(("flags", "sampled"), [(b"00", False), (b"01", True), (b"03", True)])
def test_the_sampled_flag(flags: bytes, sampled: bool) -> None:
    context = parse_context(PARENT[:-2] + flags)
    assert context is not None
    assert context.sampled is sampled


def test_a_later_version_may_have_more() -> None:
    longer = b"cc" + PARENT[2:] + b"-what-follows"
    assert parse_context(longer) == TraceContext(TRACE, SPAN, 1)


@pytest.mark.parametrize(
    "parent",
    [
        b"",
        PARENT[:-1],
        PARENT + b"-more",
        PARENT + b".",
        b"cc" + PARENT[2:] + b".more",
        b"ff" + PARENT[2:],
        PARENT.upper(),
        b" " + PARENT,
        PARENT + b"\n",
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + b"-01",
        b"cc" + PARENT[2:] + b"-" + b"x" * PARENT_BYTES_MAX,
    ],
)
def test_what_is_none(parent: bytes) -> None:
    assert parse_context(parent) is None


def test_a_state_that_is_too_long_is_not_read() -> None:
    assert parse_context(PARENT, b"x" * (STATE_BYTES_MAX + 1)) == TraceContext(TRACE, SPAN, 1)


def test_a_block_has_one_at_the_top() -> None:
    state = [header(b"tracestate", b"a=1"), header(b"tracestate", b"b=2")]
    block = encode([header(b"other", b"x"), *state, header(b"traceparent", PARENT)])
    assert context_of_block(block) == TraceContext(TRACE, SPAN, 1, "a=1,b=2")
    table = Value("F", ((b"traceparent", text(PARENT)),))
    for none in (
        encode([header(b"inside", table)]),
        encode([header(b"traceparent", PARENT)] * 2),
        encode([header(b"traceparent", Value("l", 1))]),
        b"\xff",
        b"",
    ):
        assert context_of_block(none) is None


def test_the_share_is_drawn_by_the_lower_half_of_the_id() -> None:
    """As OpenTelemetry's TraceIdRatioBased, so that one decision holds everywhere."""
    low, high = TraceContext(1 << 64 | 1, SPAN, 1), TraceContext((1 << 64) - 1, SPAN, 1)
    assert [low.drawn(0.1), high.drawn(0.9)] == [True, False]
    assert [low.drawn(0.0), high.drawn(1.0)] == [False, True]
