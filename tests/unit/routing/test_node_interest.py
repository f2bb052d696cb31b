"""The combined interest of a node's shards, as other nodes learn it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.routing.node_interest import InterestChange, NodeInterest


def test_only_the_first_and_the_last_shard_are_told() -> None:
    interest = NodeInterest()
    interest.set_filter(0, b"a", True)
    assert interest.take_change() == InterestChange([b"a"], [], [], [])
    interest.set_filter(1, b"a", True)
    interest.set_filter(0, b"a", False)
    assert not interest.changed
    interest.set_filter(1, b"a", False)
    assert interest.take_change() == InterestChange([], [b"a"], [], [])
    assert not interest.changed


def test_what_ends_before_it_is_told_is_not_told() -> None:
    interest = NodeInterest()
    interest.set_filter(0, b"a", True)
    interest.set_filter(0, b"a", False)
    assert not interest.changed


def test_persistent_sessions_of_any_shard_are_told() -> None:
    interest = NodeInterest()
    interest.set_filter(0, b"a", True)
    interest.take_change()
    interest.set_filter(1, b"a", True, kept=True)
    assert interest.take_change() == InterestChange([b"a"], [], [b"a"], [])
    interest.set_filter(1, b"a", True, kept=False)
    assert interest.take_change() == InterestChange([b"a"], [], [], [])


def test_members_of_shared_groups_are_counted_together() -> None:
    interest = NodeInterest()
    interest.set_members(0, (b"g", b"a"), (2, 1, 0))
    interest.set_members(1, (b"g", b"a"), (1, 0, 1))
    assert interest.take_change().members == [(b"g", b"a", 3, 1, 1)]
    interest.set_members(0, (b"g", b"a"), (0, 0, 0))
    interest.set_members(1, (b"g", b"a"), (0, 0, 0))
    assert interest.take_change().members == [(b"g", b"a", 0, 0, 0)]
    assert list(interest.all(10)) == []


STEP = st.tuples(
    st.integers(0, 2), st.sampled_from([b"a", b"b"]), st.booleans(), st.booleans(), st.booleans()
)


@given(st.lists(STEP, max_size=30))
def test_what_is_told_adds_up(steps: list[tuple[int, bytes, bool, bool, bool]]) -> None:
    """A node that hears every change knows the same as one that comes later."""
    interest = NodeInterest()
    wanted: dict[tuple[int, bytes], bool] = {}
    heard: dict[bytes, bool] = {}
    for shard, topic_filter, wants, kept, told in steps:
        interest.set_filter(shard, topic_filter, wants, kept)
        wanted.pop((shard, topic_filter), None)
        if wants:
            wanted[shard, topic_filter] = kept
        if told:
            hear(heard, interest.take_change())
    hear(heard, interest.take_change())
    expected: dict[bytes, bool] = {}
    for (_, topic_filter), kept in wanted.items():
        expected[topic_filter] = expected.get(topic_filter, False) or kept
    assert heard == expected
    late: dict[bytes, bool] = {}
    for change in interest.all(1):
        hear(late, change)
    assert late == expected


def hear(heard: dict[bytes, bool], change: InterestChange) -> None:
    """Follow a change as another node does."""
    for topic_filter in change.begun:
        heard[topic_filter] = topic_filter in change.kept
    for topic_filter in change.ceased:
        del heard[topic_filter]
