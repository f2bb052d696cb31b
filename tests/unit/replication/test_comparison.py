"""Members of a group that have become different are found, and it is said which of them is not to be trusted."""

from fluxmq.replication.comparison import EVERY, NOTED_MAX, RECENT_MAX, Comparison, Hashes


def noted(*hashes: int) -> Hashes:
    found = Hashes()
    for number, rolling in enumerate(hashes, 1):
        found.note(number * EVERY, rolling)
    return found


def test_hashes_are_noted_at_the_same_indexes_everywhere() -> None:
    hashes = Hashes()
    for index in range(1, 3 * EVERY):
        hashes.note(index, index)
    assert hashes.newest == 2 * EVERY
    assert hashes.at(EVERY) == EVERY
    assert hashes.at(EVERY + 1) is None


def test_only_so_many_are_kept() -> None:
    hashes = noted(*range(NOTED_MAX + 1))
    assert hashes.at(EVERY) is None
    assert hashes.at(2 * EVERY) == 1


def test_the_last_hashes_are_kept_each() -> None:
    hashes = Hashes()
    for index in range(10, RECENT_MAX + 20):
        hashes.note(index, 2 * index)
    assert hashes.recent(RECENT_MAX + 19) == 2 * (RECENT_MAX + 19)
    assert hashes.recent(20) == 40
    assert hashes.recent(19) is None
    assert hashes.recent(RECENT_MAX + 20) is None


def test_equal_members_are_equal_as_far_as_they_have_told() -> None:
    comparison = Comparison()
    comparison.told(2, EVERY, 11)
    comparison.told(3, 2 * EVERY, 12)
    assert comparison.deviating(1, noted(11, 12), (1, 2, 3)) == []
    assert comparison.compared == {2: EVERY, 3: 2 * EVERY}


def test_a_follower_that_differs_is_named() -> None:
    comparison = Comparison()
    comparison.told(2, EVERY, 11)
    comparison.told(3, EVERY, 99)
    assert comparison.deviating(1, noted(11), (1, 2, 3)) == [3]
    assert comparison.mismatched == {3}
    comparison.told(3, 2 * EVERY, 12)
    assert comparison.deviating(1, noted(11, 12), (1, 2, 3)) == []
    assert comparison.mismatched == set()


def test_a_leader_that_differs_from_the_others_is_named() -> None:
    comparison = Comparison()
    comparison.told(2, EVERY, 11)
    comparison.told(3, EVERY, 11)
    assert comparison.deviating(1, noted(99), (1, 2, 3)) == [1]


def test_an_index_that_is_not_noted_any_more_says_nothing() -> None:
    comparison = Comparison()
    comparison.told(2, 5 * EVERY, 99)
    assert comparison.deviating(1, noted(11), (1, 2, 3)) == []


def test_who_begins_anew_is_not_held_to_what_it_told() -> None:
    comparison = Comparison()
    comparison.told(2, EVERY, 99)
    comparison.forget(2)
    assert comparison.deviating(1, noted(11), (1, 2, 3)) == []
