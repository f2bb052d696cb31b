"""Filters on routing keys: MQTT's `+` and `#`."""

from __future__ import annotations

import pytest

from fluxmq.queues.filters import Filter, routing_key


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"$queue/q", b""),
        (b"$queue/q/a/b", b"a/b"),
        (b"$queue/q/", b""),
        (b"$queue/qq/a", b"$queue/qq/a"),
        (b"sensors/1", b"sensors/1"),
        (b"", b""),
    ],
)
def test_the_routing_key_is_what_follows_the_queue(key: bytes, expected: bytes) -> None:
    assert routing_key(key, b"$queue/q") == expected


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        (b"images/#", b"$queue/q/images", True),
        (b"images/#", b"$queue/q/images/png/1", True),
        (b"images/#", b"$queue/q/imagesx", False),
        (b"images/+", b"$queue/q/images/png", True),
        (b"images/+", b"$queue/q/images", False),
        (b"images/+", b"$queue/q/images/png/1", False),
        (b"+/png", b"$queue/q/images/png", True),
        (b"#", b"$queue/q", True),
        (b"#", b"captured/topic", True),
        (b"captured/+", b"captured/topic", True),
        (b"a", b"$queue/q/a", True),
        (b"a", b"$queue/q/b", False),
        (b"a/+/c", b"$queue/q/a//c", True),
        (b"#", b"$queue/q/$x", True),
    ],
)
def test_patterns_match_as_topic_filters_do(pattern: bytes, key: bytes, expected: bool) -> None:
    wanted = Filter(pattern, "q")
    assert wanted(key) is expected
    assert wanted(key) is expected


def test_remembered_answers_are_bounded() -> None:
    wanted = Filter(b"+", "q")
    assert all(wanted(b"%d" % number) for number in range(10_000))
    assert len(wanted._known) <= 4_096
