"""The retained store: stamps, limits, tombstones, expiry, and searches in portions."""

import pytest

from fluxmq.routing.retained import RetainedStore, RetainOutcome


@pytest.fixture
def store() -> RetainedStore[str]:
    return RetainedStore(max_messages=3, max_bytes=100, max_tombstones=4, tombstone_age=10.0)


def filled(*topics: bytes) -> RetainedStore[int]:
    made: RetainedStore[int] = RetainedStore(10_000_000, 10_000_000)
    for number, topic in enumerate(topics):
        assert made.set(topic, number, 1, (number, 0)) is RetainOutcome.STORED
    return made


def test_set_get_delete(store: RetainedStore[str]) -> None:
    assert store.get(b"a/b") is None
    assert store.set(b"a/b", "one", 10, (1, 0), 5.0) is RetainOutcome.STORED
    record = store.get(b"a/b")
    assert record is not None
    assert (record.message, record.size, record.stamp) == ("one", 10, (1, 0))
    assert record.expires_at == 5.0
    assert (len(store), store.byte_count) == (1, 10)
    assert store.set(b"a/b", "two", 7, (2, 0)) is RetainOutcome.STORED
    assert (len(store), store.byte_count) == (1, 7)
    assert store.delete(b"a/b", (3, 0), 0.0) is RetainOutcome.DELETED
    assert (len(store), store.byte_count, store.tombstone_count) == (0, 0, 1)
    assert store.get(b"a/b") is None


def test_the_greater_stamp_wins_in_whatever_order(store: RetainedStore[str]) -> None:
    assert store.set(b"a", "b wins", 1, (5, 2)) is RetainOutcome.STORED
    assert store.set(b"a", "older", 1, (4, 26)) is RetainOutcome.STALE
    assert store.set(b"a", "tie", 1, (5, 1)) is RetainOutcome.STALE
    assert store.set(b"a", "again", 1, (5, 2)) is RetainOutcome.STALE
    assert store.delete(b"a", (5, 2), 0.0) is RetainOutcome.STALE
    assert store.delete(b"a", (5, 3), 0.0) is RetainOutcome.DELETED
    assert store.set(b"a", "late", 1, (5, 2)) is RetainOutcome.STALE
    assert store.delete(b"a", (5, 1), 0.0) is RetainOutcome.STALE
    assert store.delete(b"a", (6, 1), 0.0) is RetainOutcome.ABSENT
    assert store.set(b"a", "between", 1, (5, 4)) is RetainOutcome.STALE
    assert store.set(b"a", "new", 1, (7, 1)) is RetainOutcome.STORED
    assert store.tombstone_count == 0


def test_limits_refuse_and_keep_the_old(store: RetainedStore[str]) -> None:
    for topic in (b"a", b"b", b"c"):
        store.set(topic, "x", 30, (1, 0))
    assert store.set(b"d", "x", 1, (1, 0)) is RetainOutcome.TOO_MANY_MESSAGES
    assert store.get(b"d") is None
    assert store.set(b"a", "y", 41, (2, 0)) is RetainOutcome.TOO_MANY_BYTES
    record = store.get(b"a")
    assert record is not None
    assert record.message == "x"
    assert store.set(b"a", "y", 40, (2, 0)) is RetainOutcome.STORED
    assert store.byte_count == 100
    assert store.set(b"d", "x", 50, (1, 0), limited=False) is RetainOutcome.STORED
    assert (len(store), store.byte_count) == (4, 150)
    assert store.set(b"d", "x", 50, (2, 0)) is RetainOutcome.TOO_MANY_BYTES


def test_tombstones_are_bounded_by_number(store: RetainedStore[str]) -> None:
    for number in range(6):
        assert store.delete(b"%d" % number, (9, 0), float(number)) is RetainOutcome.ABSENT
    assert store.tombstone_count == 4
    assert [topic for topic, _stamp in store.tombstones()] == [b"2", b"3", b"4", b"5"]
    assert store.set(b"0", "forgotten", 1, (1, 0)) is RetainOutcome.STORED
    assert store.set(b"5", "remembered", 1, (1, 0)) is RetainOutcome.STALE


def test_tombstones_are_bounded_by_age(store: RetainedStore[str]) -> None:
    store.delete(b"a/x", (9, 0), 0.0)
    store.delete(b"b", (9, 0), 5.0)
    store.delete(b"a/x", (10, 0), 6.0)
    assert store.purge_tombstones(14.9) == 0
    assert store.purge_tombstones(15.0) == 1
    assert list(store.tombstones()) == [(b"a/x", (10, 0))]
    assert store.purge_tombstones(16.0) == 1
    assert store.tombstone_count == 0


