"""What a filter matches, by the examples of MQTT 5 section 4.7."""

import pytest

from fluxmq.routing.topics import is_reserved, is_wildcard, matches, split


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        (b"sport/tennis/player1/#", b"sport/tennis/player1", True),
        (b"sport/tennis/player1/#", b"sport/tennis/player1/ranking", True),
        (b"sport/tennis/player1/#", b"sport/tennis/player1/score/wimbledon", True),
        (b"sport/tennis/player1/#", b"sport/tennis/player10", False),
        (b"sport/#", b"sport", True),
        (b"#", b"a", True),
        (b"#", b"/", True),
        (b"sport/tennis/+", b"sport/tennis/player1", True),
        (b"sport/tennis/+", b"sport/tennis/player1/ranking", False),
        (b"sport/tennis/+", b"sport/tennis", False),
        (b"sport/+", b"sport", False),
        (b"sport/+", b"sport/", True),
        (b"+/+", b"/finance", True),
        (b"/+", b"/finance", True),
        (b"+", b"/finance", False),
        (b"+/tennis/#", b"sport/tennis", True),
        (b"#", b"$SYS/monitor", False),
        (b"+/monitor/Clients", b"$SYS/monitor/Clients", False),
        (b"$SYS/#", b"$SYS/monitor", True),
        (b"$SYS/#", b"$SYS", True),
        (b"$SYS/monitor/+", b"$SYS/monitor/Clients", True),
        (b"a/+", b"a/$b", True),
        (b"a", b"A", False),
        (b"a", b"a/", False),
        (b"/", b"/", True),
    ],
)
def test_matches(topic_filter: bytes, topic: bytes, expected: bool) -> None:
    assert matches(topic_filter, topic) is expected


def test_parts_of_topics() -> None:
    assert split(b"/a//b") == [b"", b"a", b"", b"b"]
    assert is_wildcard(b"a/+/b")
    assert is_wildcard(b"#")
    assert not is_wildcard(b"a/b")
    assert is_reserved(b"$a")
    assert not is_reserved(b"a/$")
    assert not is_reserved(b"")
