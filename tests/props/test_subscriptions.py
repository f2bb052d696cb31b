"""The subscription tree against a dictionary and the definition of matching."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fluxmq.routing.subscriptions import SubscriptionTree
from fluxmq.routing.topics import matches
from tests.props.mqtt_packets import filters, topics

# Few names, so that filters meet each other and the topics.
_LEVEL = st.sampled_from(["a", "b", "", "$x"])
_TOPIC = st.lists(_LEVEL, min_size=1, max_size=4).map("/".join).filter(bool).map(str.encode)
_FILTER = (
    st.tuples(
        st.lists(_LEVEL | st.just("+"), max_size=3), st.sampled_from(["a", "", "+", "#", "#"])
    )
    .map(lambda parts: "/".join([*parts[0], parts[1]]))
    .filter(bool)
    .map(str.encode)
)
_SUBSCRIBER = st.integers(0, 3)


class TreeAgainstModel(RuleBasedStateMachine):
    """Every answer of the tree equals the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: SubscriptionTree[int, int] = SubscriptionTree()
        self.model: dict[tuple[bytes, int], int] = {}

    def _subscribers(self, topic_filter: bytes) -> set[int]:
        return {who for known, who in self.model if known == topic_filter}

    @rule(
        topic_filter=_FILTER | filters(shared=False),
        subscriber=_SUBSCRIBER,
        value=st.integers(0, 2),
    )
    def add(self, topic_filter: bytes, subscriber: int, value: int) -> None:
        is_new = not self._subscribers(topic_filter)
        revision = self.tree.revision
        assert self.tree.add(topic_filter, subscriber, value) is is_new
        assert self.tree.revision > revision
        self.model[topic_filter, subscriber] = value

    @rule(data=st.data(), subscriber=_SUBSCRIBER)
    def remove(self, data: st.DataObject, subscriber: int) -> None:
        known = sorted(key for key, _ in self.model)
        topic_filter = data.draw(st.sampled_from(known) if known else _FILTER)
        was_there = (topic_filter, subscriber) in self.model
        revision = self.tree.revision
        gone = self.tree.remove(topic_filter, subscriber)
        self.model.pop((topic_filter, subscriber), None)
        assert gone is (was_there and not self._subscribers(topic_filter))
        assert (self.tree.revision > revision) is was_there

    @rule(subscriber=_SUBSCRIBER)
    def remove_all(self, subscriber: int) -> None:
        filters_of = [known for known, who in self.model if who == subscriber]
        self.model = {key: value for key, value in self.model.items() if key[1] != subscriber}
        gone = [each for each in filters_of if self.tree.remove(each, subscriber)]
        assert sorted(gone) == sorted(each for each in filters_of if not self._subscribers(each))

    @rule(topic=_TOPIC | topics())
    def match(self, topic: bytes) -> None:
        expected = [
            (known, who, value)
            for (known, who), value in self.model.items()
            if matches(known, topic)
        ]
        assert sorted(self.tree.match(topic)) == sorted(expected)

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        known = sorted({key for key, _ in self.model})
        topic_filter = data.draw(st.sampled_from(known) if known else _FILTER)
        for subscriber in range(4):
            expected = self.model.get((topic_filter, subscriber))
            assert self.tree.get(topic_filter, subscriber) == expected
        assert {who for _, who, _ in self.tree.subscriptions(topic_filter)} == (
            self._subscribers(topic_filter)
        )

    @invariant()
    def counts(self) -> None:
        assert len(self.tree) == len(self.model)
        distinct = sorted({known for known, _ in self.model})
        assert self.tree.filter_count == len(distinct)
        assert sorted(self.tree.filters()) == distinct
        assert bool(distinct) or self.tree._root.is_empty()


TestTreeAgainstModel = TreeAgainstModel.TestCase
