"""The sorted set: blocks split and merge without showing."""

from random import Random

from fluxmq.routing.ordered_keys import BLOCK_KEYS_MAX, OrderedKeys


def walk(keys: OrderedKeys, count: int = 100) -> list[bytes]:
    found: list[bytes] = []
    start = b""
    while part := keys.between(start, None, count):
        assert len(part) <= count
        found += part
        start = part[-1] + b"\0"
    return found


def number(value: int) -> bytes:
    return b"%08d" % value


def test_an_empty_set() -> None:
    keys = OrderedKeys()
    assert len(keys) == 0
    assert b"a" not in keys
    assert keys.first_from(b"") is None
    assert keys.between(b"", None, 5) == []
    assert keys.discard(b"a") is False


def test_made_from_keys() -> None:
    keys = OrderedKeys(number(value) for value in [*range(5000), *range(100)])
    assert len(keys) == 5000
    assert walk(keys, 1000) == [number(value) for value in range(5000)]


def test_grows_and_shrinks_in_any_order() -> None:
    random = Random(3)
    values = list(range(5 * BLOCK_KEYS_MAX))
    random.shuffle(values)
    keys = OrderedKeys()
    for value in values:
        assert keys.add(number(value))
        assert not keys.add(number(value))
    assert walk(keys) == [number(value) for value in range(len(values))]
    random.shuffle(values)
    kept = set(values)
    for value in values[:-10]:
        assert keys.discard(number(value))
        assert not keys.discard(number(value))
        kept.discard(value)
    assert walk(keys) == [number(value) for value in sorted(kept)]
    assert len(keys) == 10
    assert len(keys._blocks) <= 3  # short blocks were merged
    for value in kept:
        keys.discard(number(value))
    assert walk(keys) == []


def test_rising_and_falling_keys() -> None:
    for step in (1, -1):
        keys = OrderedKeys()
        for value in range(3000)[::step]:
            keys.add(number(value))
        assert walk(keys) == [number(value) for value in range(3000)]
        assert max(map(len, keys._blocks)) <= BLOCK_KEYS_MAX


def test_search_by_bounds() -> None:
    keys = OrderedKeys([b"b", b"d", b"f"])
    assert keys.first_from(b"") == b"b"
    assert keys.first_from(b"b") == b"b"
    assert keys.first_from(b"c") == b"d"
    assert keys.first_from(b"g") is None
    assert b"d" in keys
    assert b"c" not in keys
    assert keys.between(b"c", b"f", 9) == [b"d"]
    assert keys.between(b"a", b"b", 9) == []
    assert keys.between(b"a", b"g", 2) == [b"b", b"d"]
    assert keys.between(b"g", None, 2) == []