def test_expiry_in_portions(store: RetainedStore[str]) -> None:
    store.set(b"a", "x", 1, (1, 0), 10.0)
    store.set(b"b/c", "x", 1, (1, 0), 5.0)
    store.set(b"c", "x", 1, (1, 0))
    assert store.expire(4.999, 10) == []
    assert store.expire(5.0, 10) == [b"b/c"]
    assert store.expire(100.0, 0) == []
    store.set(b"b/c", "y", 1, (0, 0), 11.0)
    assert store.expire(100.0, 1) == [b"a"]
    assert store.expire(100.0, 1) == [b"b/c"]
    assert store.expire(100.0, 1) == []
    assert (len(store), store.byte_count, store.tombstone_count) == (1, 1, 0)


def test_a_replaced_message_has_the_new_expiry_only(store: RetainedStore[str]) -> None:
    store.set(b"a", "x", 1, (1, 0), 5.0)
    store.set(b"a", "x", 1, (2, 0), 50.0)
    assert store.expire(5.0, 10) == []
    store.set(b"a", "x", 1, (3, 0))
    assert store.expire(100.0, 10) == []
    store.set(b"a", "x", 1, (4, 0), 60.0)
    store.delete(b"a", (5, 0), 0.0)
    assert store.expire(100.0, 10) == []


TOPICS = (
    b"$SYS/load",
    b"$SYS",
    b"/",
    b"/a",
    b"a",
    b"a b",
    b"a!",
    b"a/",
    b"a/b",
    b"a/b/c",
    b"a/c",
    b"a-b/c",
    b"b/a/c",
    b"b/b",
    b"b/b/c",
    b"\x01/c",
)


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        (b"a", [b"a"]),
        (b"a/b", [b"a/b"]),
        (b"none", []),
        (b"a/#", [b"a", b"a/", b"a/b", b"a/b/c", b"a/c"]),
        (b"#", sorted(set(TOPICS) - {b"$SYS", b"$SYS/load"})),
        (b"+", [b"a", b"a b", b"a!"]),
        (b"+/+", [b"/", b"\x01/c", b"/a", b"a/", b"a/b", b"a/c", b"a-b/c", b"b/b"]),
        (b"+/c", [b"\x01/c", b"a/c", b"a-b/c"]),
        (b"+/b/#", [b"a/b", b"a/b/c", b"b/b", b"b/b/c"]),
        (b"b/+/c", [b"b/a/c", b"b/b/c"]),
        (b"+/+/+/+", []),
        (b"/+", [b"/", b"/a"]),
        (b"$SYS/#", [b"$SYS", b"$SYS/load"]),
        (b"$SYS/+", [b"$SYS/load"]),
        (b"$other/#", []),
        (b"z/+/#", []),
    ],
)
def test_search(topic_filter: bytes, expected: list[bytes]) -> None:
    store = filled(*TOPICS)
    assert sorted(store.match(topic_filter)) == sorted(expected)
    scan = store.match(topic_filter)
    found: list[bytes] = []
    while not scan.done:
        found += scan.take(1, steps=1)
    assert sorted(found) == sorted(expected)
    assert scan.take(10) == []


def test_a_search_rests_while_the_store_changes() -> None:
    store = filled(*(b"s/%03d" % number for number in range(500)))
    scan = store.match(b"s/#")
    found = scan.take(100)
    for number in range(500):
        if number % 3 == 0:
            store.delete(b"s/%03d" % number, (1_000_000, 0), 0.0)
    store.set(b"s/000", -1, 1, (2_000_000, 0))
    store.set(b"s/500", -1, 1, (2_000_000, 0))
    while not scan.done:
        found += scan.take(7)
    assert len(found) == len(set(found))
    stayed = {b"s/%03d" % number for number in range(500) if number % 3}
    assert stayed <= set(found)
    assert b"s/500" in found


def test_a_fruitless_search_is_cut_too() -> None:
    """A filter that matches nothing must not hold the shard for the length of the store."""
    store = filled(*(b"%05d/x/y" % number for number in range(3000)))
    scan = store.match(b"+/x/z")
    takes = 0
    while not scan.done:
        assert scan.take(10, steps=50) == []
        takes += 1
    assert takes > 50


def test_a_search_takes_no_more_than_asked() -> None:
    store = filled(*(b"s/%04d" % number for number in range(3000)))
    scan = store.match(b"#")
    sizes = []
    while not scan.done:
        sizes.append(len(scan.take(64)))
    assert sum(sizes) == 3000
    assert max(sizes) == 64


def test_snapshot_survives_changes() -> None:
    store = filled(*(b"s/%04d" % number for number in range(1000)))
    seen = []
    for topic, record in store.snapshot():
        seen.append((topic, record.message))
        store.delete(b"s/%04d" % (999 - len(seen)), (1_000_000, 0), 0.0)
    assert [message for _topic, message in seen[:400]] == list(range(400))
    assert len(seen) < 1000
    assert len(store) < 1000
