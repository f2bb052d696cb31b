"""Shared groups: turns, runs, offline members, other shards."""

from collections import Counter

import pytest

from fluxmq.routing.shared import SharedGroup, SharedGroups


@pytest.fixture
def group() -> SharedGroup[str]:
    return SharedGroup(b"g", b"a/#")


def test_a_group_without_members_gives_nothing(group: SharedGroup[str]) -> None:
    assert group.is_empty
    assert group.split(5) == []
    assert group.split_local(5) == []
    assert group.choose() is None
    assert group.split_local(1) == []


def test_single_messages_alternate(group: SharedGroup[str]) -> None:
    for member in "abc":
        assert group.join(member) is True
    assert [group.choose() for _ in range(7)] == list("abcabca")
    assert [group.split(2) for _ in range(2)] == [
        [("b", 1), ("c", 1)],
        [("a", 1), ("b", 1)],
    ]


def test_a_run_becomes_contiguous_parts(group: SharedGroup[str]) -> None:
    for member in "abc":
        group.join(member)
    assert group.split(7) == [("a", 3), ("b", 2), ("c", 2)]
    assert group.split(8) == [("b", 3), ("c", 3), ("a", 2)]
    assert group.split(0) == []
    assert group.split(3) == [("a", 1), ("b", 1), ("c", 1)]


def test_other_shards_weigh_what_their_members_do(group: SharedGroup[str]) -> None:
    group.join("a")
    group.set_remote(7, 2, 5)
    assert group.remote() == {7: (2, 5)}
    assert group.split(6) == [("a", 2), (7, 4)]
    assert [group.choose() for _ in range(6)] == ["a", 7, 7, "a", 7, 7]
    assert group.split(2) == [("a", 1), (7, 1)]
    # The turn now stands at the shard's second slot; four messages reach round to its first.
    assert group.split(4) == [(7, 3), ("a", 1)]
    assert [group.split_local(1) for _ in range(2)] == [[("a", 1)]] * 2


def test_a_run_may_start_anywhere_on_the_wheel(group: SharedGroup[str]) -> None:
    group.join("a")
    group.set_remote(3, 2, 0)
    group.set_remote(4, 3, 0)
    slots: list[str | int] = ["a", 3, 3, 4, 4, 4]
    assert [group.choose() for _ in range(6)] == slots
    for start in range(6):
        parts = group.split(5)
        assert sum(size for _, size in parts) == 5
        # All slots but the one before the run's start get one message.
        left_out = slots[5 - start]
        assert dict(parts).get(left_out, 0) == slots.count(left_out) - 1
    assert group.split(6)[0] == ("a", 1)
    assert [group.choose() for _ in range(2)] == ["a", 3]
    assert group.split(6) == [(3, 2), (4, 3), ("a", 1)]


def test_the_connected_go_first_wherever_they_are(group: SharedGroup[str]) -> None:
    group.join("away", connected=False)
    assert group.counts == (0, 1)
    assert group.choose() == "away"
    group.set_remote(3, 0, 1)
    assert Counter(group.choose() for _ in range(10)) == {"away": 5, 3: 5}
    group.set_remote(3, 1, 0)
    assert {group.choose() for _ in range(4)} == {3}
    assert group.split_local(1) == [("away", 1)]
    group.set_connected("away", True)
    assert group.counts == (1, 0)
    assert {group.choose() for _ in range(4)} == {3, "away"}
    group.set_remote(3, 0, 0)
    group.set_connected("away", False)
    assert group.split(3) == [("away", 3)]


def test_joining_twice_changes_the_state_only(group: SharedGroup[str]) -> None:
    assert group.join("a") is True
    assert group.join("a") is False
    assert group.join("a", connected=False) is False
    assert (len(group), group.counts) == (1, (0, 1))
    with pytest.raises(KeyError):
        group.set_connected("stranger", True)


def test_leaving(group: SharedGroup[str]) -> None:
    for member in "abcd":
        group.join(member)
    assert group.leave("a") is True
    assert group.leave("a") is False
    assert sorted(group.members()) == ["b", "c", "d"]
    assert Counter(group.choose() for _ in range(9)) == {"b": 3, "c": 3, "d": 3}
    for member in "bcd":
        group.leave(member)
    assert group.is_empty


def test_the_table_of_groups() -> None:
    groups: SharedGroups[str] = SharedGroups()
    first, is_new = groups.obtain(b"g", b"a")
    assert is_new
    assert groups.obtain(b"g", b"a") == (first, False)
    other, _ = groups.obtain(b"g", b"b")
    assert other is not first
    assert groups.get(b"g", b"a") is first
    assert groups.get(b"h", b"a") is None
    first.join("x")
    other.set_remote(2, 1, 0)
    assert groups.release(first) is False
    first.leave("x")
    assert groups.release(first) is True
    assert groups.release(first) is False
    assert list(groups) == [other]
    assert groups.drop_shard(2) == [other]
    assert len(groups) == 0


def test_a_shard_that_dies_leaves_the_rest() -> None:
    groups: SharedGroups[str] = SharedGroups()
    group, _ = groups.obtain(b"g", b"a")
    group.join("x")
    group.set_remote(1, 3, 0)
    assert groups.drop_shard(1) == []
    assert group.split(4) == [("x", 4)]
    assert "g" in repr(group)
