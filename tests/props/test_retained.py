"""The retained store against a dictionary, searches among changes, copies in any order."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fluxmq.routing.ordered_keys import OrderedKeys
from fluxmq.routing.retained import RetainedStore, RetainOutcome, Scan, Stamp
from fluxmq.routing.topics import matches
from tests.props.mqtt_packets import filters, topics

_LEVEL = st.sampled_from(["a", "b", "ab", "", "!", "$x", "$", "%"])
_TOPIC = st.lists(_LEVEL, min_size=1, max_size=4).map("/".join).filter(bool).map(str.encode)
_FILTER = (
    st.tuples(
        st.lists(_LEVEL | st.just("+"), max_size=3), st.sampled_from(["a", "", "+", "#", "#"])
    )
    .map(lambda parts: "/".join([*parts[0], parts[1]]))
    .filter(bool)
    .map(str.encode)
)
_STAMP = st.tuples(st.integers(0, 5), st.integers(0, 1))


@given(st.lists(_TOPIC | topics(), max_size=30), _FILTER | filters(shared=False), st.integers(1, 5))
def test_a_search_finds_what_matches(known: list[bytes], wanted: bytes, inflight: int) -> None:
    store: RetainedStore[None] = RetainedStore(100, 100)
    for topic in known:
        store.set(topic, None, 0, (1, 0))
    scan = store.match(wanted)
    found: list[bytes] = []
    while not scan.done:
        part = scan.take(inflight, steps=inflight)
        assert len(part) <= inflight
        found += part
    assert sorted(found) == sorted(topic for topic in set(known) if matches(wanted, topic))


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([b"a", b"b"]), _STAMP),
        unique_by=lambda each: each[2],
    ),
    st.randoms(use_true_random=False),
)
def test_copies_agree_whatever_the_order(
    changes: list[tuple[bool, bytes, tuple[int, int]]], random: Random
) -> None:
    """Shards receive each other's changes in different orders and must end alike."""

    def play(order: list[tuple[bool, bytes, tuple[int, int]]]) -> dict[bytes, Stamp]:
        store: RetainedStore[None] = RetainedStore(10, 10)
        for sets, topic, stamp in order:
            if sets:
                store.set(topic, None, 1, stamp)
            else:
                store.delete(topic, stamp, 0.0)
        return {topic: record.stamp for topic, record in store.snapshot()}

    shuffled = list(changes)
    random.shuffle(shuffled)
    assert play(changes) == play(shuffled)


class StoreAgainstModel(RuleBasedStateMachine):
    """Every answer of the store equals the model's; searches live on while it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.store: RetainedStore[int] = RetainedStore(12, 100, max_tombstones=5)
        self.model: dict[bytes, tuple[int, int, float | None]] = {}
        self.stamp = 0
        self.now = 0
        self.scan: Scan | None = None
        self.wanted = b"#"
        self.throughout: set[bytes] = set()
        """Topics that match and were there since the search began."""
        self.ever: set[bytes] = set()
        self.found: list[bytes] = []

    @rule(
        topic=_TOPIC,
        size=st.integers(0, 30),
        lifetime=st.none() | st.integers(0, 3),
        late=st.booleans(),
    )
    def retain(self, topic: bytes, size: int, lifetime: int | None, late: bool) -> None:
        self.stamp += 1
        expires_at = None if lifetime is None else float(self.now + lifetime)
        stamp = (0 if late and topic in self.model else self.stamp, 0)
        outcome = self.store.set(topic, self.stamp, size, stamp, expires_at)
        others = sum(each[1] for known, each in self.model.items() if known != topic)
        if stamp[0] == 0:
            assert outcome is RetainOutcome.STALE
        elif topic not in self.model and len(self.model) >= 12:
            assert outcome is RetainOutcome.TOO_MANY_MESSAGES
        elif others + size > 100:
            assert outcome is RetainOutcome.TOO_MANY_BYTES
        else:
            assert outcome is RetainOutcome.STORED
            self.model[topic] = (self.stamp, size, expires_at)
            self.ever.add(topic)

    def _gone(self, topic: bytes) -> None:
        del self.model[topic]
        self.throughout.discard(topic)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.model)) if self.model else _TOPIC)
        self.stamp += 1
        outcome = self.store.delete(topic, (self.stamp, 0), float(self.now))
        if topic in self.model:
            assert outcome is RetainOutcome.DELETED
            self._gone(topic)
        else:
            assert outcome is RetainOutcome.ABSENT

    @rule(limit=st.integers(1, 3))
    def expire(self, limit: int) -> None:
        self.now += 1
        due = {
            topic
            for topic, (_, _, expires_at) in self.model.items()
            if expires_at is not None and expires_at <= self.now
        }
        expired = self.store.expire(float(self.now), limit)
        assert len(expired) == min(limit, len(due))
        assert set(expired) <= due
        for topic in expired:
            self._gone(topic)

    @rule(wanted=_FILTER)
    def begin_search(self, wanted: bytes) -> None:
        self.wanted = wanted
        self.scan = self.store.match(wanted)
        self.throughout = {topic for topic in self.model if matches(wanted, topic)}
        self.ever = set(self.model)
        self.found = []

    @rule(count=st.integers(1, 4), steps=st.integers(1, 6))
    def search_on(self, count: int, steps: int) -> None:
        if self.scan is None:
            return
        self.found += self.scan.take(count, steps)
        assert len(self.found) == len(set(self.found))
        assert all(matches(self.wanted, topic) and topic in self.ever for topic in self.found)
        if self.scan.done:
            assert self.throughout <= set(self.found)
            self.scan = None

    @invariant()
    def agrees(self) -> None:
        assert len(self.store) == len(self.model)
        assert self.store.byte_count == sum(size for _, size, _ in self.model.values())
        assert {topic: record.message for topic, record in self.store.snapshot()} == {
            topic: number for topic, (number, _, _) in self.model.items()
        }
        assert self.store.tombstone_count <= 5


TestStoreAgainstModel = StoreAgainstModel.TestCase


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=2))), st.binary(max_size=2))
def test_ordered_keys_are_a_sorted_set(changes: list[tuple[bool, bytes]], bound: bytes) -> None:
    keys = OrderedKeys()
    model: set[bytes] = set()
    for adds, key in changes:
        if adds:
            assert keys.add(key) is (key not in model)
            model.add(key)
        else:
            assert keys.discard(key) is (key in model)
            model.discard(key)
    assert len(keys) == len(model)
    assert keys.between(b"", None, len(model) + 1) == sorted(model)
    above = sorted(key for key in model if key >= bound)
    assert keys.first_from(bound) == (above[0] if above else None)
    assert (bound in keys) is (bound in model)
