"""The subscription tree: what it gives, what it keeps, and what it costs."""

import sys
import time
from random import Random

import pytest

from fluxmq.routing.subscriptions import SubscriptionTree


@pytest.fixture
def tree() -> SubscriptionTree[str, int]:
    return SubscriptionTree()


def test_starts_empty(tree: SubscriptionTree[str, int]) -> None:
    assert len(tree) == 0
    assert tree.filter_count == 0
    assert tree.match(b"a/b") == []
    assert list(tree.filters()) == []


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/+", b"a/#", b"#", b"+/+", b"+/b/#"])
def test_one_subscription(tree: SubscriptionTree[str, int], topic_filter: bytes) -> None:
    assert tree.add(topic_filter, "x", 1) is True
    assert tree.match(b"a/b") == [(topic_filter, "x", 1)]
    assert tree.subscriptions(topic_filter) == [(topic_filter, "x", 1)]
    assert (len(tree), tree.filter_count) == (1, 1)
    assert tree.get(topic_filter, "x") == 1
    assert tree.get(topic_filter, "y") is None
    assert tree.get(b"a/b/c/+", "x") is None
    assert tree.subscriptions(b"a/b/c/+") == []
    assert tree.remove(topic_filter, "y") is False
    assert tree.remove(topic_filter, "x") is True
    assert tree.remove(topic_filter, "x") is False
    assert tree.match(b"a/b") == []
    assert (len(tree), tree.filter_count) == (0, 0)


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/+", b"a/#"])
def test_several_subscribers(tree: SubscriptionTree[str, int], topic_filter: bytes) -> None:
    assert tree.add(topic_filter, "x", 1) is True
    assert tree.add(topic_filter, "y", 2) is False
    assert tree.add(topic_filter, "z", 3) is False
    assert (len(tree), tree.filter_count) == (3, 1)
    assert [record[1:] for record in tree.match(b"a/b")] == [("x", 1), ("y", 2), ("z", 3)]
    assert tree.get(topic_filter, "y") == 2
    assert tree.get(topic_filter, "nobody") is None
    assert tree.remove(topic_filter, "x") is False
    assert tree.remove(topic_filter, "z") is False
    assert tree.match(b"a/b") == [(topic_filter, "y", 2)]
    assert tree.remove(topic_filter, "y") is True


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/+", b"a/#"])
def test_a_value_is_replaced(tree: SubscriptionTree[str, int], topic_filter: bytes) -> None:
    tree.add(topic_filter, "x", 1)
    assert tree.add(topic_filter, "x", 2) is False
    assert tree.match(b"a/b") == [(topic_filter, "x", 2)]
    tree.add(topic_filter, "y", 3)
    tree.add(topic_filter, "x", 4)
    assert sorted(record[1:] for record in tree.match(b"a/b")) == [("x", 4), ("y", 3)]
    assert len(tree) == 2


def test_a_leading_wildcard_does_not_see_reserved_topics(tree: SubscriptionTree[str, int]) -> None:
    """[MQTT-4.7.2-1]"""
    for topic_filter in (b"#", b"+/x", b"+/#", b"$SYS/#", b"$SYS/+", b"$SYS/x"):
        tree.add(topic_filter, "x", 0)
    assert {record[0] for record in tree.match(b"$SYS/x")} == {b"$SYS/#", b"$SYS/+", b"$SYS/x"}
    assert {record[0] for record in tree.match(b"$SYS")} == {b"$SYS/#"}
    assert tree.match(b"$other") == []


def test_remove_all_tells_what_has_gone(tree: SubscriptionTree[str, int]) -> None:
    for topic_filter in (b"a", b"b/+", b"c/#"):
        tree.add(topic_filter, "x", 0)
    tree.add(b"b/+", "y", 0)
    assert [each for each in (b"a", b"b/+", b"c/#", b"never") if tree.remove(each, "x")] == [
        b"a",
        b"c/#",
    ]
    assert list(tree.filters()) == [b"b/+"]


def test_revision_grows_with_changes_only(tree: SubscriptionTree[str, int]) -> None:
    seen = [tree.revision]

    def changed() -> bool:
        seen.append(tree.revision)
        return seen[-1] != seen[-2]

    for topic_filter in (b"a", b"a/+"):
        tree.add(topic_filter, "x", 0)
        assert changed()
        tree.add(topic_filter, "x", 1)
        assert changed()
        tree.match(b"a")
        tree.remove(topic_filter, "y")
        tree.remove(b"b/c/+", "x")
        assert not changed()
        tree.remove(topic_filter, "x")
        assert changed()
        tree.remove(topic_filter, "x")
        assert not changed()


def test_the_deepest_topic_costs_no_stack(tree: SubscriptionTree[str, int]) -> None:
    deep = b"/".join([b"a"] * 32_768)
    assert deep.count(b"/") > sys.getrecursionlimit()
    tree.add(deep + b"/#", "x", 0)
    tree.add(b"+" + deep[1:-1] + b"+", "y", 0)
    assert {record[1] for record in tree.match(deep)} == {"x", "y"}
    assert tree.remove(deep + b"/#", "x")
    assert tree.remove(b"+" + deep[1:-1] + b"+", "y")
    assert tree.match(deep) == []


def test_nothing_is_left_behind(tree: SubscriptionTree[str, int]) -> None:
    """Nodes without a filter are pruned: churn must not grow the tree."""
    for number in range(200):
        for topic_filter in (b"a/%d/+/x", b"+/%d/#", b"%d/+/+/+/#"):
            tree.add(topic_filter % number, "x", 0)
    tree.add(b"a/7/#", "keep", 0)
    for number in range(200):
        for topic_filter in (b"a/%d/+/x", b"+/%d/#", b"%d/+/+/+/#"):
            assert tree.remove(topic_filter % number, "x")
    assert list(tree.filters()) == [b"a/7/#"]
    tree.remove(b"a/7/#", "keep")
    assert tree._root.is_empty()  # nothing of it shows but memory


def test_matching_stays_quick_among_many_subscriptions() -> None:
    """20 000 subscriptions, 40 % with wildcards: some microseconds a topic, whatever the number."""
    random = Random(1)
    tree: SubscriptionTree[int, int] = SubscriptionTree()

    def name() -> list[bytes]:
        return [b"s%d" % random.randrange(40), b"d%d" % random.randrange(200), b"t"]

    for number in range(20_000):
        levels = name()
        if random.random() < 0.4:
            levels[random.randrange(1, 3)] = b"+"
        tree.add(b"/".join(levels), number, 0)
    topics = [b"/".join(name()) for _ in range(2000)]
    started = time.process_time()
    found = sum(len(tree.match(topic)) for topic in topics)
    per_topic = (time.process_time() - started) / len(topics)
    assert found > 2000
    assert per_topic < 100e-6  # thirty times the usual, against a walk over all filters
